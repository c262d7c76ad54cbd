"""The process that maintains the store during the storm, in ways that affect all the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import apsw

import pelton
from pelton.engine import Engine
from tests.storm import plan
from tests.storm.cast import Player
from tests.storm.plan import Place

_CHORES: Final = (*["purge"] * 4, *["remove"] * 2, *["delete"] * 5, *["checkpoint"] * 3, "backup", "rekey", "verify")
_KEPT_BACKUPS: Final = 3


async def caretaker(pipe: Connection, place: Place, who: str, seed: int) -> None:
    """Purge, delete, checkpoint the WAL, back up, exchange the key and verify, in any order."""
    keeper = _Caretaker(pipe, place, who, seed)
    await keeper.play(keeper.chore)


class _Caretaker(Player):
    async def chore(self, jet: pelton.Jet) -> None:
        name = self.random.choice(_CHORES)
        if name == "rekey" and not self.place.encrypted:
            return
        await getattr(self, name)(jet)
        self.pipe.send(f"chores: {name}")
        await asyncio.sleep(self.random.uniform(0, 0.2))

    async def purge(self, jet: pelton.Jet) -> None:
        stream = await jet.stream("swept")
        last = (await stream.info()).state.last_seq
        upto = max(last + 1 - self.random.randrange(30), 1)
        subject = f"swept.{self.random.randrange(6)}" if self.random.random() < 0.5 else ""
        self.notes.say("purging", "swept", subject, upto)
        await stream.purge(filter=subject, seq=upto)
        self.notes.say("purged", "swept", subject, upto)

    async def remove(self, jet: pelton.Jet) -> None:
        stream = await jet.stream("swept")
        state = (await stream.info()).state
        if state.messages:
            self.notes.say("removing", "swept", number=state.last_seq)
            with suppress(pelton.ApiError):
                await stream.delete_message(state.last_seq)
                self.notes.say("removed", "swept", number=state.last_seq)

    async def delete(self, jet: pelton.Jet) -> None:
        stream, name = self.random.choice(list(plan.REMADE))
        self.notes.say("deleting", stream)
        with suppress(pelton.ConsumerNotFoundError):
            await (await jet.stream(stream)).delete_consumer(name)
            self.notes.say("deleted", stream)

    async def checkpoint(self, jet: pelton.Jet) -> None:
        assert isinstance(jet.backend, Engine)
        kind = self.random.choice(("PASSIVE", "FULL", "TRUNCATE"))
        # Another process may be doing the same, or have exchanged the key: the next operation reports it.
        with suppress(apsw.Error):
            jet.backend.session.db.connection.execute(f"PRAGMA wal_checkpoint({kind})")

    async def backup(self, jet: pelton.Jet) -> None:
        folder = self.place.folder / "backups"
        for old in sorted(folder.glob("*.pelton"), key=_age)[:-_KEPT_BACKUPS]:
            old.unlink(missing_ok=True)
        path = folder / f"{self.record.who}-{self.random.randrange(1 << 30)}.pelton"
        self.notes.say("backing", name=path.name)
        await jet.backup(path)
        self.notes.say("backed", name=path.name)

    async def rekey(self, jet: pelton.Jet) -> None:
        key = f"{self.record.who}-{self.random.randrange(1 << 30)}"
        self.place.add_key(key)
        await jet.rekey(key)
        self.key = key

    async def verify(self, jet: pelton.Jet) -> None:
        found = await asyncio.to_thread(pelton.verify, self.place.path, self.key)
        for problem in found:
            self.notes.say("broken", name=f"verify: {problem}")


def _age(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
