"""Limits of one opener: which usage they count, and their effect on other openers of the file."""

from pathlib import Path

import pytest

import pelton
from pelton.api.config import Storage
from pelton.engine.session.catalogue import Account

ONE = pelton.AccountLimits(max_streams=1, max_storage=1000)


async def test_limits_are_those_of_the_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, limits=ONE) as few, pelton.open(path) as all_of_it:
        await few.create_stream("a")
        with pytest.raises(pelton.LimitError):
            await few.create_stream("b")
        await all_of_it.create_stream("b")
        assert (await all_of_it.account_info()).limits == pelton.AccountLimits()
        assert (await few.account_info()).limits == ONE


async def test_what_another_opening_stores_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, limits=ONE) as few, pelton.open(path) as all_of_it:
        stream = await all_of_it.create_stream("a")
        await few.publish("a", bytes(500))
        await all_of_it.publish("a", bytes(400))
        with pytest.raises(pelton.LimitError):
            await few.publish("a", bytes(100))
        await stream.purge()
        assert (await few.publish("a", bytes(900))).seq == 3


async def test_a_batch_is_stored_up_to_what_there_is_room_for() -> None:
    async with pelton.open("memory:", limits=ONE) as jet:
        stream = await jet.create_stream("a", subjects=["a.*"])
        with pytest.raises(pelton.LimitError):
            await jet.publish_batch([(f"a.{n}", bytes(300)) for n in range(5)])
        assert (await stream.info()).state.messages == 3


async def test_what_all_streams_store_is_counted_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = 0
    count = Account._stored_bytes

    def count_once(self: Account, storage: Storage) -> int:
        nonlocal counts
        counts += 1
        return count(self, storage)

    monkeypatch.setattr(Account, "_stored_bytes", count_once)
    async with pelton.open("memory:", limits=pelton.AccountLimits(max_storage=10_000)) as jet:
        await jet.create_stream("a", subjects=["a.*"], max_msgs=3)
        await jet.publish_batch([(f"a.{n}", bytes(30)) for n in range(20)])
        assert counts == 1
        # What the limit of the stream removes makes room for the next one.
        for _ in range(5):
            await jet.publish_batch([(f"a.{n}", bytes(300)) for n in range(20)])
        assert counts == 6


async def test_a_clone_for_another_loop_keeps_them(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton", limits=ONE) as jet:
        clone = jet.backend.clone()  # type: ignore[attr-defined]  # the engine's
        info = await clone.call(pelton.AccountInfoRequest())
        await clone.close()
        assert info.limits == ONE


def test_they_mean_nothing_to_a_cluster() -> None:
    with pytest.raises(pelton.ConfigError, match="limits"):
        pelton.open("nats://localhost", limits=ONE)
