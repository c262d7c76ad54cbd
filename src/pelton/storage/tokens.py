"""The token floor in the rows of a store, and of its copies (what it is for: ``engine/token_floor.py``)."""

from __future__ import annotations

from typing import Final

from pelton.storage.database import Database
from pelton.storage.schema import TOKEN_EPOCH

_FLOOR: Final = "SELECT value FROM meta WHERE key='token_floor'"


def token_floor(database: Database) -> int:
    """Return what tokens of deliveries are counted from."""
    return int(database.value(_FLOOR) or 0)


def raise_token_floor(database: Database, above: int = 0) -> int:
    """Raise the floor beyond all tokens that it and ``above``, another store's, were the floor of; return it."""
    database.execute("UPDATE meta SET value=max(value, ?)+? WHERE key='token_floor'", (above, TOKEN_EPOCH))
    database.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
    return token_floor(database)


def set_tokens_apart(copy: Database, above: int = 0) -> None:
    """Have a copy of a store give tokens of its own, and take none of those that the store has given or will give.

    Both go on from the same numbers of deliveries: the same one may be of another message in each.
    """
    highest = copy.value("SELECT ifnull(max(token_floor), 0) FROM consumers")
    copy.execute("UPDATE consumers SET token_floor=?", (raise_token_floor(copy, max(above, int(highest))),))
