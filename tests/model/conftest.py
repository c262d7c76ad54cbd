"""Programs are short: their subjects are counted after few messages, so that every way to count them is met."""

import pytest

from pelton.streams import subject_rows


@pytest.fixture(autouse=True)
def _subjects_are_counted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", 7)
    monkeypatch.setattr(subject_rows, "FEW_SUBJECTS", 2)
