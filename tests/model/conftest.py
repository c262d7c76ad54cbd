"""Programs are short: their messages and subjects are counted after few, so that every way to count them is met.

Their purges are done in portions of two, and what has expired goes in such.
"""

import pytest

from pelton.engine.verbs import streams
from pelton.streams import log, remover, state, subject_rows


@pytest.fixture(autouse=True)
def _subjects_are_counted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", 7)
    monkeypatch.setattr(subject_rows, "FEW_SUBJECTS", 2)


@pytest.fixture(autouse=True)
def _rows_of_streams_are_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_BEHIND", 4)


@pytest.fixture(autouse=True)
def _portions_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PORTION_S", -1)
    monkeypatch.setattr(remover, "_AT_ONCE", 2)
    monkeypatch.setattr(remover, "_LOOKED_AT", 4)
    monkeypatch.setattr(remover, "_FEW", 2)
    monkeypatch.setattr(log, "_CHUNK", 2)
    monkeypatch.setattr(log, "_MARKED", 2)
