"""Every lane equals the single lane: however messages are stored, the answers and the streams are the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

import pelton
from pelton import ApiError, MessageNotFoundError, PubAck, StoredMessage
from pelton.api import AckOp, Backend, Outgoing, PeltonError, PullRequest, Transacting, headers, rfc3339
from pelton.engine import Engine
from pelton.jet import Stream
from pelton.streams import subject_rows
from pelton.streams.appender import Appender
from pelton.testing import ManualRuntime, manual_runtime

SUBJECTS = ["q.key.>", "q.job", "q.job.>", "q.later.>", "q.kept.>"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_age": 100},
    {"max_msgs": 30},
    {"max_msgs_per_subject": 2},
    {"duplicate_window": 5},
    {"subjects": ["q.key.>", "q.job", "q.job.*", "q.later.u1", "q.later.u2", "q.kept.>"]},
    {"subjects": ["q.>"]},
]


class Twin(NamedTuple):
    """Two streams on two stores, whose clocks are moved together."""

    bulk: Stream
    single: Stream
    backend: Backend
    other: Backend
    runtimes: tuple[ManualRuntime, ManualRuntime]

    def pass_time(self, seconds: float) -> None:
        for runtime in self.runtimes:
            runtime.clock.advance(seconds)

    @property
    def now(self) -> int:
        return self.runtimes[0].clock.now()


@pytest.fixture
async def twin(request: pytest.FixtureRequest) -> AsyncIterator[Twin]:
    options = {"subjects": SUBJECTS, **getattr(request, "param", {})}
    async with AsyncExitStack() as stack:
        runtimes = manual_runtime(), manual_runtime()
        jets = [await stack.enter_async_context(pelton.open("memory:", runtime=one)) for one in runtimes]
        first, second = [
            await jet.create_stream("q", allow_msg_schedules=True, allow_msg_ttl=True, **options) for jet in jets
        ]
        for jet in jets:
            await (await jet.create_stream("work")).create_consumer(durable_name="c")
        yield Twin(first, second, jets[0].backend, jets[1].backend, runtimes)


def a_block(rng: random.Random, now: int, last: int, soonest: int) -> bytes | None:
    """Return the headers of a message: mostly of a usual form, sometimes almost."""
    fields: dict[str, str] = {}
    leaf = rng.choice(["u1", "u2", "u3", "u4", f"s{rng.random()}".replace(".", "")])
    if rng.random() < 0.4:
        due = max(soonest, rng.choice([-5, 0, 1, 2, 60])) * 10**9
        fields[headers.SCHEDULE] = rng.choice([f"@at {rfc3339(now + due)}"] * 9 + ["@at never", "@every 1h"])
        fields[headers.SCHEDULE_TARGET] = rng.choice([f"q.job.{leaf}"] * 9 + ["q.job", "z.job.x", f"q.later.{leaf}"])
    if rng.random() < 0.7:
        fields[headers.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(rng.choice([0, 0, 0, 0, 1, last, last + 1]))
        filters = [f"q.*.{leaf}"] * 9 + ["q.job", "q.*", ">", "q..x", f"q.later.{leaf}", "q.*.key.*", f"q.key.*.{leaf}"]
        fields[headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT] = rng.choice(filters)
    if rng.random() < 0.2:
        fields[headers.MSG_ID] = f"id{rng.randrange(6)}"
    if rng.random() < 0.1:
        more = {"Tenant": "ä", headers.TTL: "3s", headers.ROLLUP: "sub", headers.EXPECTED_STREAM: "z"}
        fields |= dict([rng.choice(list(more.items()))])
    return headers.encode(fields) if fields else None


def a_message(rng: random.Random, now: int, last: int, soonest: int) -> Outgoing:
    leaf = rng.choice(["u1", "u2", "u3", "u4", f"s{rng.randrange(10**9)}"])
    subject = rng.choice([f"q.later.{leaf}", f"q.job.{leaf}", f"q.kept.{leaf}", "q.job", f"q.key.k.{leaf}", "z.none"])
    return Outgoing(subject, b"%d" % rng.randrange(1000), a_block(rng, now, last, soonest))


def shown(answer: PubAck | BaseException) -> object:
    if isinstance(answer, PubAck):
        return answer
    seq = getattr(answer, "seq", None)
    return type(answer), str(answer), answer.code if isinstance(answer, ApiError) else 0, seq


@asynccontextmanager
async def one_by_one() -> AsyncIterator[None]:
    """Let messages take the single path, in the same transaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Appender, "takes_groups", False)
        patch.setattr(Appender, "is_plain", False)
        yield


async def apart(backend: Backend | Transacting, messages: Sequence[Outgoing]) -> list[object]:
    return list(map(shown, await backend.publish_apart(messages)))


async def together(backend: Backend, messages: Sequence[Outgoing]) -> list[object]:
    """Return the answers of a batch, or that of the first refused message."""
    try:
        return list(map(shown, await backend.publish_batch(messages)))
    except PeltonError as refused:
        return [shown(refused)]


