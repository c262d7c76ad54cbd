"""The last sequences of many subjects at once: what the conditions of a bulk of messages are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, product
from typing import Final

from pelton.streams.filter_lookup import Spots
from pelton.streams.reader import Reader
from pelton.streams.state import StreamState
from pelton.streams.subject_bounds import SubjectBounds

# With fewer subjects below the same beginnings, each is looked up: to ask first whether there are any costs as much.
_FEW: Final = 8


class LastLookup:
    """Looks subjects of one stream up."""

    def __init__(self, state: StreamState, reader: Reader) -> None:
        self._state = state
        self._bounds = SubjectBounds(state.db, state.id)
        self._reader = reader

    def of(self, wanted: Mapping[Spots, list[str]]) -> dict[str, int]:
        """Return the last sequences of those subjects that have messages: every token at each of its spots.

        There may be others among them.
        """
        if not wanted:
            return {}
        state = self._state
        state.write_rows()
        bounds = state.subjects.counted_lasts(self._likely(wanted))
        newer = state.subjects.newer(state.last)
        for subject in _present(wanted, newer):
            bounds[subject] = max(bounds.get(subject, 0), newer[subject].last)
        if not bounds:
            return {}
        # A subject's last message may have been removed since.
        there = state.table.subjects_at(bounds.values())
        exact = (
            (subject, seq if there.get(seq) == subject else self._reader.last_seq_of(subject))
            for subject, seq in bounds.items()
        )
        return {subject: seq for subject, seq in exact if seq}

    def _likely(self, wanted: Mapping[Spots, list[str]]) -> list[str]:
        """Return the subjects that may be counted: at most spots there is nothing between the first and the last."""
        likely: list[str] = []
        for spots, tokens in wanted.items():
            first, last = min(tokens), max(tokens)
            for spot in spots:
                if len(tokens) < _FEW or self._bounds.has_within(spot + first, spot + last):
                    likely += map(spot.__add__, tokens)
        return likely


def _present(wanted: Mapping[Spots, list[str]], newer: Mapping[str, object]) -> Iterable[str]:
    """Return those of the uncounted subjects that are wanted, and maybe others: by the shorter of two ways."""
    if not newer:
        return ()
    if sum(len(spots) * len(tokens) for spots, tokens in wanted.items()) <= len(newer):
        pairs = chain.from_iterable(product(spots, tokens) for spots, tokens in wanted.items())
        return [subject for spot, token in pairs if (subject := spot + token) in newer]
    tokens = set(chain.from_iterable(wanted.values()))
    return [subject for subject in newer if subject[subject.rfind(".") + 1 :] in tokens]
