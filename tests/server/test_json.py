"""Requests whose JSON is odd: a served store answers as nats-server does, which reads them with Go's decoder."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.direct import DirectGet
from pelton.api.message import NextRequest
from pelton.server import Server
from tests.kit.nats_server import EXTENSION_FIELDS, nats_server
from tests.server.conftest import Started
from tests.server.oracle import Oracle, running_oracle
from tests.server.raw import RawClient, raw_client
from tests.server.test_scripts import logged_in

_STREAM: Final = {"name": "S", "subjects": ["s.>"], "storage": "file", "allow_direct": True}
_NEW: Final = {"name": "T", "subjects": ["t"]}
_CONFIG: Final = {"durable_name": "c", "ack_policy": "explicit"}
_CONSUMER: Final = {"stream_name": "S", "config": _CONFIG}
_GET: Final = [*DirectGet.__struct_fields__, "no_hdr"]
_REQUESTS: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "STREAM.CREATE.T": (_NEW, [*StreamConfig.__struct_fields__, "pedantic"]),
    "STREAM.UPDATE.S": (_STREAM, list(StreamConfig.__struct_fields__)),
    "STREAM.INFO.S": ({}, ["deleted_details", "subjects_filter", "offset"]),
    "STREAM.NAMES": ({}, ["subject", "offset"]),
    "STREAM.LIST": ({}, ["subject", "offset"]),
    "STREAM.PURGE.S": ({}, ["filter", "seq", "keep"]),
    "STREAM.MSG.GET.S": ({"seq": 1}, _GET),
    "STREAM.MSG.DELETE.S": ({"seq": 2}, ["seq", "no_erase"]),
    "STREAM.SNAPSHOT.S": ({"deliver_subject": "d"}, ["deliver_subject", "no_consumers", "chunk_size", "jsck"]),
    "CONSUMER.CREATE.S.c": (_CONSUMER, ["stream_name", "config", "action", "pedantic"]),
    "CONSUMER.NAMES.S": ({}, ["offset", "subject"]),
    "CONSUMER.LIST.S": ({}, ["offset"]),
    "CONSUMER.PAUSE.S.c": ({"pause_until": "2036-01-01T00:00:00Z"}, ["pause_until"]),
    "CONSUMER.UNPIN.S.c": ({"group": "g"}, ["group"]),
    "CONSUMER.MSG.NEXT.S.c": ({"batch": 1, "no_wait": True}, list(NextRequest.__struct_fields__)),
    "DIRECT.GET.S": ({"seq": 1}, list(DirectGet.__struct_fields__)),
}
_VALUES: Final = ["null", "false", '"zz"', "9223372036854775808", "1e3", "[null]", "{}"]
_MORE: Final = ["0", '""', "-1", "18446744073709551616", "1.0", "1.5", "[]", "true", '["a"]', '"\\ud800"', "1"]
_BODIES: Final = ["", "  ", "[]", "null", "5", '"x"', "true", "{", "{}{}"]
# A mirror of nothing, a pull that ended before it began, how a text without characters is shown, a message of which the
# server is still removing the file, and a sequence that it has no words for.
_ELSE: Final = re.compile(r"mirror=\{\}|expires=-?1|(group|time|until)=.*ud800|DELETE.*(seq=9|erase|ERASE)")
_REASON: Final = re.compile(r'"description": "((?:[^"\\]|\\.)*)", "err_code": (\d+)')
_FRAME: Final = re.compile(r"\[(NATS/1.0 \d+ [^|]*)")
_OFFSET: Final = re.compile(r" at offset \d+$")


def _body(base: dict[str, Any], name: str, value: str) -> bytes:
    rest = json.dumps({key: item for key, item in base.items() if key != name})[:-1]
    return f'{rest}{", " if len(rest) > 1 else ""}"{name}": {value}}}'.encode()


def _cases(path: str, values: list[str]) -> Iterator[tuple[str, bytes]]:
    base, names = _REQUESTS[path]
    for name in [*names, "x"]:
        yield from ((f"{path} {name}={value}", _body(base, name, value)) for value in values)
        kept = {key: item for key, item in base.items() if key != name}
        yield f"{path} {name.upper()}", _body(kept, name.upper(), json.dumps(base.get(name)))
    yield from ((f"{path} {text[:10]}", text.encode()) for text in _BODIES)
    yield f"{path} no UTF-8", _body(base, "x", '"?"').replace(b"?", b"\xcf")
    if path == "CONSUMER.CREATE.S.c":
        for name in ConsumerConfig.__struct_fields__:
            for value in values if name not in EXTENSION_FIELDS else ():
                config = _body(_CONFIG, name, value).decode()
                yield f"{path} config.{name}={value}", _body({"stream_name": "S"}, "config", config)


async def _begin(client: RawClient) -> None:
    for name in ("S", "T"):
        await client.request(f"$JS.API.STREAM.DELETE.{name}")
    # A server may still be removing the files of the stream that it has deleted.
    while '"error"' in await client.request("$JS.API.STREAM.CREATE.S", _STREAM):
        pass
    for number in range(3):
        await client.request(f"s.{number}", str(number))
    await client.request("$JS.API.CONSUMER.CREATE.S.c", _CONSUMER)


async def _asked(client: RawClient, subject: str, body: bytes, number: int) -> str:
    """The first answer. Each request has an inbox of its own, as pulls may be answered later."""
    client.sub(f"_INBOX.n.{number}", f"{number}")
    client.pub(subject, body, f"_INBOX.n.{number}")
    (answer,) = await client.take(1)
    client.send(f"UNSUB {number}")
    await client.settle()
    return answer


async def _outcomes(client: RawClient, path: str, values: list[str]) -> dict[str, str]:
    """What became of each request: an error with its text, the status of a frame, or that it was done."""
    found = {}
    await _begin(client)
    for name, body in _cases(path, values):
        answer = await _asked(client, f"$JS.API.{path}", body, len(found))
        said = _REASON.search(answer) or _FRAME.search(answer)
        found[name] = " ".join(_OFFSET.sub("", text) for text in said.groups()) if said else "done"
        if not said:
            await _begin(client)
    return found


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.mark.parametrize("values", [_VALUES, _MORE], ids=["short", "long"])
@pytest.mark.parametrize("path", _REQUESTS)
async def test_odd_requests_are_answered_alike(path: str, values: list[str], started: Started, oracle: Oracle) -> None:
    async with logged_in(oracle.port, oracle.user()) as client:
        expected = await _outcomes(client, path, values)
    server = await started()
    async with raw_client(server.endpoints[0].port) as client:
        found = await _outcomes(client, path, values)
    different = {name: (said, found[name]) for name, said in expected.items() if said != found[name]}
    assert {name: both for name, both in different.items() if not _ELSE.search(name)} == {}


_OPTIONS: Final = [
    "verbose",
    "pedantic",
    "user",
    "pass",
    "account",
    "new_account",
    "jwt",
    "name",
    "protocol",
    "echo",
    "headers",
    "no_responders",
    "x",
]
_TEXTS: Final = ["{}", "", "null", "5", "[]", "{", "{} x"]


def _connects() -> Iterator[bytes]:
    for name in _OPTIONS:
        yield from (_body({}, name, value) for value in (*_VALUES, "true", "-1", '""'))
        yield from (_body({"verbose": False}, name.upper(), value) for value in ("true", '"zz"'))
    yield from (text.encode() for text in _TEXTS)
    yield b'{"name":"\xcf"}'
    yield from (b'{"verbose":%b,"verbose":false}' % first for first in (b"5", b"null", b"true"))


async def _greeted(port: int, options: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(b"CONNECT " + options + b"\r\nPING\r\n")
    found = b""
    while b"PONG" not in found and (line := await reader.readline()):
        found += b"" if line.startswith(b"INFO") else line
    writer.close()
    return found


async def test_odd_introductions_are_taken_alike(started: Started, oracle: Oracle, tmp_path: Path) -> None:
    server = await started()
    with nats_server(tmp_path) as real:
        for options in _connects():
            expected = await _greeted(real.port, options)
            assert await _greeted(server.endpoints[0].port, options) == expected, options


async def test_what_is_nested_too_deep_costs_the_server_nothing(server: Server) -> None:
    port = server.endpoints[0].port
    deep = b'{"x":' + b"[" * 1500 + b"]" * 1500 + b"}"
    # How deep is too deep depends on what else runs in the process.
    assert await _greeted(port, deep) in (b"", b"+OK\r\nPONG\r\n")
    async with raw_client(port) as client:
        for path in _REQUESTS:
            if path.startswith(("STREAM", "CONSUMER.CREATE")):
                assert '"err_code": 10025' in await client.request(f"$JS.API.{path}", deep)