async def in_flight(backend: Backend, messages: Sequence[Outgoing]) -> list[object]:
    sending = (backend.publish(message.subject, message.data, message.headers) for message in messages)
    return list(map(shown, await asyncio.gather(*sending, return_exceptions=True)))


async def in_transaction(backend: Backend, messages: Sequence[Outgoing]) -> list[object]:
    transaction = backend.transaction(5)
    level = await transaction.enter()
    answers = await apart(transaction, messages)
    await transaction.leave(level, keep=True)
    return answers


async def by_server(backend: Backend, messages: Sequence[Outgoing]) -> list[object]:
    assert isinstance(backend, Engine)
    serving, found, done = backend.serving(), dict[int, object](), asyncio.Event()

    def answered(first: int, answers: Sequence[PubAck | PeltonError]) -> None:
        found.update(enumerate(map(shown, answers), first))
        if len(found) == len(messages):
            done.set()

    serving.store(messages, answered)
    await done.wait()
    await serving.close()
    return [found[place] for place in range(len(messages))]


async def with_an_ack(backend: Backend, messages: Sequence[Outgoing]) -> list[object]:
    """Return the answers of what is published with the ack of a job, or why all of that was refused."""
    await backend.publish("work", b"")
    [job] = await backend.pull("work", "c", PullRequest(batch=1))
    ack = AckOp(seq=job.seq, consumer_seq=job.consumer_seq, token=job.token)
    try:
        return list(map(shown, await backend.settle(messages, "work", "c", ack)))
    except PeltonError as refused:
        await backend.ack("work", "c", [ack])
        return [shown(refused)]


async def contents(stream: Stream) -> tuple[object, list[StoredMessage]]:
    state = (await stream.info(subjects_filter=">")).state
    stored = list[StoredMessage]()
    for seq in range(max(state.first_seq, 1), state.last_seq + 1):
        with suppress(MessageNotFoundError):
            stored.append(await stream.get_message(seq))
    return state, stored


async def disturb(twin: Twin, rng: random.Random) -> None:
    """Do to both streams what changes the bounds of subjects, or lets schedules fire."""
    kind = rng.randrange(4)
    if kind == 0:
        twin.pass_time(rng.choice([0.5, 2.0, 70.0]))
        return
    if kind == 1:
        leaf = rng.choice(["u1", "u2", "u3"])
        for stream in (twin.bulk, twin.single):
            await stream.purge(filter=f"q.*.{leaf}")
        return
    info = await twin.bulk.info()
    seq = rng.randint(info.state.first_seq, max(info.state.last_seq, 1))
    for stream in (twin.bulk, twin.single):
        with suppress(PeltonError):
            await stream.delete_message(seq)


LANES = [apart, apart, together, in_flight, in_transaction, by_server, with_an_ack]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("twin", OPTIONS, indirect=True)
async def test_the_answers_are_those_of_single_messages(twin: Twin, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", rng.choice([5, 40, 16_384]))
    for _ in range(6):
        last = (await twin.bulk.info()).state.last_seq
        publish = rng.choice(LANES)
        # How many transactions the messages in flight share is not certain, and schedules that are due fire in each.
        soonest = 1 if publish is in_flight else -5
        messages = [a_message(rng, twin.now, last, soonest) for _ in range(rng.choice([9, 40]))]
        answers = await publish(twin.backend, messages)
        async with one_by_one():
            assert answers == await publish(twin.other, messages)
        assert await contents(twin.bulk) == await contents(twin.single)
        await disturb(twin, rng)
    twin.pass_time(120)
    assert await contents(twin.bulk) == await contents(twin.single)


async def test_what_asks_for_the_usual_is_stored_together(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison above would compare messages at their turn with themselves."""
    alone, groups = list[str](), list[int]()
    store_alone, store_all = Appender._store_alone, Appender.store_all

    def stored_alone(self: Appender, *args: Any) -> Any:
        alone.append(args[0])
        return store_alone(self, *args)

    def stored_together(self: Appender, subjects: Sequence[str], *args: Any) -> int:
        groups.append(len(subjects))
        return store_all(self, subjects, *args)

    monkeypatch.setattr(Appender, "_store_alone", stored_alone)
    monkeypatch.setattr(Appender, "store_all", stored_together)
    at = f"@at {rfc3339(twin.now + 10**9)}"
    messages = []
    for number in range(20):
        unique = {
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: f"q.*.u{number}",
        }
        later = {headers.SCHEDULE: at, headers.SCHEDULE_TARGET: f"q.job.u{number}"}
        messages.append(Outgoing(f"q.later.u{number}", b"", headers.encode({**later, **unique})))
        messages.append(Outgoing(f"q.job.u{number}", b"", headers.encode({**unique, headers.MSG_ID: f"{number}"})))
    answers = await twin.backend.publish_apart(messages)
    assert [isinstance(answer, PubAck) for answer in answers] == [True, False] * 20
    assert (groups, alone) == ([20], [])
    assert (await twin.bulk.info()).state.messages == 20
    twin.pass_time(2)
    assert [message.subject for message in (await contents(twin.bulk))[1]] == [
        f"q.job.u{number}" for number in range(20)
    ]
