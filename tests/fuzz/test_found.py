"""What was found by `make fuzz`, played on a served store and on nats-server: both must show the same."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.fuzz import jetstream, protocol
from tests.fuzz.play import Case
from tests.kit.nats_server import NatsServer, nats_server
from tests.server.conftest import Started
from tests.server.raw import RawClient, raw_client

_ID = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"


async def only_one_subscription_is_told_that_nobody_answers(client: RawClient) -> list[Any]:
    for subject, sid, queue in (("a.b", "1", ""), ("a.*", "2", ""), ("a.b", "3", "g")):
        client.sub(subject, sid, queue)
    client.pub("nobody", b"", "a.b")
    client.pub("nobody", b"", "c")
    client.pub("nobody", b"", "a.")
    seen = await client.settle()
    client.send("UNSUB 1", "UNSUB 2")
    client.pub("nobody", b"", "a.b")
    # Which one is told is nobody's promise.
    return [each[1:] for each in seen] + await client.settle()


async def being_told_is_no_message_for_a_limited_subscription(client: RawClient) -> list[Any]:
    client.sub("a", "1")
    client.send("UNSUB 1 1")
    client.pub("nobody", b"", "a")
    client.pub("a", b"x")
    client.pub("a", b"y")
    return await client.settle()


async def a_stream_that_copies_another_keeps_no_ids(client: RawClient) -> list[Any]:
    await client.request("$JS.API.STREAM.CREATE.D", {"name": "D", "subjects": ["d"], "sources": [{"name": "X"}]})
    return [await client.request("d", b"", _ID) for _ in range(2)]


async def names_that_cannot_be_are_not_there(client: RawClient) -> list[Any]:
    await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    paths = ("STREAM.DELETE.*", "STREAM.INFO.>", "CONSUMER.INFO.S.*", "CONSUMER.DELETE.*.c", "CONSUMER.INFO.a*.b>")
    found = [await client.request(f"$JS.API.{path}") for path in paths]
    return [json.loads(each.partition("] ")[2])["error"] for each in found]


async def subjects_with_an_empty_token_reach_nobody(client: RawClient) -> list[Any]:
    await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
    paths = ("DIRECT.GET.S.", "DIRECT.GET.S.s..1", "STREAM.UPDATE.", "STREAM.INFO..S")
    found = [await client.request(f"$JS.API.{path}") for path in paths]
    client.sub(">", "all")
    for subject in ("a..b", "a.", ".a", "a.b"):
        client.pub(subject, b"x")
    return [*found, await client.settle()]


async def a_payload_that_does_not_end(client: RawClient) -> list[Any]:
    client.send(b"PUB a 1\r\nxx\r\n")
    return await client.until("END")


async def a_size_with_a_carriage_return_is_none(client: RawClient) -> list[Any]:
    client.send(b"PUB a 1\r\r\nx\r\n")
    # nats-server does not always say why.
    return (await client.until("END"))[-1:]


async def a_line_that_begins_with_space_is_none(client: RawClient) -> list[Any]:
    client.send(b" PING\r\n")
    return await client.until("END")


async def a_pong_comes_before_what_was_sent_after_the_ping(client: RawClient) -> list[Any]:
    # The end of the connection, too.
    client.send(b"PING\r\nSUB a.* 1\r\nPING\r\nPUB a.b 0\r\n\r\nBAD\r\n")
    return await client.take(4)


async def what_the_first_connect_said_still_counts_after_the_second(client: RawClient) -> list[Any]:
    client.send('CONNECT {"headers":false}')
    return await client.take(1)


FOUND: list[Callable[[RawClient], Awaitable[list[Any]]]] = [
    only_one_subscription_is_told_that_nobody_answers,
    being_told_is_no_message_for_a_limited_subscription,
    a_stream_that_copies_another_keeps_no_ids,
    names_that_cannot_be_are_not_there,
    subjects_with_an_empty_token_reach_nobody,
    a_payload_that_does_not_end,
    a_size_with_a_carriage_return_is_none,
    a_line_that_begins_with_space_is_none,
    a_pong_comes_before_what_was_sent_after_the_ping,
    what_the_first_connect_said_still_counts_after_the_second,
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    accounts = "".join(
        f"A{n} {{ jetstream: enabled, users: [{{ user: u{n}, password: p }}] }}\n" for n in range(len(FOUND) + 2)
    )
    with nats_server(tmp_path_factory.mktemp("nats"), extra=f"accounts {{ {accounts} }}") as running:
        yield running


@pytest.mark.parametrize("number", range(len(FOUND)), ids=lambda number: FOUND[number].__name__)
async def test_it_is_the_same(number: int, started: Started, real: NatsServer) -> None:
    expected, found = await _both(FOUND[number], number, started, real)
    assert found == expected


async def _both(
    play: Callable[[RawClient], Awaitable[list[Any]]], number: int, started: Started, real: NatsServer
) -> tuple[list[Any], list[Any]]:
    """What is seen on nats-server, and here."""
    plain = '{"verbose":false,"pedantic":false,"headers":true,"no_responders":true'
    async with raw_client(real.port, f'{plain},"user":"u{number}","pass":"p"}}') as client:
        expected = await play(client)
    server = await started()
    async with raw_client(server.endpoints[0].port, f"{plain}}}") as client:
        return expected, await play(client)


async def test_a_subject_with_wildcards_is_stored_there_and_refused_here(started: Started, real: NatsServer) -> None:
    async def play(client: RawClient) -> list[Any]:
        for name, subjects in (("S", "s.>"), ("KV_B", "$KV.B.>")):
            await client.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [subjects]})
        answers = [await client.request(subject) for subject in ("s.*", "s.a.>", "s.>", "$KV.B.*", "$KV.B.a.>")]
        # What only looks like one is stored here, too.
        return [*answers, await client.request("s.a*", b"x"), await client.request("$KV.B.>a", b"x")]

    there, here = await _both(play, len(FOUND), started, real)
    assert all('"seq": ' in answer for answer in there)
    assert all("NATS/1.0 503" in answer for answer in here[:5])
    assert all('"seq": 1' in answer for answer in here[5:])


async def test_no_archive_is_sent_to_a_subject_that_holds_nul(started: Started, real: NatsServer) -> None:
    async def play(client: RawClient) -> list[Any]:
        await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        subjects = ("\x00", "a.\x00", "d")
        return [await client.request("$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": each}) for each in subjects]

    there, here = await _both(play, len(FOUND) + 1, started, real)
    assert [10015 in _codes(answer) for answer in there] == [False, False, False]
    assert [10015 in _codes(answer) for answer in here] == [True, True, False]


def _codes(answer: str) -> list[int]:
    return [int(code) for code in re.findall(r'"err_code": (\d+)', answer)]


def test_what_is_known_to_differ_is_not_sent_in_a_changed_frame_either() -> None:
    # A byte of a subject in the eighth frame was another, which made it no UTF-8; and an archive was sent to NUL.
    random = Case("frames", 1_000_009_000_000_866).random
    protocol.connect(random, "u0")
    assert protocol.carried_by(protocol.frames(random)[7]).partition(b"\n")[0].decode()
    asked = jetstream.requests(Case("requests", 1_000_009_000_001_010).random)
    assert (asked[7].subject, asked[7].data) == ("$JS.API.STREAM.SNAPSHOT.S", b"")
