"""The folders of staged files."""

import os
import time
from pathlib import Path

import pytest

from pelton.api import NotAStoreError
from pelton.runtime import SystemClock
from pelton.spark.write.staging import BatchId, StagingFolder, file_name

_DAYS_AGO = (1_000_000_000, 1_000_000_000)


def fill(staging: StagingFolder, writer: str, number: int) -> Path:
    path = Path(staging.new_file(BatchId(writer, number), "file"))
    path.write_bytes(b"")
    return path


def test_a_batch_that_is_done_takes_earlier_ones_along(tmp_path: Path) -> None:
    staging = StagingFolder(str(tmp_path / "staged"))
    first, second, third = [fill(staging, "query", number) for number in (1, 2, 10)]
    other = fill(staging, "other", 1)
    staging.remove_batch(BatchId("query", 2))
    assert [path.exists() for path in (first, second, third, other)] == [False, False, True, True]
    staging.remove_batch(BatchId("query", 10))
    staging.remove_batch(BatchId("other", 1))
    assert not (tmp_path / "staged").exists()
    staging.remove_batch(BatchId("other", 1))


def test_what_a_dead_driver_left_goes_after_a_day_unless_something_in_it_is_new(tmp_path: Path) -> None:
    staging = StagingFolder(str(tmp_path / "staged"))
    old, young = fill(staging, "a", 0), fill(staging, "b", 0)
    for part in (old, old.parent, old.parent.parent):
        os.utime(part, _DAYS_AGO)
    for part in (young.parent, young.parent.parent):
        os.utime(part, _DAYS_AGO)
    staging.remove_batch(BatchId("another", 0))
    assert old.exists(), "the clock may be ahead"
    [mark] = (tmp_path / "staged").glob("*.stale")
    for days, left in ((0.9, True), (1.1, False)):
        at = time.time() - days * 86_400
        os.utime(mark, (at, at))
        staging.remove_batch(BatchId("another", 0))
        assert [path.exists() for path in (old, young, mark)] == [left, True, left]


def test_a_clock_that_is_ahead_for_a_moment_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = StagingFolder(str(tmp_path / "staged"))
    files = [fill(staging, "a", 0), fill(staging, "b", 3)]
    real, ahead = SystemClock.now, 0
    monkeypatch.setattr(SystemClock, "now", lambda clock: real() + ahead)
    for days in (3, 0, 3, 3, 0, 30, 0, -3, 0):
        ahead = days * 86_400 * 10**9
        staging.remove_batch(BatchId("another", 0))
        assert all(path.exists() for path in files)
    ahead = 3 * 86_400 * 10**9
    staging.remove_batch(BatchId("another", 0))
    for writer, number in (("a", 0), ("b", 3)):
        staging.remove_batch(BatchId(writer, number))
    staging.remove_batch(BatchId("another", 0))
    assert not (tmp_path / "staged").exists()


def test_what_somebody_else_keeps_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    staging = StagingFolder(str(folder))
    mine = fill(staging, "a", 0)
    precious = [folder / "notes.txt", folder / "mine" / "notes.txt", folder / "a" / "notes.txt"]
    for each in precious:
        each.parent.mkdir(exist_ok=True)
        each.write_text("precious")
    for each in (*precious, folder / "mine"):
        os.utime(each, _DAYS_AGO)
    staging.remove_batch(BatchId("a", 0))
    staging.remove_batch(BatchId("another", 0))
    assert not mine.exists()
    assert [each.read_text() for each in precious] == ["precious"] * 3


def test_nothing_is_staged_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "staged").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAStoreError, match="link"):
        fill(StagingFolder(str(tmp_path / "staged")), "a", 0)
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("text", ["a b", "", "a\r\nb", "a.b", "../a", "é", "\ud800", "a" * 101])
def test_any_text_has_a_name_of_its_own(text: str) -> None:
    name = file_name(text)
    assert name != file_name(text + "x")
    assert name.isascii()
    assert name.isalnum()


def test_plain_texts_are_their_own_names() -> None:
    assert file_name("daily-load_3") == "daily-load_3"
