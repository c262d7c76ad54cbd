"""Damage that anybody has found is remembered for all, until the store is verified without a find."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import metrics, observe
from pelton.api import CorruptMessageError
from pelton.storage.damage import damage_known, damage_verified, note_damage
from tests.storage.stores import raw


async def _damaged_store(path: Path) -> None:
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
        await jet.publish_batch([("s.a", b"payload-%d" % number) for number in range(1, 6)])
    with raw(path) as connection:
        connection.execute("UPDATE m_1 SET data = CAST('pazload-3' AS BLOB) WHERE seq=3")


async def _damaged(path: Path) -> int:
    """Return how many places a process knows that has read none of them."""
    async with pelton.open(path, read_only=True) as jet:
        facts = await observe.health_facts(jet, str(path), (), ())
        text, _ = await metrics.metrics_text(jet, path=str(path))
        is_told = [alarm.kind for alarm in observe.alarms_of(facts)] == ["corrupt"]
        assert (b'pelton_alarm{kind="corrupt"} 1' in text) == is_told == bool(facts.damaged)
        return facts.damaged


async def _read(path: Path) -> None:
    async with pelton.open(path, read_only=True) as jet:
        await (await jet.stream("s")).get_message(3)


async def _read_by_subject(path: Path) -> None:
    async with pelton.open(path) as jet:
        await (await jet.stream("s")).get_messages(3, seq=3)


async def _consume(path: Path) -> None:
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("s")).create_consumer(ack_policy="none")
        assert len(await consumer.fetch(5, no_wait=True)) == 4


async def _verify(path: Path) -> None:
    assert pelton.verify(path)


@pytest.mark.parametrize("find", [_read, _read_by_subject, _consume, _verify])
async def test_whoever_finds_it_tells_all(tmp_path: Path, find: object) -> None:
    path = tmp_path / "a.pelton"
    await _damaged_store(path)
    assert await _damaged(path) == 0
    for _ in range(2):
        with suppress(CorruptMessageError):
            await find(path)  # type: ignore[operator]  # one of the functions above
        assert await _damaged(path) == 1
    pelton.verify(path)
    assert await _damaged(path) == 1
    async with pelton.open(path) as jet:
        await (await jet.stream("s")).delete_message(3)
    assert await _damaged(path) == 1
    assert pelton.verify(path) == []
    assert await _damaged(path) == 0
    assert not os.path.exists(f"{path}-damage")


async def test_a_damaged_configuration(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await _damaged_store(path)
    with raw(path) as connection:
        connection.execute("UPDATE streams SET config = CAST(replace(config, 's.>', 't.>') AS BLOB)")
    assert await _damaged(path) == 1


async def test_a_store_that_is_whole_has_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        await jet.create_stream("s")
    assert pelton.verify(path) == []
    assert os.listdir(tmp_path) == ["a.pelton"]


def test_each_find_counts_once_and_they_are_bounded(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch(mode=0o640)
    for number in [1, 2, 1, 2]:
        note_damage(path, f"find {number}")
    assert len(damage_known(path)) == 2
    assert os.stat(f"{path}-damage").st_mode & 0o777 == 0o640
    note_damage(path, *map(str, range(5000)))
    assert len(damage_known(path)) == 1000
    damage_verified(path, [], damage_known(path))
    assert damage_known(path) == frozenset()


def test_what_is_found_while_a_store_is_verified_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch()
    note_damage(path, "old")
    before = damage_known(path)
    note_damage(path, "meanwhile")
    damage_verified(path, ["found"], before)
    assert len(damage_known(path)) == 2


def _before_next(monkeypatch: pytest.MonkeyPatch, step: str, call: Callable[[], None]) -> None:
    """Let another process do something before the next step of that name."""
    real = getattr(os, step)

    def stepped(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, step, real)
        call()
        return real(*args, **options)

    monkeypatch.setattr(os, step, stepped)


@pytest.mark.parametrize(("kept", "step"), [([], "unlink"), (["kept"], "write"), (["kept"], "replace")])
def test_what_is_found_between_two_steps_of_a_verification_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str], step: str
) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch()
    note_damage(path, "old")
    before = damage_known(path)
    note_damage(path, *kept)
    _before_next(monkeypatch, step, lambda: note_damage(path, "meanwhile"))
    damage_verified(path, [], before)
    after = damage_known(path)
    note_damage(path, "meanwhile", *kept)
    assert after == damage_known(path)
    assert len(after) == 1 + len(kept)
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "a.pelton-damage"]


def test_a_find_stays_whose_file_is_removed_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch()
    note_damage(path, "old")
    before = damage_known(path)
    _before_next(monkeypatch, "write", lambda: damage_verified(path, [], before))
    note_damage(path, "new")
    assert len(damage_known(path)) == 1
    # Two that verify at once: whoever comes second has nothing to do, and removes nothing.
    before = damage_known(path)

    def both() -> None:
        note_damage(path, "other")
        damage_verified(path, [], before)

    _before_next(monkeypatch, "unlink", both)
    damage_verified(path, [], before)
    assert len(damage_known(path)) == 1


@pytest.mark.parametrize("content", [b"no note of ours\nat all", b"0123abcd\n0123", b"", b"\0" * 100_000])
def test_what_is_no_line_counts_as_one_find_until_the_store_is_verified(tmp_path: Path, content: bytes) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch()
    Path(f"{path}-damage").write_bytes(content)
    whole = content.startswith(b"0123abcd")
    assert len(damage_known(path)) == 1 + whole
    before = damage_known(path)
    note_damage(path, "more")
    if len(content) < 9000:
        assert len(damage_known(path)) >= 1 + whole
    damage_verified(path, [], before)
    damage_verified(path, [], damage_known(path))
    assert damage_known(path) == frozenset()
    assert os.listdir(tmp_path) == ["a.pelton"]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_link_a_pipe_or_a_folder_is_no_note(tmp_path: Path, kind: str) -> None:
    path, other = str(tmp_path / "a.pelton"), tmp_path / "other"
    Path(path).touch()
    other.write_bytes(b"0123abcd\n")
    if kind == "folder":
        os.mkdir(f"{path}-damage")
    elif kind == "link":
        os.symlink(other, f"{path}-damage")
    else:
        os.mkfifo(f"{path}-damage")
    note_damage(path, "find")
    assert damage_known(path) == frozenset()
    damage_verified(path, ["find"], frozenset({b"0123abcd\n"}))
    assert other.read_bytes() == b"0123abcd\n"
    assert len(os.listdir(tmp_path)) == 3


def test_a_note_that_may_not_be_read_counts_and_a_full_disk_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.pelton")
    Path(path).touch()
    note_damage(path, "old", "kept")

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    def refused(*args: Any) -> int:
        raise PermissionError(errno.EACCES, "not yours")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        damage_verified(path, ["kept"], damage_known(path))
    assert len(damage_known(path)) == 2
    assert sorted(os.listdir(tmp_path)) == ["a.pelton", "a.pelton-damage"]
    monkeypatch.setattr(os, "open", refused)
    assert len(damage_known(path)) == 1


async def test_a_new_store_of_the_same_name_does_not_inherit_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await _damaged_store(path)
    assert pelton.verify(path)
    os.rename(path, tmp_path / "moved.pelton")
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
    assert await _damaged(path) == 0
    pelton.backup(path, tmp_path / "backup.pelton")
    target = tmp_path / "restored.pelton"
    Path(f"{target}-damage").write_bytes(b"0123abcd\n")
    pelton.restore(tmp_path / "backup.pelton", target)
    assert await _damaged(target) == 0


def test_on_a_full_disk_that_there_is_some_is_remembered(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pelton")
    Path(f"{path}-damage").touch()
    assert len(damage_known(path)) == 1


def test_whoever_cannot_write_it_fails_for_nothing_else(tmp_path: Path) -> None:
    note_damage(str(tmp_path / "none" / "a.pelton"), "find")
    note_damage(str(tmp_path / "a.pelton"), "there is no store")
    assert os.listdir(tmp_path) == []
