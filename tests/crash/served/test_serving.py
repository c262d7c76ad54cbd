"""A server is killed and stopped under the load of several clients, and started again each time.

What was acknowledged is there, once; what was confirmed is not delivered again; and a server that is stopped resets no
connection.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import nats.errors
import pytest

import pelton
from pelton.engine.salvage import recount
from tests.crash.roles import stored
from tests.crash.served.company import LOG, PUSHED, WORK, Company
from tests.kit.deliveries import Ending, Promise, Step, StepKind, check_deliveries
from tests.kit.served import ServedStore, served_store

# Of so many times that a server is started again, it was stopped once, and killed else.
_STOPPED_ONE_IN = 3


# When a server accepts a connection and dies before its first word, nats-py connects again without closing that one: it
# is closed as garbage, by the end of this test at the latest.
@pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning")
async def test_clients_of_a_server_that_is_killed_and_stopped(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path, random = tmp_path / "s.pelton", Random(20261127)
    with served_store(path) as server:
        company = Company(server.url, random.randrange(1 << 30))
        await company.begin()
        for number in range(int(request.config.getoption("--restarts"))):
            await company.work(random.randrange(20, 600))
            if number % _STOPPED_ONE_IN == 0:
                await _stop(server, company)
            else:
                await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await company.finish(lambda: _is_consumed(company))
        server.stop()
    assert company.broken == []
    await _check(path, company)
    print(_figures(company))
    company.connections.clear()
    gc.collect()


def _figures(company: Company) -> dict[str, int]:
    found: dict[str, int] = {**Counter(step.kind for step in company.steps)}
    found["redelivered"] = sum(step.n > 1 for step in company.steps if step.kind == "delivered")
    return found | {"seen in order": len(company.seen), "ended by a stop": company.stopped}


async def _stop(server: ServedStore, company: Company) -> None:
    before = [len(connection.ends) for connection in company.connections]
    assert await asyncio.to_thread(server.stop) == 0
    await company.disconnected()
    for connection, known in zip(company.connections, before, strict=True):
        for end in connection.ends[known:]:
            company.stopped += 1
            if not isinstance(end, nats.errors.UnexpectedEOF):
                company.broken.append(f"a connection ended with {end!r} when the server was stopped")


async def _is_consumed(company: Company) -> bool:
    js = company.connections[0].jetstream()
    for stream, consumer in ((LOG, PUSHED), (WORK, WORK)):
        info = await js.consumer_info(stream, consumer)
        if info.num_pending or info.num_ack_pending:
            return False
    return company.seen[-1] == (await js.stream_info(LOG)).state.last_seq


async def _check(path: Path, company: Company) -> None:
    assert recount(str(path)) == []
    async with pelton.open(path) as jet:
        kept = {stream: {seq: name for name, seq in (await stored(jet, stream)).items()} for stream in (LOG, WORK)}
    assert kept[WORK] == {}
    assert company.seen == sorted(kept[LOG])
    promises = [Promise(stream=WORK, consumer=WORK), Promise(stream=LOG, consumer=PUSHED)]
    ending = Ending(stored=kept, settled_away={WORK})
    # Two deliveries of a message that take longer than its ack may both be acknowledged.
    assert [one for one in check_deliveries(company.steps, promises, ending) if one.rule != "settled"] == []
    assert [text for promise in promises for text in _given_again(company, promise.consumer)] == []


def _given_again(company: Company, consumer: str) -> Iterator[str]:
    """Tell of messages that were delivered after their ack was confirmed: numbers of deliveries only grow."""
    marks = company.marks[consumer]
    confirmed: dict[int, int] = {}
    for step in company.steps:
        if step.consumer == consumer and step.kind == "settled":
            confirmed.setdefault(step.seq, step.at)
    for step in company.steps:
        if step.consumer != consumer or step.kind != "delivered" or step.seq not in confirmed:
            continue
        place = bisect_right(marks, (confirmed[step.seq], 1 << 62))
        if place < len(marks) and marks[place][1] < step.dseq:
            yield f"message {step.seq} was delivered again (number {step.dseq}) after its ack was confirmed"


def test_the_judge_finds_what_is_given_again() -> None:
    company = Company("", 1)

    def step(kind: StepKind, at: int, dseq: int) -> Step:
        return Step(kind=kind, at=at, who="one", stream=WORK, consumer=WORK, seq=7, dseq=dseq)

    company.steps = [step("delivered", 1, 1), step("settled", 5, 1), step("delivered", 6, 9)]
    company.marks[WORK] = [(4, 3), (7, 9)]
    assert list(_given_again(company, WORK)) == []
    company.marks[WORK] = [(4, 3), (6, 8)]
    assert len(list(_given_again(company, WORK))) == 1
