"""The token floor in the rows of a store, and of its copies; ``engine/token_floor.py`` explains it."""

from __future__ import annotations

from typing import Final

from pelton.storage.database import Database
from pelton.storage.rows import integer
from pelton.storage.schema import TOKEN_EPOCH

_FLOOR: Final = "SELECT value FROM meta WHERE key='token_floor'"


def token_floor(database: Database) -> int:
    """Return the floor from which fencing tokens of deliveries are counted."""
    return integer(database.value(_FLOOR))


def raise_token_floor(database: Database, above: int = 0) -> int:
    """Raise the floor beyond all tokens counted from it or from ``above``, another store's floor; return it."""
    database.execute("UPDATE meta SET value=max(value, ?)+? WHERE key='token_floor'", (above, TOKEN_EPOCH))
    database.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
    return token_floor(database)


def set_tokens_apart(copy: Database, above: int = 0) -> None:
    """Let a copy of a store give its own tokens, and accept none that the store has given or will give.

    Both continue from the same delivery numbers, so the same number may belong to different messages.
    """
    highest = copy.value("SELECT ifnull(max(token_floor), 0) FROM consumers")
    copy.execute("UPDATE consumers SET token_floor=?", (raise_token_floor(copy, max(above, integer(highest))),))
