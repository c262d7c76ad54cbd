"""Streams that take their messages from others: sources and mirrors (ADR-59)."""

from pelton.sourcing.link import RemoteLink as RemoteLink
from pelton.sourcing.link import SourceLink as SourceLink
from pelton.sourcing.plan import check_circle as check_circle
from pelton.sourcing.plan import check_mirror_change as check_mirror_change
from pelton.sourcing.plan import check_sourcing as check_sourcing
from pelton.sourcing.source_graph import SourceGraph as SourceGraph
