"""Streams that take their messages from others: sources and mirrors (ADR-59)."""

from pelton.sourcing.forwarder import Forwarder
from pelton.sourcing.link import SourceLink
from pelton.sourcing.plan import check_circle, check_mirror_change, check_sourcing
from pelton.sourcing.source_graph import SourceGraph

__all__ = ["Forwarder", "SourceGraph", "SourceLink", "check_circle", "check_mirror_change", "check_sourcing"]
