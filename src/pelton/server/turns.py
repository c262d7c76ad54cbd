"""Work of which there can be very much, in portions: no step of the event loop takes long, and clients have a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Final, TypeVar

_T = TypeVar("_T")
_AT_ONCE: Final = 256


async def in_portions(items: Iterable[_T], at_once: int = _AT_ONCE) -> AsyncIterator[list[_T]]:
    """Yield the next items together, and let clients have their turn after each time."""
    rest = iter(items)
    while some := list(islice(rest, at_once)):
        yield some
        await asyncio.sleep(0)
