"""A standby on another host, of a file behind ``pelton serve``: the same bytes as beside the store."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConfigError, PeltonError, ServerPermissionError, StoreStandbyError
from pelton.engine.salvage import recount
from pelton.moving import follow, promote, standby_status
from pelton.moving.promotion import open_writer
from pelton.storage import Fault
from pelton.storage.standby import StandbyWriter
from pelton.storage.store_file import note_of
from pelton.storage.troubles import standby_lags
from tests.kit.nats_server import nats_server
from tests.kit.served import ServedStore, served_store
from tests.moving.test_copy import make_shop
from tests.moving.test_standby import contents, fold_log, last_seqs

CONFIG = """
authorization {
  users: [
    {user: all, password: p}
    {user: named, password: p, permissions: {publish: ["$PELTON.STANDBY", "$JS.API.INFO"], subscribe: "_INBOX.>"}}
    {user: wide, password: p, permissions: {publish: ">", subscribe: "_INBOX.>"}}
  ]
}
"""


class Remote:
    """A store behind a server, and its standby here."""

    def __init__(self, folder: Path, server: ServedStore) -> None:
        self.server = server
        self.store, self.standby = str(folder / "shop.pelton"), str(folder / "standby.pelton")

    def address(self, login: str = "all:p") -> str:
        return self.server.url.replace("//", f"//{login}@")

    def writer(self, login: str = "all:p") -> Any:
        return closing(open_writer(self.address(login), self.standby, None))

    def check(self) -> None:
        assert contents(self.standby, None) == contents(self.store, None)
        assert recount(self.standby) == []


def in_a_child(writer: StandbyWriter) -> None:
    """A forked child gets an error, and takes nothing from its parent."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.turn()
        except (Fault, PeltonError) as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.turn()


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[Remote]:
    await make_shop(str(tmp_path / "shop.pelton"))
    (tmp_path / "pelton.conf").write_text(CONFIG)
    with served_store(tmp_path / "shop.pelton", ("-c", str(tmp_path / "pelton.conf"))) as server:
        yield Remote(tmp_path, server)


async def load(address: str, acknowledged: list[int]) -> None:
    with suppress(PeltonError):
        async with pelton.open(address, patience=1) as jet:
            while True:
                acknowledged.append((await jet.publish("load", b"")).seq)


async def test_it_is_followed_cut_off_and_promoted(remote: Remote) -> None:
    async with pelton.open(remote.address()) as jet:
        await jet.create_stream("more", subjects=["more", "load"])
        with remote.writer("named:p") as writer:
            assert writer.turn() is True
            remote.check()
            assert writer.turn() is False
            in_a_child(writer)
            for size in (10, 900_000, 5000):
                await asyncio.gather(*(jet.publish("more", b"x" * size) for _ in range(5)))
                fold_log(remote.store, None, "FULL")
                writer.turn()
                remote.check()
        with remote.writer() as writer:
            await jet.publish("more", b"")
            assert writer.turn() is True
        with closing(open_writer(remote.store, remote.standby + "-too", None)) as beside:
            beside.turn()
            in_a_child(beside)
        with pytest.raises(ServerPermissionError, match="by name"), remote.writer("wide:p"):
            pass
        assert standby_status(remote.standby, source=remote.address()).lag_messages == 0
        await jet.publish("more", b"last")
        assert standby_status(remote.standby, source=remote.address()).lag_messages == 1
        with pytest.raises(ConfigError, match="is not the store"):
            standby_status(remote.standby, source="nats://other:4222")
    assert "all:p" not in str(note_of(remote.standby))
    acknowledged: list[int] = []
    loading = asyncio.ensure_future(load(remote.address(), acknowledged))
    while len(acknowledged) < 10:
        await asyncio.sleep(0)
    assert (await promote(remote.standby, source=remote.address())).is_complete
    await loading
    async with pelton.open(remote.standby) as jet:
        for seq in acknowledged:
            assert (await (await jet.stream("more")).get_message(seq)).subject == "load"
        assert (await (await jet.stream("more")).get_last_message("more")).data == b"last"
    with pytest.raises(StoreStandbyError, match="replaced"):
        async with pelton.open(remote.store):
            pass
    assert remote.server.wait() == 1
    assert "replaced" in remote.server.log
    assert "Traceback" not in remote.server.log


