"""Bad input gets the same answer from a file, from memory and from a server, and never costs the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

import pelton
from pelton.buckets.bucket import TOKENS_BUCKET
from pelton.subjects import LONGEST
from tests.kit.nats_server import NatsServer, nats_server

Ask = Callable[[pelton.Jet, str], Awaitable[object]]

_LONG = "x" * 5000
SUBJECTS = [
    *("", "a b", "s..a", ".s", "s.", "s.\0", "s.\t", "s.\v", "s.\f", "s.\r\nPING", "s.\udc80", "s.\ud800"),
    *(f"s.{_LONG}", "s." + "é" * (LONGEST // 2), "s." + "x" * (LONGEST - 1), "s." + "x" * (LONGEST - 2)),
    *("s.*", "s.>", ">", "s.>.a", "s.*x", "s.\x85", "s.\xa0", "s.é", "s.\x7f", "s.\x01"),
]
NAMES = [
    *("", "a b", "a.b", "a*", "*", "a>", "a/b", "a\\b", "a\0", "a\t", "a\v", "a\xa0", "a\udc80", "a\x7f", "a\r\nPING"),
    *("n" * 256, _LONG, "é" * 128, "é"),
]
TEXTS = ["", "a b", "a\0", "a\r\n", "é", "\ud800", "\udc80", "v" * 70_000]


async def _listen(jet: pelton.Jet, subject: str, queue: str = "") -> None:
    async with await jet.subscribe(subject, queue=queue):
        pass


async def _emit(jet: pelton.Jet, subject: str) -> object:
    queue = await jet.queue("emitting")

    @queue.job(max_attempts=1)
    async def emit(ctx: pelton.JobContext) -> None:
        ctx.emit(subject, b"")

    handle = await emit.enqueue()
    await queue.work(until_empty=True, handle_signals=False)
    outcome = await handle.outcome()
    return outcome.state, outcome.error.partition("\n")[0]


async def _bucket(jet: pelton.Jet) -> pelton.Bucket[bytes]:
    return await jet.create_bucket("b")


async def _objects(jet: pelton.Jet) -> pelton.ObjectStore:
    return await jet.create_objects("o")


async def _lead(jet: pelton.Jet, name: str) -> None:
    async with jet.elect(name, bucket=f"leaders{NAMES.index(name)}"):
        pass


async def _lock(jet: pelton.Jet, name: str) -> None:
    async with jet.lock(name):
        pass


async def _all_keys(jet: pelton.Jet, text: str) -> list[str]:
    return [key async for key in (await _bucket(jet)).keys(text)]


async def _enqueue(jet: pelton.Jet, key: str) -> None:
    queue = await jet.queue("keyed")

    @queue.job
    async def work() -> None: ...

    await work.enqueue(key=key)


BY_SUBJECT: dict[str, Ask] = {
    "publish": lambda jet, text: jet.publish(text, b"x"),
    "publish_batch": lambda jet, text: jet.publish_batch([("s.a", b"x"), (text, b"y")]),
    "publish_atomic": lambda jet, text: jet.publish_atomic([("s.a", b"x"), (text, b"y")]),
    "add": lambda jet, text: jet.add(text),
    "subscribe": lambda jet, text: _listen(jet, text),
    "emit": _emit,
    "subject of a stream": lambda jet, text: jet.create_stream("t", subjects=[text], no_ack=True),
    "transform": lambda jet, text: jet.create_stream("u", subject_transform={"src": text, "dest": "t.a"}),
    "source": lambda jet, text: jet.create_stream("v", sources=[{"name": "s", "filter_subject": text}]),
    "stream_names": lambda jet, text: _own_streams(jet, text),
    "info": lambda jet, text: _on_stream(jet, lambda stream: stream.info(subjects_filter=text)),
    "purge": lambda jet, text: _on_stream(jet, lambda stream: stream.purge(filter=text)),
    "last message": lambda jet, text: _on_stream(jet, lambda stream: stream.get_last_message(text)),
    "next message": lambda jet, text: _on_stream(jet, lambda stream: stream.get_next_message(text, 1)),
    "counter": lambda jet, text: _on_stream(jet, lambda stream: stream.counter(text)),
    "filter": lambda jet, text: _on_stream(jet, lambda s: s.create_consumer(name="c", filter_subject=text)),
    "filters": lambda jet, text: _on_stream(jet, lambda s: s.create_consumer(name="d", filter_subjects=["q", text])),
    "deliver subject": lambda jet, text: _on_stream(jet, lambda s: s.create_consumer(name="e", deliver_subject=text)),
}
BY_SUBJECT |= {
    "last messages": lambda jet, text: _on_stream(jet, lambda stream: stream.get_last_messages(["s.a", text])),
    "messages": lambda jet, text: _on_stream(jet, lambda stream: stream.get_messages(subject=text)),
}
BY_NAME: dict[str, Ask] = {
    "create_stream": lambda jet, text: jet.create_stream(text, subjects=["named"]),
    "update_stream": lambda jet, text: jet.update_stream(text, max_msgs=5),
    "stream": lambda jet, text: jet.stream(text),
    "delete_stream": lambda jet, text: jet.delete_stream(text),
    "create durable": lambda jet, text: _on_stream(jet, lambda stream: stream.create_consumer(durable_name=text)),
    "create named": lambda jet, text: _on_stream(jet, lambda stream: stream.create_consumer(name=text)),
    "consumer": lambda jet, text: _on_stream(jet, lambda stream: stream.consumer(text)),
    "delete_consumer": lambda jet, text: _on_stream(jet, lambda stream: stream.delete_consumer(text)),
    "member": lambda jet, text: _listen(jet, "heard", text),
    "queue": lambda jet, text: jet.queue(text),
    "create_bucket": lambda jet, text: jet.create_bucket(text),
    "bucket": lambda jet, text: jet.bucket(text),
    "delete_bucket": lambda jet, text: jet.delete_bucket(text),
    "create_objects": lambda jet, text: jet.create_objects(text),
    "objects": lambda jet, text: jet.objects(text),
    "put": lambda jet, text: _in_bucket(jet, lambda bucket: bucket.put(text, b"")),
    "get": lambda jet, text: _in_bucket(jet, lambda bucket: bucket.get(text)),
    "delete": lambda jet, text: _in_bucket(jet, lambda bucket: bucket.delete(text)),
    "keys": _all_keys,
    "put object": lambda jet, text: _in_objects(jet, lambda objects: objects.put(text, b"")),
    "get object": lambda jet, text: _in_objects(jet, lambda objects: objects.get(text)),
    "key of a job": _enqueue,
    "lock": _lock,
    "elect": _lead,
}
BY_TEXT: dict[str, Ask] = {
    "value of a header": lambda jet, text: jet.publish("s.h", headers={"A": text}),
    "name of a header": lambda jet, text: jet.publish("s.h", headers={text: "a"}),
    "message id": lambda jet, text: jet.publish("s.h", msg_id=text),
    "expected stream": lambda jet, text: jet.publish("s.h", expected_stream=text),
    "reason": lambda jet, text: _on_message(jet, lambda message: message.term(reason=text)),
    "group": lambda jet, text: _on_stream(jet, lambda stream: _pull(stream, text)),
    "description": lambda jet, text: jet.create_stream("w", description=text),
    "metadata": lambda jet, text: jet.create_stream("x", metadata={"a": text}),
}


async def _on_stream(jet: pelton.Jet, ask: Callable[[pelton.Stream], Awaitable[object]]) -> object:
    return await ask(await jet.stream("s"))


async def _on_message(jet: pelton.Jet, ask: Callable[[pelton.Message], Awaitable[object]]) -> object:
    await jet.publish("s.a")
    (message,) = await (await (await jet.stream("s")).create_consumer(name="f", deliver_policy="last")).fetch(1)
    return await ask(message)


async def _pull(stream: pelton.Stream, group: str) -> object:
    consumer = await stream.create_consumer(name="g", filter_subject="s.none")
    return await consumer.fetch(1, no_wait=True, group=group)


async def _in_bucket(jet: pelton.Jet, ask: Callable[[pelton.Bucket[bytes]], Awaitable[object]]) -> object:
    return await ask(await _bucket(jet))


async def _in_objects(jet: pelton.Jet, ask: Callable[[pelton.ObjectStore], Awaitable[object]]) -> object:
    return await ask(await _objects(jet))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


async def _own_streams(jet: pelton.Jet, text: str) -> list[str]:
    # On a cluster, a bucket beside the queues remembers where their fencing tokens begin.
    return [name for name in await jet.stream_names(text) if name != f"KV_{TOKENS_BUCKET}"]


async def _answer(jet: pelton.Jet, ask: Ask, text: str) -> str:
    """What is raised, or that nothing is."""
    try:
        found = await ask(jet, text)
    except pelton.PeltonError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name in ("t", "u", "v", "w", "x"):
            with suppress(pelton.StreamNotFoundError):
                await jet.delete_stream(name)
        stream = await jet.stream("s")
        for name in await stream.consumer_names():
            await stream.delete_consumer(name)
    return repr(found) if isinstance(found, tuple | int | list) else "done"


ROWS = [
    *((what, ask, text) for what, ask in BY_SUBJECT.items() for text in SUBJECTS),
    *((what, ask, text) for what, ask in BY_NAME.items() for text in NAMES),
    *((what, ask, text) for what, ask in BY_TEXT.items() for text in TEXTS),
]


async def test_the_same_mistake_has_the_same_answer_everywhere(server: NatsServer, tmp_path: Path) -> None:
    different: list[str] = []
    async with AsyncExitStack() as stack:
        addresses = {"memory": "memory:", "file": str(tmp_path / "a.pelton"), "server": server.url}
        sides = {side: await stack.enter_async_context(pelton.open(at)) for side, at in addresses.items()}
        for jet in sides.values():
            await jet.create_stream("s", subjects=["s.>"], allow_direct=True, allow_atomic=True)
        for what, ask, text in ROWS:
            answers = {side: await _answer(jet, ask, text) for side, jet in sides.items()}
            if len(set(answers.values())) > 1:
                different.append(f"{what} {text[:20]!r} ({len(text)})")
                different += [f"    {side:7} {answer[:220]}" for side, answer in answers.items()]
        connection = sides["server"].backend._connection  # type: ignore[attr-defined]  # of a cluster
        assert connection._losses == 0
    assert not different, "\n" + "\n".join(different)


async def test_the_longest_names_travel_together(tmp_path: Path) -> None:
    domain, inbox = "d" * (128 - len("$JS..API")), "i" * 128
    with nats_server(tmp_path, domain=domain) as server:
        async with pelton.open(server.url, domain=domain, inbox_prefix=inbox) as jet:
            subject = "s." + "x" * (LONGEST - 2)
            stream = await jet.create_stream("n" * 255, subjects=["s.>"], allow_direct=True)
            await jet.publish(subject, b"a", headers={"A": "b"})
            consumer = await stream.create_consumer(durable_name="c" * 255, filter_subject=subject)
            assert (await consumer.info()).config.filter_subject == subject
            (message,) = await consumer.fetch(1)
            await message.ack()
            assert (await stream.get_last_message(subject)).data == b"a"
            async with await jet.subscribe(subject, queue="q" * 255) as listening:
                await jet.publish(subject, b"b")
                heard = await listening.next(timeout=60)
                assert heard is not None
                assert heard.data == b"b"
            bucket = await jet.create_bucket("b" * 251)
            assert await bucket.put("k" * 2560, b"") == 1
            objects = await jet.create_objects("o" * 251)
            await objects.put("n" * 2048, b"value")
            assert await objects.get("n" * 2048) == b"value"
            assert jet.backend._connection._losses == 0  # type: ignore[attr-defined]  # of a cluster


async def test_a_subject_that_is_too_long_costs_its_neighbours_nothing(server: NatsServer) -> None:
    async with pelton.open(server.url) as jet:
        stream = await jet.create_stream("busy", subjects=["busy.>"])
        busy = [jet.publish(f"busy.{n}") for n in range(50)]
        found = await asyncio.gather(*busy[:25], jet.publish(f"busy.{_LONG}"), *busy[25:], return_exceptions=True)
        assert isinstance(found.pop(25), pelton.ConfigError)
        assert [ack.seq for ack in found if isinstance(ack, pelton.PubAck)] == list(range(1, 51))
        assert jet.backend._connection._losses == 0  # type: ignore[attr-defined]  # of a cluster
        await stream.delete()


async def test_a_message_that_is_too_large_is_not_sent(server: NatsServer) -> None:
    async with pelton.open(server.url) as jet:
        stream = await jet.create_stream("large", subjects=["large"])
        most = 1 << 20
        for data, headers in ((bytes(most + 1), None), (bytes(most), {"A": "b"})):
            with pytest.raises(pelton.MessageTooLargeError, match=r"the server takes 1048576 \(max_payload\)"):
                await jet.publish("large", data, headers=headers)
        with pytest.raises(pelton.MessageTooLargeError):
            await jet.publish_batch([("large", b"1"), ("large", bytes(most + 1)), ("large", b"3")])
        assert (await stream.info()).state.messages == 1
        assert jet.backend._connection._losses == 0  # type: ignore[attr-defined]  # of a cluster
        await stream.delete()
