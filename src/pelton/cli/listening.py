"""What commands that listen on a port share."""

from __future__ import annotations

import argparse
import asyncio

from pelton.runtime import Signal
from pelton.runtime.stop_signals import StopSignals


def port(text: str) -> int:
    """Return the number of a port; 0 is any that is free."""
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number up to 65535")
    return number


async def until_stopped() -> None:
    """Wait for SIGTERM or SIGINT."""
    loop, over = asyncio.get_running_loop(), Signal()
    seen = over.generation
    signals = StopSignals(lambda: loop.call_soon_threadsafe(over.notify))
    signals.take()
    try:
        await over.wait(seen)
    finally:
        signals.give_back()
