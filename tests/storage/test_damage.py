"""Damage that anybody has found is remembered for all, until the store is verified without a find."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

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


def test_on_a_full_disk_that_there_is_some_is_remembered(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pelton")
    Path(f"{path}-damage").touch()
    assert len(damage_known(path)) == 1


def test_whoever_cannot_write_it_fails_for_nothing_else(tmp_path: Path) -> None:
    note_damage(str(tmp_path / "none" / "a.pelton"), "find")
    note_damage(str(tmp_path / "a.pelton"), "there is no store")
    assert os.listdir(tmp_path) == []
