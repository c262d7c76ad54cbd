"""Runs a user's statements on a snapshot: they may read everything, and change nothing."""

from __future__ import annotations

import apsw

from pelton.storage.user_sql import UserSql


class ReadSql(UserSql):
    """A user's statements on a connection that only reads."""

    def _objection(self, action: int, first: str | None, second: str | None) -> str:
        if action == apsw.SQLITE_PRAGMA:
            return super()._objection(action, first, second)
        return "only reading is possible here; to write, use jet.transaction()"
