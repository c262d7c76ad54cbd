"""The candidates of ``pelton elect``: processes that are started, watched, killed and started again.

``python -m pelton.cli.candidates SETTINGS`` (JSON) is one of them. It reports its events on standard output, a line
each, and ends when its input does: with its parent process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from pelton.connect import open
from pelton.locks import ElectionOptions, Term
from pelton.runtime import Runtime


class CandidateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The election, and the candidate's name; ``ttl`` None: the bucket's. ``splay`` is a share of the TTL."""

    address: str
    bucket: str
    key: str
    name: str
    ttl: float | None
    splay: float
    strict: bool


class Said(msgspec.Struct, frozen=True):
    """An event of a candidate: ``campaign`` (in a state), ``won`` (a token), ``lost`` or ``failed`` (why)."""

    what: str
    text: str = ""
    token: int = 0


def say(what: str, text: str = "", token: int = 0) -> None:
    """Report an event to the parent process."""
    sys.stdout.buffer.write(msgspec.json.encode(Said(what, text, token)) + b"\n")
    sys.stdout.buffer.flush()


async def stand(settings: CandidateSettings) -> None:
    """Stand for election until stopped; ``d`` on the input makes it step down."""

    def on_won(term: Term) -> None:
        say("won", token=term.token)

    def on_lost(term: Term) -> None:
        say("lost", term.reason, term.token)

    async with open(settings.address) as jet:
        options = ElectionOptions(
            name=settings.name,
            bucket=settings.bucket,
            splay=settings.splay,
            strict=settings.strict,
            on_won=on_won,
            on_lost=on_lost,
            on_campaign=lambda state: say("campaign", state),
        )
        if settings.ttl is not None:
            options["ttl"] = settings.ttl
        election = jet.elect(settings.key, **options)
        loop = asyncio.get_running_loop()

        def on_input() -> None:
            if os.read(sys.stdin.fileno(), 1) == b"d":
                election.step_down()
            else:
                loop.remove_reader(sys.stdin)
                election.stop()

        loop.add_reader(sys.stdin, on_input)
        loop.add_signal_handler(signal.SIGTERM, election.stop)
        # Ctrl-C goes to the whole process group; the parent process decides when to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("campaign", "candidate")
        await election.run()


def main() -> None:
    """Run it, and report what went wrong."""
    logging.basicConfig(level=logging.CRITICAL)
    try:
        asyncio.run(stand(msgspec.json.decode(sys.argv[1], type=CandidateSettings)))
    except Exception as error:  # whatever it is, the parent process shows it
        say("failed", str(error) or type(error).__name__)


# --- the candidates' processes and their states: started, watched, killed, started again

AGAIN_S: Final = 2.0
_END_S: Final = 10.0


@dataclass
class CandidateProcess:
    """The state of one candidate."""

    settings: CandidateSettings
    process: asyncio.subprocess.Process | None = None
    state: str = "starting"
    token: int = 0
    since: float = 0.0
    terms: int = 0
    note: str = ""

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid


class CandidatePool:
    """All candidates. ``tell`` is called with a line for each thing that happens, ``change`` after it."""

    failure: str

    def __init__(
        self,
        everybody: list[CandidateSettings],
        runtime: Runtime,
        tell: Callable[[str], None],
        change: Callable[[], None],
    ) -> None:
        self.members: list[CandidateProcess] = [CandidateProcess(settings) for settings in everybody]
        self._runtime = runtime
        self._tell = tell
        self._change = change
        self._tasks: list[asyncio.Task[None]] = []
        self._left: tuple[str, float] | None = None
        self._is_ending = False
        self.failure = ""

    async def begin(self) -> None:
        """Start every process."""
        for member in self.members:
            self._tasks.append(self._runtime.spawn(self._keep(member), member.settings.name))

    async def end(self) -> None:
        """Stop every process gracefully; kill those that do not end."""
        self._is_ending = True
        for member in self.members:
            if member.process is not None and member.process.stdin is not None:
                member.process.stdin.close()
        _, late = await asyncio.wait(self._tasks, timeout=_END_S)
        for member in self.members if late else ():
            self._signal(member, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    @property
    def leader(self) -> CandidateProcess | None:
        """The last known leader."""
        return next((member for member in self.members if member.state == "leader"), None)

    def kill_leader(self) -> None:
        """Kill the leader, as a power cut would."""
        leader = self.leader
        if leader is not None:
            self._left = ("killed", self._runtime.clock.monotonic())
            self._set(leader, "killed", "SIGKILL")
            self._tell(f"{leader.settings.name}: killed while it led")
            self._signal(leader, signal.SIGKILL)
            self._change()

    def step_down(self) -> None:
        """Ask the leader to step down."""
        leader = self.leader
        if leader is not None and leader.process is not None and leader.process.stdin is not None:
            self._left = ("asked to step down", self._runtime.clock.monotonic())
            leader.process.stdin.write(b"d")

    async def _keep(self, member: CandidateProcess) -> None:
        while not self._is_ending:
            await self._live(member)
            if self._is_ending or self.failure:
                break
            await self._runtime.clock.sleep(AGAIN_S)
            self._set(member, "starting", "again")
            self._change()

    async def _live(self, member: CandidateProcess) -> None:
        process = member.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pelton.cli.candidates",
            msgspec.json.encode(member.settings).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._note(member, msgspec.json.decode(line, type=Said))
                self._change()
        finally:
            self._signal(member, signal.SIGKILL)
            await process.wait()
            member.process = None
            if member.state != "failed":
                self._set(member, "gone", member.note)
            self._change()

    def _note(self, member: CandidateProcess, said: Said) -> None:
        if member.state == "killed":
            return
        name = member.settings.name
        if said.what == "won":
            self._set(member, "leader", self._taken_over())
            member.token, member.terms = said.token, member.terms + 1
            self._tell(f"{name}: became leader, token {said.token}{', ' * bool(member.note)}{member.note}")
        elif said.what == "lost":
            self._set(member, "candidate", said.text)
            self._tell(f"{name}: lost leadership: {said.text}")
        elif said.what == "failed":
            self.failure = said.text
            self._set(member, "failed", said.text)
        elif member.state != said.text:
            self._set(member, said.text, member.note)

    def _taken_over(self) -> str:
        left, self._left = self._left, None
        if left is None:
            return ""
        how, when = left
        return f"{self._runtime.clock.monotonic() - when:.3f} s after the one before was {how}"

    def _set(self, member: CandidateProcess, state: str, note: str) -> None:
        member.state, member.note, member.since = state, note, self._runtime.clock.monotonic()

    def _signal(self, member: CandidateProcess, number: signal.Signals) -> None:
        # Not Process.send_signal: it reaps a dead process, and asyncio misses its end.
        if member.process is not None and member.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process.pid, number)


if __name__ == "__main__":
    main()
