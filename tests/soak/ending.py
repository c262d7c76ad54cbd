"""After the actors have ended: taking everything that is left, and checking the stored messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import pelton
from pelton.api import AckOp, Delivered
from tests.crash.roles import name_of
from tests.journal import machine_ns
from tests.kit.clocks import PassingClock
from tests.soak.record import Record

FAR_S: Final = 60
_PUSHED_WITHIN_S: Final = 20.0


class Drain:
    """Takes and settles everything left for one consumer; ``clock`` is that of the store, on which time passes."""

    def __init__(self, jet: pelton.Jet, record: Record, clock: PassingClock, consumer: pelton.Consumer) -> None:
        self._jet = jet
        self._record = record
        self._clock = clock
        self._consumer = consumer

    async def run(self) -> int:
        """Return how many messages are left that are not delivered."""
        silent = 0
        if self._consumer.config.deliver_subject:
            return await self._listen()
        while silent < 3:
            began = machine_ns()
            silent = 0 if await self._settle(await self._pull(), began) else silent + 1
            self._clock.let_pass(20)
        return await self._left()

    async def _left(self) -> int:
        info = await self._consumer.info()
        return info.num_pending + info.num_ack_pending

    async def _pull(self) -> list[Delivered]:
        c = self._consumer
        found = await c.fetch(500, no_wait=True, group="g" if c.config.priority_groups else "")
        return [message.delivered for message in found]

    async def _listen(self) -> int:
        messages = self._consumer.messages(prefetch=500)
        try:
            with suppress(TimeoutError):
                while await self._left():
                    async with asyncio.timeout(_PUSHED_WITHIN_S):
                        message = await anext(messages)
                    await self._settle([message.delivered], 0)
        finally:
            await messages.aclose()
        return await self._left()

    async def _settle(self, found: list[Delivered], began: int) -> int:
        if not found:
            return 0
        record, c = self._record, self._consumer
        record.note(*(record.of("delivered", d, name=name_of(d.data), began=began) for d in found))
        if c.config.ack_policy == "none":
            return len(found)
        acked = found[-1:] if c.config.ack_policy == "all" else found
        record.note(*(record.of("settling", d, how="ack") for d in acked))
        ops = [AckOp(seq=d.seq, consumer_seq=d.consumer_seq, token=d.token) for d in acked]
        answers = await self._jet.backend.ack(c.stream_name, c.name, ops)
        done = zip(acked, answers, strict=True)
        record.note(*(record.of("refused" if answer else "settled", d, how="ack") for d, answer in done))
        return len(found)


async def drain(
    jet: pelton.Jet, record: Record, clock: PassingClock, consumers: Iterable[tuple[str, str]]
) -> list[str]:
    """Drain consumers, and return those with messages left that are not delivered."""
    problems = []
    for stream, name in consumers:
        left = await Drain(jet, record, clock, await (await jet.stream(stream)).consumer(name)).run()
        if left:
            problems.append(f"consumer {stream}/{name}: {left} are left and do not come")
    return problems


async def lies(jet: pelton.Jet, streams: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return the names of all messages by their sequences, read one by one. Raises if one is torn."""
    stored: dict[str, dict[int, str]] = {}
    for name in streams:
        handle = await jet.stream(name)
        state = (await handle.info(deleted_details=True)).state
        there = sorted({*range(max(state.first_seq, 1), state.last_seq + 1)} - {*state.deleted})
        stored[name] = {seq: name_of((await handle.get_message(seq)).data) for seq in there}
    return stored


async def floors(jet: pelton.Jet, streams: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the first sequence that limits did not remove, for streams with a limit of messages."""
    found = {}
    for name, fields in streams.items():
        if "max_msgs" in fields:
            state = (await (await jet.stream(name)).info()).state
            found[name] = max(state.last_seq - fields["max_msgs"] + 1, 1)
    return found
