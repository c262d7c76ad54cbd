"""Streams of a cluster backed up and restored by its servers."""

from pathlib import Path

import pytest

import pelton
from tests.kit.nats_server import nats_server


async def test_streams_are_backed_up_and_restored(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with nats_server(tmp_path / "nats") as server:
        async with pelton.open(server.url) as jet:
            stream = await jet.create_stream("S", subjects=["s.>"])
            await jet.create_stream("T")
            # Digits that do not compress: several chunks.
            await jet.publish_batch([("s.x", bytes((n * k * k) % 251 for k in range(2000))) for n in range(300)])
            consumer = await stream.create_consumer(durable_name="c")
            await (await consumer.fetch(1, timeout=60))[0].ack()
            await jet.backup(tmp_path / "all", progress=lambda *so_far: told.append(so_far))
            assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["S", "T"]
            assert told
            assert await jet.restore(tmp_path / "all", streams=["S"], names={"S": "again"}) == ["again"]
            again = await jet.stream("again")
            assert (again.config.subjects, (await again.info()).state.messages) == (("again",), 300)
            await jet.delete_stream("S")
            await jet.delete_stream("T")
            assert await jet.restore(tmp_path / "all") == ["S", "T"]
            stream = await jet.stream("S")
            info = await (await stream.consumer("c")).info()
            assert ((await stream.info()).state.messages, info.ack_floor.stream_seq) == (300, 1)


async def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        async with pelton.open(server.url) as jet, pelton.open(tmp_path / "a.pelton") as store:
            for one in (jet, store):
                await one.create_stream("S", subjects=["s.>"])
            await jet.backup(tmp_path / "folder")
            await store.backup(tmp_path / "file")
            with pytest.raises(pelton.ConfigError, match="carry the streams over with feed"):
                await store.restore(tmp_path / "folder")
            with pytest.raises(pelton.ConfigError, match="carry its streams over with feed"):
                await jet.restore(tmp_path / "file")
            with pytest.raises(pelton.ConfigError, match="exists already"):
                await jet.backup(tmp_path / "folder")
            with pytest.raises(pelton.ConfigError, match="no key"):
                await jet.restore(tmp_path / "folder", key="k")
            for name, call in (("none", jet.backup), ("none", jet.restore)):
                with pytest.raises(pelton.StreamNotFoundError):
                    await call(tmp_path / ("new" if call == jet.backup else "folder"), streams=[name])  # type: ignore[operator]  # either
            assert not (tmp_path / "new").exists()
            assert not (tmp_path / "new-unfinished").exists()
            precious = tmp_path / "new-unfinished" / "S" / "notes.txt"
            precious.parent.mkdir(parents=True)
            precious.write_text("precious")
            with pytest.raises(pelton.ConfigError, match="new-unfinished"):
                await jet.backup(tmp_path / "new")
            assert precious.read_text() == "precious"
            with pytest.raises(pelton.ApiError) as refused:
                await jet.restore(tmp_path / "folder")
            assert refused.value.err_code == 10130
