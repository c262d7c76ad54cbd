"""Streams that take their messages from others: sources and mirrors (ADR-59)."""

from pelton.sourcing.carrying import Carrier
from pelton.sourcing.feed import Feed
from pelton.sourcing.network import Network
from pelton.sourcing.rules import check_circle, check_mirror_change, check_sourcing

__all__ = ["Carrier", "Feed", "Network", "check_circle", "check_mirror_change", "check_sourcing"]
