"""The token floor of a store, from which every fencing token is counted, so that tokens only grow.

Design: a delivery's token is the store's token floor plus the number of the delivery, which its consumer counts. The
floor never decreases, and it is raised, durably, whenever a number could be given a second time:

- Deliveries are not synced before they are handed out (losing one only means delivering again). So the first process
  that opens the store after the machine has started again raises the floor by ``TOKEN_EPOCH``, far more than a power
  loss can take back. The same happens in copies of a store, which continue independently.
- A consumer created under the name of a deleted one numbers its deliveries from 1 again. So deleting consumers, in any
  way, raises the floor by the highest number that one of them has given (``session/consumers.py``), and so does a
  reset, after which a consumer numbers them from 1 again, too. A consumer keeps the floor it was created or reset at: a
  token not above it belongs to an earlier consumer of that name.

All processes load the new floor at once, because raising it also increments the version of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable

from pelton.runtime import boot_id
from pelton.storage import Database, raise_token_floor


def move_after_restart(database: Database, boot: Callable[[], str] = boot_id) -> None:
    """Raise the store's token floor if the machine was started since the store was last opened."""
    now = boot()
    with database.reading():
        if now and database.value("SELECT value FROM meta WHERE key='boot'") == now:
            return
    with database.writing():
        # If the run of the machine is unknown, every opening raises the floor: safe, and 23 bits last long.
        if not now or database.value("SELECT value FROM meta WHERE key='boot'") != now:
            raise_token_floor(database)
            database.execute("UPDATE meta SET value=? WHERE key='boot'", (now,))