async def test_a_cluster_follows_it_and_takes_its_place(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = Path(remote.store).parent / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    copied, loop, acknowledged = asyncio.Event(), asyncio.get_running_loop(), list[int]()
    with nats_server(caches.parent / "server") as cluster:
        async with pelton.open(remote.address()) as jet:
            await jet.create_stream("more", subjects=["more", "load"])

        def begin() -> asyncio.Future[None]:
            copied.clear()
            on_copied = lambda: loop.call_soon_threadsafe(copied.set)  # noqa: E731
            return asyncio.ensure_future(follow(remote.address(), cluster.url, on_copied=on_copied))

        following = begin()
        await copied.wait()
        remote.server.kill()
        await asyncio.to_thread(remote.server.start)
        following.cancel()
        await asyncio.wait([following])
        following = begin()
        await copied.wait()
        [lag] = standby_lags(remote.store, last_seqs(remote.store), time.time_ns())
        assert (lag.standby, lag.messages) == (cluster.url, 0)
        assert standby_status(cluster.url, source=remote.address()).lag_messages == 0
        loading = asyncio.ensure_future(load(remote.address(), acknowledged))
        while len(acknowledged) < 10:
            await asyncio.sleep(0)
        assert (await promote(cluster.url, source=remote.address())).is_complete
        await loading
        with pytest.raises(StoreStandbyError):
            await following
        async with pelton.open(cluster.url) as new, pelton.open(remote.store, read_only=True) as old:
            for name in await old.stream_names():
                states = [(await (await jet.stream(name)).info()).state for jet in (old, new)]
                assert states[0].messages == states[1].messages, name
            assert states[0].messages
            assert (await (await new.stream("more")).info()).state.messages >= len(acknowledged)
    assert not list(caches.rglob("*.pelton"))
    assert remote.server.wait() == 1


@pytest.mark.parametrize("stopped", [False, pytest.param(True, id="stopped")])
async def test_it_goes_on_after_kills_cuts_and_a_new_file(remote: Remote, stopped: bool) -> None:
    changed, loop = asyncio.Event(), asyncio.get_running_loop()
    following = asyncio.ensure_future(
        follow(remote.address(), remote.standby, on_copied=lambda: loop.call_soon_threadsafe(changed.set))
    )

    async def caught_up() -> None:
        wanted = last_seqs(remote.store)
        while not os.path.exists(remote.standby) or last_seqs(remote.standby) < wanted:
            changed.clear()
            waiting = asyncio.ensure_future(changed.wait())
            await asyncio.wait([waiting, following], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if following.done():
                following.result()

    async def publish() -> None:
        async with pelton.open(remote.address()) as jet:
            await asyncio.gather(*(jet.publish("orders.1", b"x" * 2000) for _ in range(100)))

    await publish()
    await caught_up()
    remote.server.kill()
    await asyncio.to_thread(remote.server.start)
    await publish()
    await caught_up()
    assert await asyncio.to_thread(remote.server.stop) == 0
    pelton.compact(remote.store)
    await asyncio.to_thread(remote.server.start)
    await publish()
    await caught_up()
    if stopped:
        # The session lapses, and the log may begin anew.
        remote.server.signal(signal.SIGSTOP)
        await asyncio.sleep(25)
        remote.server.signal(signal.SIGCONT)
        await publish()
        await caught_up()
    following.cancel()
    await asyncio.wait([following])
    with remote.writer() as writer:
        writer.turn()
    remote.check()
