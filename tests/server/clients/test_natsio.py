"""natsio, another client for Python, sees the same on a served store and on nats-server.

It speaks JetStream by hand, and its own requests lose their answers, on both servers: requests are made by hand, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.server.conftest import Started
from tests.server.oracle import Oracle, running_oracle

natsio = pytest.importorskip("natsio.client.core", reason="natsio is not installed")
config = pytest.importorskip("natsio.client.config")
Request = Callable[[str, bytes], Awaitable[bytes]]
_OWN = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\.\d{19}\.")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("nats")) as running:
        yield running


async def seen(where: str, **login: str) -> list[Any]:
    """Return what the client sees."""
    told: list[Any] = []
    settings = config.ClientConfig(servers=[f"nats://{where}"], **login)
    async with natsio.NATSCore(settings) as client:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        await client.subscribe("answers", callback=answers.put)

        async def request(subject: str, data: bytes) -> bytes:
            await client.publish(subject, data, reply_to="answers")
            found: bytes = (await asyncio.wait_for(answers.get(), 60)).payload
            return found

        await core(client, told, request)
        await streams(client, told, request)
    return told


async def core(client: Any, told: list[Any], request: Request) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def note(message: Any) -> None:
        heard.put_nowait([message.subject, message.payload])

    async def answer(message: Any) -> None:
        await message.reply(message.payload.upper())

    await client.subscribe("a.*", callback=note)
    await client.subscribe("service", queue="crew", callback=answer)
    await client.subscribe("service", queue="crew", callback=answer)
    await client.flush()
    await client.publish("a.b", b"one")
    await client.publish("a.c", b"two")
    await client.publish("a.b.c", b"three")
    told += [await asyncio.wait_for(heard.get(), 60) for _ in range(2)]
    for number in range(20):
        told.append(await request("service", b"hi %d" % number))
    told.append(heard.qsize())


async def streams(client: Any, told: list[Any], request: Request) -> None:
    async def ask(subject: str, body: Any = b"") -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        text = _OWN.sub("", (await request(subject, data)).decode())
        return json.loads(text) if text.startswith("{") else text

    made = await ask("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    told.append([made["config"]["subjects"], made["state"]["messages"]])
    told += [await ask(f"s.{number % 4}", b"%d" % number) for number in range(12)]
    told.append((await ask("$JS.API.STREAM.CREATE.T", {"name": "T", "subjects": ["s.1"]}))["error"])
    wanted = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "s.2"}
    await ask("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": wanted})
    messages: asyncio.Queue[Any] = asyncio.Queue()
    await client.subscribe("taken", callback=messages.put)
    await client.flush()
    body = json.dumps({"batch": 3, "expires": 5 * 10**9}).encode()
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply_to="taken")
    for number in range(3):
        message = await asyncio.wait_for(messages.get(), 60)
        told.append([message.subject, message.payload, _OWN.sub(".", message.reply_to)])
        told.append(await ask(message.reply_to, b"+ACK" if number else b"-NAK"))
    info = await ask("$JS.API.CONSUMER.INFO.S.c")
    told.append([info["num_pending"], info["delivered"]["stream_seq"]])


async def test_natsio_sees_the_same(started: Started, oracle: Oracle) -> None:
    expected = await seen(f"127.0.0.1:{oracle.port}", user=oracle.user(), password="p")
    server = await started()
    assert await seen(str(server.endpoints[0])) == expected
