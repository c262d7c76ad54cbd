"""From where and when a JWT lets its user connect. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pelton.server.auth.claims import TimeRange


def is_from(address: str, networks: Sequence[str] | str | None) -> bool:
    """Whether an IP address is in one of the networks, as CIDR; in any if there are none."""
    wanted = networks.split(",") if isinstance(networks, str) else networks
    if not wanted or not any(wanted):
        return True
    try:
        here = ipaddress.ip_address(address)
        return any(here in ipaddress.ip_network(network.strip(), strict=False) for network in wanted)
    except ValueError:
        return False


def allowed_until(now: float, ranges: Sequence[TimeRange] | None, location: str) -> float | None:
    """Return until when (Unix seconds) the time of day is in one of the ranges; None if it is in none.

    Without ranges this is for ever. ``location`` names the time zone, that of the machine if it is empty.
    """
    try:
        here = datetime.fromtimestamp(now, ZoneInfo(location)) if location else datetime.fromtimestamp(now).astimezone()
        ends = [end for each in ranges or () for end in _ends(here, each)]
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None
    return max(ends, default=None) if ranges else float("inf")


def _ends(here: datetime, each: TimeRange) -> list[float]:
    """Return the end of the range that began today or yesterday, if it has not ended."""
    start, end = (_time_of(text) for text in (each.start, each.end))
    found = []
    for day in (here.date() - timedelta(days=1), here.date()):
        begins = datetime.combine(day, start, tzinfo=here.tzinfo)
        ends = datetime.combine(day + timedelta(days=start > end), end, tzinfo=here.tzinfo)
        if begins <= here < ends:
            found.append(ends.timestamp())
    return found


def _time_of(text: str) -> time:
    """Return a time of day as JWTs write it. Raises ValueError."""
    found = time.fromisoformat(text)
    if found.isoformat() != text:
        raise ValueError(text)
    return found
