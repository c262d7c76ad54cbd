"""The literal subjects behind a filter: so that a condition such as ``jobs.*.u1`` costs a few look-ups, not a scan."""

from __future__ import annotations

from typing import Final

from pelton.api import StreamConfig
from pelton.storage import Condition, subject_condition
from pelton.streams.state import StreamState
from pelton.subjects import candidates

_MOST: Final = 16


class FilterLookup:
    """Lists the subjects of one stream that a filter can match.

    A stream's subjects say which exist, unless a transform or a source brings others, or an earlier configuration took
    them: the latter is checked once for each configuration.
    """

    def __init__(self, state: StreamState) -> None:
        self._state = state
        self._checked: StreamConfig | None = None
        self._is_complete = False

    def subjects_of(self, subject_filter: str) -> set[str] | None:
        """Return the literal subjects of a filter; None if they cannot be listed, or are many."""
        config = self._state.config
        if config.sources or config.mirror is not None or config.subject_transform is not None or not config.subjects:
            return None
        found = candidates(subject_filter, config.subjects)
        if found is None or len(found) > _MOST:
            return None
        if self._checked is not config:
            self._is_complete, self._checked = self._has_no_others(config), config
        return found if self._is_complete else None

    def _has_no_others(self, config: StreamConfig) -> bool:
        state = self._state
        taken = subject_condition(config.subjects)
        if taken is None:
            return True
        query = state.subjects.each(Condition(f"NOT {taken.sql}", taken.bindings), state.last)
        return state.db.execute(f"SELECT 1 FROM {query.sql} LIMIT 1", query.bindings).fetchone() is None
