"""Transactions that are held open, and other operations on the store: another key, a fork."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import pelton
from pelton.engine.salvage import recount
from tests.engine.test_fork import forked
from tests.storage.processes import Child
from tests.storage.stores import a_store, last_seq


async def test_another_key_waits_for_the_transaction(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction(timeout=60) as tx:
            await tx.publish("s.1")
            rekeying = asyncio.create_task(jet.rekey("new"))
            publishing = asyncio.create_task(jet.publish("s.2"))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not rekeying.done()
            await tx.publish("s.3")
        await asyncio.gather(rekeying, publishing)
        async with jet.transaction() as tx:
            await tx.publish("s.4")
    assert recount(str(path), b"new") == []
    async with pelton.open(path, key="new") as jet:
        assert await last_seq(jet) == 4
    with pytest.raises(pelton.StoreKeyError):
        await pelton.open(path, key="old")


async def test_another_key_from_within_is_refused(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton", key="old") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        async with jet.transaction(timeout=60) as tx:
            await tx.publish("s.1")
            # Data staged by others waits for this transaction.
            publishing = asyncio.create_task(jet.publish("s.2"))
            await asyncio.sleep(0)
            with pytest.raises(pelton.TransactionError, match="inside its block only"):
                await jet.rekey("new")
            await tx.publish("s.3")
        await publishing
        await jet.rekey("new")
        assert await last_seq(jet) == 3


async def test_another_key_by_another_process_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path, key="old") as jet, pelton.open(path, key="old") as other:
        await jet.create_stream("s", subjects=["s.>"])
        async with other.transaction() as tx:
            await tx.publish("s.1")
        await jet.rekey("new")
        with pytest.raises(pelton.StoreKeyError):
            async with other.transaction() as tx:
                await tx.publish("s.2")
        await jet.publish("s.3")
        assert await last_seq(jet) == 2


async def _fork_in_a_block(pipe: Connection, path: Path) -> None:
    async with pelton.open(path) as jet:
        async with jet.transaction(timeout=60) as tx:
            await tx.publish("s.before")

            async def child(say) -> None:  # type: ignore[no-untyped-def]
                for call in (lambda: tx.publish("s.child"), lambda: tx.sql("SELECT 1"), lambda: jet.publish("s.child")):
                    try:
                        await call()
                    except pelton.PeltonError as error:
                        say(type(error).__name__)
                try:
                    async with jet.transaction() as other:
                        await other.publish("s.child")
                except pelton.PeltonError as error:
                    say(type(error).__name__)
                await jet.close()
                say("closed")

            pid, reading = forked(child)
            with os.fdopen(reading) as lines:
                pipe.send(lines.read().split())
            os.waitpid(pid, 0)
            await tx.publish("s.after")
        pipe.send(await last_seq(jet))


async def test_a_fork_in_the_middle_leaves_it_to_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path, 1)
    with Child(_fork_in_a_block, path) as child:
        words = child.hear()
        assert child.hear() == 3
        child.join()
    assert words == ["StoreForkedError"] * 4 + ["closed"]
    assert recount(str(path)) == []
