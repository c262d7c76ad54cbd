"""Which stream takes a subject: looked up for every message, so results are cached."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pelton.streams import StreamLog
from pelton.subjects import SubjectIndex, fits, is_subject, is_subset
from pelton.subjects.index import LONGEST_CACHED

_LIMIT: Final = 100_000
_SHORT: Final = 1_024


class Routes:
    """The subjects of a store's streams."""

    def __init__(self) -> None:
        self._index: SubjectIndex[StreamLog] = SubjectIndex()
        self._known: dict[str, StreamLog] = {}
        self._families: dict[str, StreamLog] = {}
        self._reached: dict[str, bool] = {}

    def add(self, log: StreamLog) -> None:
        """Add a stream. Its subjects overlap with no other stream's, so cached results stay valid."""
        for subject in log.config.subjects:
            self._index.insert(subject, log)
        self._reached.clear()

    def remove(self, log: StreamLog) -> None:
        """Remove a stream."""
        for subject in log.config.subjects:
            self._index.remove(subject, log)
        self._known = {subject: found for subject, found in self._known.items() if found is not log}
        self._families = {parent: found for parent, found in self._families.items() if found is not log}
        self._reached.clear()

    def overlapping(self, subject: str) -> set[StreamLog]:
        """Return the streams that take some subject that matches a filter."""
        return self._index.overlapping(subject)

    def find(self, subject: str) -> StreamLog | None:
        """Return the stream that takes a subject, or None."""
        log = self._known.get(subject)
        if log is not None:
            return log
        parent, _, token = subject.rpartition(".")
        log = self._families.get(parent)
        if log is None or not (is_subject(token) and fits(subject)):
            log = self._search(subject, parent)
        if log is not None and len(subject) <= LONGEST_CACHED:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[subject] = log
        return log

    def find_all(self, subjects: Collection[str]) -> set[StreamLog | None]:
        """Return the streams that take these subjects; None among them if no stream takes one."""
        found = set(map(self._known.get, subjects))
        return set(map(self.find_of_many, subjects)) if None in found else found

    def find_of_many(self, subject: str) -> StreamLog | None:
        """Return the same for one of many subjects that end in ids: what is seen only once is not remembered."""
        parent, _, token = subject.rpartition(".")
        log = self._families.get(parent)
        # A token of letters and digits is valid.
        if log is not None and token.isalnum() and subject.isascii() and len(subject) <= _SHORT:
            return log
        return self.find(subject)

    def _search(self, subject: str, parent: str) -> StreamLog | None:
        if not is_subject(subject):
            return None
        found = self._index.match(subject)
        if not found:
            return None
        if len(self._families) >= _LIMIT:
            self._families.clear()
        # Streams' subjects never overlap, so no other filter can match a child of a parent whose children one filter
        # takes. Without this, each subject that ends in an id, and is seen only once, would need a search.
        is_short = 0 < len(parent) <= LONGEST_CACHED
        if is_short and any(is_subset(f"{parent}.*", mine) for mine in found[0].config.subjects):
            self._families[parent] = found[0]
        return found[0]

    def reaches(self, subjects: str) -> bool:
        """Return whether any stream may take a subject that matches a filter."""
        reached = self._reached.get(subjects)
        if reached is None:
            reached = self._reached[subjects] = bool(self._index.overlapping(subjects))
        return reached
