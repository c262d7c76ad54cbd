"""Streams of a backup restored into a store that is in use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.cli.main import main
from pelton.engine.salvage import recount
from tests.storage.stores import a_store, raw


async def a_rich_store(path: Path, key: str | None = None) -> None:
    """Make a store with a stream of every feature that has its own rows, and consumers in the middle of work."""
    async with pelton.open(path, key=key) as jet:
        await jet.create_stream("other", subjects=["other.>"])
        inbox = await jet.create_stream(
            "inbox", subjects=["in.>"], allow_msg_ttl=True, allow_msg_schedules=True, retention="interest"
        )
        work = await jet.create_stream(
            "work",
            retention="workqueue",
            max_msgs_per_subject=1,
            discard="new",
            discard_new_per_subject=True,
            sources=[{"name": "inbox", "filter_subject": "in.*"}],
        )
        await jet.create_stream("copy", mirror={"name": "inbox"})
        await inbox.create_consumer(durable_name="keeper")
        workers = await work.create_consumer(durable_name="workers", max_ack_pending_per_subject=1)
        await jet.publish_batch([(f"in.{n % 3}", b"%d" % n, {"Nats-Msg-Id": f"m{n}"}) for n in range(30)])
        await jet.publish("in.late", b"", ttl=3600)
        await jet.schedule("in.plan.x", b"", target="in.3", delay=3600)
        await workers.fetch(2, timeout=1)


async def seen(jet: pelton.Jet, names: list[str]) -> dict[str, Any]:
    """Return everything visible of streams and their consumers."""
    found: dict[str, Any] = {}
    for name in names:
        stream = await jet.stream(name)
        info = await stream.info(deleted_details=True, subjects_filter=">")
        consumers = [await (await stream.consumer(one)).info() for one in await stream.consumer_names()]
        found[name] = (
            info.state,
            [(source.lag, source.name) for source in info.sources or ()],
            [(c.name, c.delivered, c.ack_floor, c.num_pending, c.num_ack_pending) for c in consumers],
        )
    return found


_ALL = ["inbox", "work", "copy"]


async def test_streams_are_restored_into_a_store_in_use(tmp_path: Path) -> None:
    first, saved, second = (tmp_path / name for name in ("a.pelton", "saved.pelton", "b.pelton"))
    await a_rich_store(first)
    async with pelton.open(first) as jet:
        before = await seen(jet, _ALL)
        await jet.backup(saved, streams=_ALL)
    await a_store(second, 5)
    told: list[tuple[int, int]] = []
    async with pelton.open(second) as jet, pelton.open(second) as other:
        assert await jet.restore(saved, progress=lambda *so_far: told.append(so_far)) == _ALL
        await asyncio.sleep(0)
        assert told[-1][0] == told[-1][1] > 30
        assert await seen(jet, _ALL) == before == await seen(other, _ALL)
        # It works: waiting messages are moved, and published ones are carried, by whichever process.
        workers = await (await other.stream("work")).consumer("workers")
        (message,) = await workers.fetch(1, timeout=60)
        await message.ack()
        await other.publish("in.new", b"x")
        assert (await (await jet.stream("copy")).info()).state.last_seq == 33
        assert (await jet.publish("in.0", b"", msg_id="m0")).duplicate
    assert recount(str(second)) == []


async def test_under_new_names_beside_the_old_ones(tmp_path: Path) -> None:
    first, saved = tmp_path / "a.pelton", tmp_path / "saved.pelton"
    await a_rich_store(first, "key")
    async with pelton.open(first, key="key") as jet:
        await jet.backup(saved)
        await jet.publish("in.0", b"later")
        names = {name: f"{name}-old" for name in _ALL}
        assert await jet.restore(saved, streams=_ALL, names=names, key="key") == list(names.values())
        old = await jet.stream("work-old")
        assert (old.config.subjects, old.config.sources[0].name) == ((), "inbox-old")
        inbox = await jet.stream("inbox-old")
        assert inbox.config.subjects == ("inbox-old",)
        assert (await inbox.info()).state.last_seq == 32
        assert (await (await jet.stream("inbox")).info()).state.last_seq == 33
        # The same origin once more: nothing of it is taken twice.
        assert (await old.info()).state.messages == (await (await jet.stream("work")).info()).state.messages
    assert recount(str(first), b"key") == []


async def test_a_deleted_stream_comes_back_and_goes_on_from_its_origin(tmp_path: Path) -> None:
    first, saved = tmp_path / "a.pelton", tmp_path / "saved.pelton"
    async with pelton.open(first) as jet:
        await jet.create_stream("inbox", subjects=["in.>"])
        await jet.create_stream("all", sources=[{"name": "inbox"}])
        await jet.publish_batch([("in.x", b"1"), ("in.x", b"2")])
        await jet.backup(saved)
        await jet.delete_stream("all")
        await jet.publish("in.x", b"3")
        await jet.restore(saved, streams=["all"])
        stream = await jet.stream("all")
        async with asyncio.timeout(60):
            while (await stream.info()).state.messages < 3:
                await asyncio.sleep(0.001)
        assert [(await stream.get_message(seq)).data for seq in (1, 2, 3)] == [b"1", b"2", b"3"]
    assert recount(str(first)) == []


async def test_what_cannot_be_restored_changes_nothing(tmp_path: Path) -> None:
    first, saved = tmp_path / "a.pelton", tmp_path / "saved.pelton"
    await a_store(first)
    async with pelton.open(first) as jet:
        await jet.backup(saved)
        for arguments, code in (
            ({}, 10130),
            ({"streams": ["none"]}, 10059),
            ({"names": {"none": "x"}}, 10059),
        ):
            with pytest.raises(pelton.ApiError) as refused:
                await jet.restore(saved, **arguments)  # type: ignore[arg-type]  # of many kinds
            assert refused.value.err_code == code
        await jet.delete_stream("s")
        await jet.create_stream("t", subjects=["s.1"])
        with pytest.raises(pelton.ApiError) as refused:
            await jet.restore(saved)
        assert refused.value.err_code == 10065
        with pytest.raises(pelton.ConfigError):
            await jet.restore(saved, names={"s": "a.b"})
        with raw(saved) as connection:
            connection.execute("UPDATE m_1 SET data=x'00' WHERE seq=2")
        with pytest.raises(pelton.StoreError, match="it is damaged"):
            await jet.restore(saved, names={"s": "fine"})
        with pytest.raises(pelton.StoreSettingsError):
            await jet.restore(first)
        assert await jet.stream_names() == ["t"]
    async with pelton.open("memory:") as jet:
        with pytest.raises(pelton.ConfigError, match="no file"):
            await jet.restore(saved)
    assert recount(str(first)) == []


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, saved = str(tmp_path / "a.pelton"), str(tmp_path / "saved.pelton")
    await a_store(Path(first), 30)
    assert main(["backup", first, saved]) == 0
    assert await asyncio.to_thread(main, ["restore", "--into", saved, first, "--stream", "s=again"]) == 0
    assert "restored again" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["restore", "--into", saved, first]) == 1
    assert main(["restore", saved, str(tmp_path / "new"), "--stream", "s"]) == 1
    assert "--into" in capsys.readouterr().err
    assert main(["verify", first]) == 0
