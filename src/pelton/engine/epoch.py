"""Fencing tokens that only grow, also across a power loss.

A delivery is not synced to disk before it is handed out (losing it only means delivering again), so after a
power loss its number may be given a second time. A token therefore carries an epoch above the delivery
number; the epoch is moved, durably, by the first process that opens the store after the machine has started
again.

It moves as well when a durable consumer is deleted: another one of its name numbers its deliveries from 1 again. All
processes follow at once, since the catalogue moves with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pelton.storage import Database

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return what identifies this run of the machine, or an empty text where it can't be told."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def move_epoch(database: Database, boot: Callable[[], str] = boot_id) -> None:
    """Move the store's epoch if the machine was started since the store was last opened."""
    now = boot()
    with database.reading():
        if now and database.value("SELECT value FROM meta WHERE key='boot'") == now:
            return
    with database.writing():
        # Where the run of the machine can't be told, every opening moves the epoch: safe, and 23 bits last
        # long.
        if not now or database.value("SELECT value FROM meta WHERE key='boot'") != now:
            database.execute("UPDATE meta SET value=value+1 WHERE key IN ('epoch', 'catalogue')")
            database.execute("UPDATE meta SET value=? WHERE key='boot'", (now,))
