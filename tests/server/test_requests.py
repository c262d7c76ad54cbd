"""Requests written down as data (``requests/*.txt``), played on a served store and on nats-server: the same answers.

A line is a request, its subject and body, whose answers are compared; ``[Header: value|Header: value]`` may come first.
Or it is ``sub SUBJECT``, of which the messages are compared at the end or after ``hear NUMBER`` of them, or ``raw`` and
bytes of the protocol.
``== NAME`` begins a case, which has an account of its own. A file whose head is a configuration has its own servers,
and ``@ USER`` before lines that this user sends, whose password is ``p``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from pelton.wire.protocol import Command, Pong
from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.kit.wire_client import Msg
from tests.server.conftest import Started
from tests.server.oracle import Oracle, running_oracle
from tests.server.raw import RawClient, raw_client, shown
from tests.server.test_scripts import logged_in

_TIMES: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_ACK: Final = re.compile(r"(\$JS\.ACK(?:\.[^.]+){5})\.\d+")
# What differs each time, or names another server.
_VARIABLE: Final = frozenset(
    {"acc", "account", "cid", "id", "server", "_nats.level", "active", "pause_remaining", "level"}
)
_INBOX: Final = "_INBOX.n."


def _cases(*, configured: bool) -> Iterator[Any]:
    for file in sorted((Path(__file__).parent / "requests").glob("*.txt")):
        head, *cases = file.read_text().split("\n== ")
        config = head if "{" in head else ""
        for case in cases if bool(config) == configured else ():
            name, *lines = case.splitlines()
            values = ([config] if config else []) + [[line for line in lines if line and not line.startswith("#")]]
            yield pytest.param(*values, id=f"{file.stem}: {name}")


def _masked(value: Any, name: str = "") -> Any:
    if name in _VARIABLE:
        return "*"
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, str):
        # The zero time is not just any time.
        return value if value.startswith("0001-") else _TIMES.sub("TIME", value)
    return value


def _described(command: Command) -> str:
    if not isinstance(command, Msg):
        return shown(command)
    block = _TIMES.sub("TIME", (command.block or b"").decode()).replace("\r\n", "|")
    try:
        data = json.dumps(_masked(json.loads(command.data)), sort_keys=True)
    except ValueError:
        data = repr(command.data)
    reply = _ACK.sub(r"\1.T", command.reply)
    return f"{command.subject} {reply} [{block}] {data}"


class _Player:
    """Plays lines on one connection; ``heard`` is what subscriptions got, in its own order."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self.heard: list[str] = []

    async def play(self, line: str, number: int) -> list[str]:
        """Return a line and its answers."""
        client, words = self._client, line.split(" ", 2)
        if words[0] == "hear":
            await self.hear(int(words[1]))
            return [line, *sorted(self.heard)]
        if words[0] == "sub":
            client.sub(words[1], f"heard{number}")
        elif words[0] == "raw":
            client.send(line[4:].encode().decode("unicode_escape"))
        else:
            self._request(line, f"{_INBOX}{number}")
        seen = [line]
        while words[0] not in ("sub", "raw") and len(seen) == 1:
            await self._take(seen)
        for _ in range(2):
            client.send("PING")
            while await self._take(seen):
                pass
        return seen

    async def hear(self, count: int) -> None:
        """Wait until so much was heard."""
        while len(self.heard) < count:
            await self._take([])

    def _request(self, line: str, inbox: str) -> None:
        found = re.fullmatch(r"(?:\[(.*?)\] )?(\S+) ?(.*)", line)
        assert found is not None
        fields = "\r\n".join(["NATS/1.0", *(found[1] or "").split("|"), "", ""])
        self._client.sub(inbox, inbox)
        self._client.pub(found[2], found[3], inbox, fields.encode() if found[1] else None)

    async def _take(self, seen: list[str]) -> bool:
        command = await self._client.next()
        if command is None or isinstance(command, Pong):
            return False
        is_heard = isinstance(command, Msg) and command.sid.startswith(b"heard")
        (self.heard if is_heard else seen).append(_described(command))
        return True


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running_oracle(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.mark.parametrize("lines", list(_cases(configured=False)))
async def test_requests_are_answered_alike(lines: list[str], started: Started, oracle: Oracle) -> None:
    async with AsyncExitStack() as stack:
        there = _Player(await stack.enter_async_context(logged_in(oracle.port, oracle.user())))
        expected = [await there.play(line, number) for number, line in enumerate(lines)]
        server = await started(server_name="pelton")
        here = _Player(await stack.enter_async_context(raw_client(server.endpoints[0].port)))
        for number, line in enumerate(lines):
            assert await here.play(line, number) == expected[number]
        # What is advised is sent after the answer, when it pleases the server.
        await here.hear(len(there.heard))
        await there.hear(len(here.heard))
    assert sorted(here.heard) == sorted(there.heard)


async def _played(port: int, lines: list[str]) -> list[list[str]]:
    async with AsyncExitStack() as stack:
        players: dict[str, _Player] = {}
        user, seen = "", []
        for number, line in enumerate(lines):
            if line.startswith("@ "):
                user = line[2:]
                continue
            if user not in players:
                players[user] = _Player(await stack.enter_async_context(logged_in(port, user)))
            seen.append([user, *await players[user].play(line, number)])
        return seen


@pytest.mark.parametrize(("config", "lines"), list(_cases(configured=True)))
async def test_requests_of_accounts_are_answered_alike(config: str, lines: list[str], tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", extra=config) as server:
        expected = await _played(server.port, lines)
    (tmp_path / "c.conf").write_text(f"server_name: pelton\njetstream {{ store_dir: '{tmp_path}' }}\n{config}")
    with served_store(None, ["-c", str(tmp_path / "c.conf")]) as served:
        for one, other in zip(await _played(served.port, lines), expected, strict=True):
            assert one == other
