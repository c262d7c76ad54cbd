"""Plays cases on both servers, several at once, and looks after the served one meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from tests.fuzz.compare import differences
from tests.fuzz.play import PLAYS, Case
from tests.fuzz.sides import ACCOUNTS, Pair

# How often a kind is played, of a hundred cases.
_SHARES: Final = {
    "commands": 42,
    "frames": 17,
    "requests": 30,
    "wild": 3,
    "logins": 4,
    "archives": 3,
    "configurations": 1,
    "hubs": 2,
}
_ROUND: Final = 200
_MOST_FOUND: Final = 30
_TRIES: Final = 3
_ANSWER_S: Final = 60.0


class Fuzzing:
    """What was played, and what was found."""

    def __init__(self, pair: Pair, *, is_telling: bool = False) -> None:
        self._pair = pair
        self._is_telling = is_telling
        self.found: list[str] = []
        self.inputs: Counter[str] = Counter()
        self.once: list[Case] = []
        self._suspects: list[Case] = []
        self._waits: list[float] = []
        self._begun = time.monotonic()

    def play(self, cases: Sequence[Case]) -> None:
        """Play these cases."""
        asyncio.run(self._play_round(cases))

    def play_many(self, number: int, seed: int, kinds: Sequence[str]) -> None:
        """Play cases with so many inputs in all; the seed says which ones."""
        endless = self._cases(seed, kinds)
        while self.inputs.total() < number and len(self.found) < _MOST_FOUND:
            self.play(list(itertools.islice(endless, _ROUND)))
            if grown := self._pair.growth():
                self._tell(f"{grown}, after {self.inputs.total():,} inputs of seed {seed}")
                return
            if self._is_telling:
                print(self.report(), flush=True)

    @staticmethod
    def _cases(seed: int, kinds: Sequence[str]) -> Iterator[Case]:
        random, begin = Random(seed), seed * 1_000_000_000
        shares = [_SHARES[kind] for kind in kinds]
        return (Case(random.choices(kinds, shares)[0], begin + number) for number in itertools.count())

    async def _play_round(self, cases: Sequence[Case]) -> None:
        left, over = iter(cases), asyncio.Event()
        watching = asyncio.ensure_future(self._watch(over))
        await asyncio.gather(*(self._play_as(f"u{number}", left) for number in range(ACCOUNTS)))
        over.set()
        await watching
        # What differs only beside other cases, and not alone, was a matter of time.
        suspects, self._suspects = self._suspects, []
        for case in suspects:
            if told := await self._differing("u0", case):
                self._tell(told)
            else:
                self.once.append(case)

    async def _play_as(self, user: str, cases: Iterator[Case]) -> None:
        for case in cases:
            await self._play_case(user, case)
            if complaint := self._pair.complaint():
                self._tell(f"{case}: the log says\n{complaint}")
                return

    async def _play_case(self, user: str, case: Case) -> None:
        if await self._differing(user, case):
            self._suspects.append(case)
        self.inputs[case.kind] += PLAYS[case.kind][1]

    async def _differing(self, user: str, case: Case) -> str:
        """Describe what differs however often a case is played; the text is empty if nothing does."""
        play, different = PLAYS[case.kind][0], list[tuple[str, str]]()
        for tried in range(_TRIES):
            both = (play(side, user, case._replace(is_slow=tried > 0)) for side in (self._pair.ours, self._pair.theirs))
            different = differences(case.kind, *await asyncio.gather(*both))
            if not different:
                return ""
        shown = "\n".join(f"  pelton      {ours}\n  nats-server {theirs}" for ours, theirs in different[:5])
        return f"{case}\n{shown}"

    async def _watch(self, over: asyncio.Event) -> None:
        """Be a client that is well-behaved, and has each of its pings answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._pair.ours.port)
        writer.write(b'CONNECT {"user":"u0","pass":"p","verbose":false}\r\n')
        told = await reader.readline()
        while not over.is_set():
            begun = time.monotonic()
            writer.write(b"PING\r\n")
            try:
                async with asyncio.timeout(_ANSWER_S):
                    while (line := await reader.readline()) != b"PONG\r\n":
                        if not line:
                            raise ConnectionError(f"the connection was closed, after {told!r}")
                        told = line
                        if line == b"PING\r\n":
                            writer.write(b"PONG\r\n")
            except (TimeoutError, ConnectionError) as error:
                self._tell(f"a well-behaved client is not answered: {error!r}")
                break
            self._waits.append(time.monotonic() - begun)
            await asyncio.sleep(0.02)
        writer.close()

    def _tell(self, what: str) -> None:
        self.found.append(what)
        if self._is_telling:
            print(f"{what}\n", flush=True)

    def report(self) -> str:
        """What was played so far."""
        waits = sorted(self._waits[-100_000:]) or [0.0]
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.inputs.items()))
        rate = self.inputs.total() / (time.monotonic() - self._begun)
        slow = f"{waits[len(waits) * 99 // 100] * 1e3:.0f} and {waits[-1] * 1e3:.0f} ms"
        found = f"{len(self.found)} found, {len(self.once)} differed once"
        return f"{kinds}; {rate:,.0f}/s; a pong took at most (p99, all) {slow}; {found}"
