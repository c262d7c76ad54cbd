"""The literal subjects behind a filter: so that a condition such as ``jobs.*.u1`` costs a few look-ups, not a scan."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pelton.api import StreamConfig
from pelton.storage import Condition, subject_condition
from pelton.streams.state import StreamState
from pelton.subjects import candidates, is_filter

Spots = tuple[str, ...]
"""The beginnings of subjects, each with its last dot: with one token more, the subjects that a filter matches."""

_MOST: Final = 16
_KNOWN_LIMIT: Final = 10_000
_WILD: Final = ("*", ">")


class FilterLookup:
    """Lists the subjects of one stream that a filter can match.

    A stream's subjects say which exist, unless a transform or a source brings others, or an earlier configuration took
    them: the latter is checked once for each configuration.
    """

    def __init__(self, state: StreamState) -> None:
        self._state = state
        # What is known of the filters' parents, as long as the configuration is this one.
        self._config: StreamConfig | None = None
        self._is_complete = False
        self._spots: dict[str, Spots | None] = {}

    def subjects_of(self, subject_filter: str) -> Collection[str] | None:
        """Return the literal subjects of a filter; None if they cannot be listed, or are many."""
        parent, _, token = subject_filter.rpartition(".")
        spots = None if token in _WILD else self.spots_of(parent)
        return self._listed(subject_filter) if spots is None else [spot + token for spot in spots]

    def spots_of(self, parent: str) -> Spots | None:
        """Return where subjects may be that a filter matches, from all its tokens but the last; None: unknown."""
        self._know_config()
        if len(self._spots) > _KNOWN_LIMIT:
            self._spots.clear()
        if parent not in self._spots:
            self._spots[parent] = self._found_spots(parent)
        return self._spots[parent]

    def _found_spots(self, parent: str) -> Spots | None:
        position, example = parent.count(".") + 1, f"{parent}.0"
        if not is_filter(example) or any(_names(subject, position) for subject in self._state.config.subjects):
            return None
        found = self._listed(example)
        return None if found is None else tuple(sorted(subject[:-1] for subject in found))

    def _listed(self, subject_filter: str) -> set[str] | None:
        self._know_config()
        if not self._is_complete:
            return None
        found = candidates(subject_filter, self._state.config.subjects)
        return None if found is None or len(found) > _MOST else found

    def _know_config(self) -> None:
        config = self._state.config
        if self._config is not config:
            self._config = config
            self._spots.clear()
            maps = config.sources or config.mirror is not None or config.subject_transform is not None
            self._is_complete = bool(config.subjects) and not maps and self._has_no_others(config)

    def _has_no_others(self, config: StreamConfig) -> bool:
        state = self._state
        taken = subject_condition(config.subjects)
        if taken is None:
            return True
        query = state.subjects.each(Condition(f"NOT {taken.sql}", taken.bindings), state.last)
        return state.db.execute(f"SELECT 1 FROM {query.sql} LIMIT 1", query.bindings).fetchone() is None


def _names(pattern: str, position: int) -> bool:
    """Whether a pattern names the token at a position, so that what it matches depends on that token."""
    tokens = pattern.split(".")
    return len(tokens) > position and tokens[position] not in _WILD
