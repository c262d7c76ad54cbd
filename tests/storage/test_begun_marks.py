"""Marks of deliveries that were begun: seen by others, also when their process is gone, and removed in the end."""

import os
from pathlib import Path

import pytest

from pelton.storage import BegunMarks, StreamMarks


def marks(path: Path) -> BegunMarks:
    path.touch()
    return BegunMarks(str(path), folder=True)


def files(path: Path) -> list[str]:
    return [name for name in os.listdir(f"{path}-wake") if name.startswith("begun-")]


def test_what_one_has_marked_another_finds(tmp_path: Path) -> None:
    path = tmp_path / "store"
    one, other = marks(path), marks(path)
    for seq in range(1, 1000):
        StreamMarks(one, 7).mark(seq, 2)
    StreamMarks(other, 7).mark(5, 1)
    StreamMarks(other, 8).mark(5, 9)
    for seq in range(10, 1000):
        StreamMarks(one, 7).unmark([(seq, 2)])
    assert StreamMarks(other, 7).numbers_by_message() == {seq: {1, 2} if seq == 5 else {2} for seq in range(1, 10)}
    one.close()
    other.close()


def test_the_file_of_one_that_is_gone_stays_until_nothing_is_pending(tmp_path: Path) -> None:
    path = tmp_path / "store"
    alive, gone = marks(path), marks(path)
    StreamMarks(alive, 1).mark(1, 1)
    StreamMarks(gone, 1).mark(2, 1)
    gone.close()
    alive.sweep(lambda stream, seq: (stream, seq) == (1, 2))
    assert StreamMarks(alive, 1).numbers_by_message() == {1: {1}, 2: {1}}
    alive.sweep(lambda stream, seq: False)
    assert StreamMarks(alive, 1).numbers_by_message() == {1: {1}}
    StreamMarks(alive, 1).unmark([(1, 1)])
    alive.close()
    assert not os.path.exists(f"{path}-wake")


def test_where_no_file_can_be_made_the_process_remembers(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Path(f"{path}-wake").touch()
    one = marks(path)
    StreamMarks(one, 1).mark(1, 1)
    assert StreamMarks(marks(path), 1).numbers_by_message() == {1: {1}}
    StreamMarks(one, 1).unmark([(1, 1)])
    assert StreamMarks(one, 1).numbers_by_message() == {}


def test_the_copy_of_a_process_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    one = marks(path)
    StreamMarks(one, 1).mark(1, 1)
    if not (child := os.fork()):
        StreamMarks(one, 1).unmark([(1, 1)])
        StreamMarks(one, 1).mark(2, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert StreamMarks(one, 1).numbers_by_message() == {1: {1}}
    assert len(files(path)) == 1


def test_a_full_disk_costs_the_marks_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "store"
    one = marks(path)
    monkeypatch.setattr(os, "pwrite", full)
    StreamMarks(one, 1).mark(1, 1)
    assert StreamMarks(one, 1).numbers_by_message() == {1: {1}}
    StreamMarks(one, 1).unmark([(1, 1)])
    one.close()
