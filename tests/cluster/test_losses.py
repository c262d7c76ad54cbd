"""A cluster of three loses a server during work: nothing acknowledged is lost, nothing is duplicated."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pelton
from tests.kit.judge.history import JobEvent, check_history
from tests.kit.nats_server import NatsCluster, nats_cluster

_MESSAGES = 600


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with nats_cluster(tmp_path) as running:
        yield running


class _Record:
    """Published and consumed messages, as a history with one key per message; time is the order of recording."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.acked: dict[int, int] = {}
        self.settled: set[int] = set()

    def _tell(self, kind: str, job: int, token: int = 0) -> None:
        at = len(self.events)
        attempt = 1 if token else 0
        self.events.append(JobEvent(kind=kind, key=str(job), job=str(job), at=at, token=token, attempt=attempt))  # type: ignore[arg-type]

    def published(self, number: int, seq: int) -> None:
        self.acked[number] = seq

    def consumed(self, number: int, token: int) -> None:
        if number not in self.settled:
            self.settled.add(number)
            self._tell("start", number, token)
            self._tell("finished", number, token)

    def contradictions(self) -> list[object]:
        enqueued = [JobEvent(kind="enqueued", key=str(n), job=str(n), at=-1) for n in self.acked]
        return list(check_history([*enqueued, *self.events], max_attempts=1))


async def _publish(jet: pelton.Jet, record: _Record, numbers: Iterator[int]) -> None:
    for number in numbers:
        ack = await jet.publish(f"s.{number}", b"%d" % number, msg_id=f"m{number}")
        record.published(number, ack.seq)


async def _consume(consumer: pelton.Consumer, record: _Record) -> None:
    while len(record.settled) < _MESSAGES:
        messages = await consumer.fetch(20, timeout=1)
        await consumer.ack(messages)
        for message in messages:
            record.consumed(int(message.data), message.metadata.token)


@pytest.mark.parametrize("victim", ["leader of the stream", "server we talk to"])
async def test_a_server_is_killed_while_messages_come_and_go(cluster: NatsCluster, victim: str) -> None:
    async with pelton.open(cluster.url) as jet:
        stream = await jet.create_stream("S", subjects=["s.*"], num_replicas=3)
        consumer = await stream.create_consumer(durable_name="c", ack_wait=5)
        lost = await _name_of(jet, victim)
        record, numbers = _Record(), iter(range(_MESSAGES))
        work = asyncio.gather(
            *(_publish(jet, record, numbers) for _ in range(4)), *(_consume(consumer, record) for _ in range(2))
        )
        while len(record.settled) < _MESSAGES // 4:
            await asyncio.sleep(0)
        server = next(server for server in cluster.servers if server.name == lost)
        await asyncio.to_thread(server.kill)
        while len(record.settled) < _MESSAGES // 2:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(work, 90)
        assert record.contradictions() == []
        await _all_there_once(jet, record)


async def _name_of(jet: pelton.Jet, victim: str) -> str:
    if victim == "server we talk to":
        return str(jet.backend._connection._client._server_info["server_name"])  # type: ignore[attr-defined]
    answer = await jet.backend._connection.ask("$JS.API.STREAM.INFO.S", b"")  # type: ignore[attr-defined]
    return str(json.loads(answer.data)["cluster"]["leader"])


async def _all_there_once(jet: pelton.Jet, record: _Record) -> None:
    reader = await (await jet.stream("S")).create_consumer(ack_policy="none")
    found: dict[int, int] = {}
    counts: Counter[int] = Counter()
    while len(found) < _MESSAGES:
        for message in await reader.fetch(_MESSAGES, timeout=10):
            found[int(message.data)] = message.metadata.stream_seq
            counts[int(message.data)] += 1
    assert found == record.acked
    assert set(counts.values()) == {1}
    assert (await (await jet.stream("S")).info()).state.messages == _MESSAGES
