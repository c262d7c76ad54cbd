"""What clients do, played on a served store and on nats-server: both must show them the same.

Each script gets a function that connects, and returns what its clients saw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.kit.wire_client import Msg
from tests.server.raw import RawClient

Connect = Callable[..., AbstractAsyncContextManager[RawClient]]
Script = Callable[[Connect], Awaitable[list[Any]]]
SCRIPTS: list[Script] = []


def script(made: Script) -> Script:
    SCRIPTS.append(made)
    return made


async def stream(client: RawClient, **config: Any) -> str:
    config = {"name": "S", "subjects": ["s.>"], "storage": "file"} | config
    return await client.request(f"$JS.API.STREAM.CREATE.{config['name']}", config)


async def consumer(client: RawClient, **config: Any) -> str:
    config = {"durable_name": "c", "ack_policy": "explicit"} | config
    return await client.request("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})


async def fill(client: RawClient, count: int) -> list[str]:
    return [await client.request(f"s.{number}", f"{number}") for number in range(1, count + 1)]


async def pending(client: RawClient, count: int) -> None:
    """Wait until the consumer has so many messages before it: nats-server tells it of them a little later."""
    while f'"num_pending": {count}' not in await client.request("$JS.API.CONSUMER.INFO.S.c"):
        pass


# --- core


@script
async def verbose_and_pedantic(connect: Connect) -> list[Any]:
    async with connect('{"verbose":true,"pedantic":true}') as client:
        seen = await client.settle()
        client.sub("a.*", "1")
        client.pub("a.b", b"x")
        client.pub("a.*", b"x")
        client.pub("a..b", b"x")
        client.sub("a..b", "2")
        client.sub("a.>.b", "3")
        client.send("UNSUB 1", "UNSUB 9")
        return [seen, await client.settle()]


@script
async def nobody_answers(connect: Connect) -> list[Any]:
    async with connect() as client, connect('{"verbose":false,"headers":true,"no_responders":false}') as other:
        client.sub("r", "1")
        client.pub("nobody", b"", "r")
        seen = await client.settle()
        other.sub("r2", "1")
        other.pub("nobody", b"", "r2")
        return [seen, await other.settle()]


@script
async def headers_for_a_client_that_knows_none(connect: Connect) -> list[Any]:
    async with connect() as client, connect('{"verbose":false,"headers":false}') as old:
        old.sub("a", "1")
        await old.settle()
        client.pub("a", b"data", block=b"NATS/1.0\r\nA: b\r\n\r\n")
        await client.settle()
        seen = await old.settle()
        old.pub("a", b"data", block=b"NATS/1.0\r\nA: b\r\n\r\n")
        return [seen, await old.settle()]


@script
async def echo_is_off(connect: Connect) -> list[Any]:
    async with connect('{"verbose":false,"echo":false,"headers":true,"no_responders":true}') as client:
        client.sub("a", "1")
        client.sub("r", "2")
        client.pub("a", b"x", "r")
        return await client.settle()


@script
async def unsubscribing_after_some(connect: Connect) -> list[Any]:
    async with connect() as client:
        client.sub("a", "1")
        client.send("UNSUB 1 2")
        for number in range(4):
            client.pub("a", str(number))
        first = await client.settle()
        client.sub("a", "2")
        client.pub("a", "4")
        client.send("UNSUB 2 1")
        client.pub("a", "5")
        return [first, await client.settle()]


@script
async def one_id_for_two_subscriptions(connect: Connect) -> list[Any]:
    async with connect() as client:
        client.sub("a", "1")
        client.sub("b", "1")
        client.pub("a", "a")
        client.pub("b", "b")
        return await client.settle()


@script
async def a_group_under_two_filters(connect: Connect) -> list[Any]:
    async with connect() as client:
        client.sub("a.*", "1", "g")
        client.sub("a.b", "1b", "h")
        client.pub("a.b", "x")
        return sorted(await client.settle())


@script
async def what_ends_a_connection(connect: Connect) -> list[Any]:
    seen = []
    for line in ("HELLO", "PUB a 2000000"):
        async with connect() as client:
            client.send(line)
            seen.append(await client.take(2))
    return seen


@script
async def a_tab_and_lower_case(connect: Connect) -> list[Any]:
    async with connect() as client:
        client.send("sub\ta\t1", "pub a\t 2\r\nhi")
        return await client.settle()


# --- publishing to streams


@script
async def publishing(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client, duplicate_window=10**10, max_msg_size=40)]
        seen.append(await client.request("s.1", b"x", b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"))
        seen.append(await client.request("s.1", b"x", b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"))
        seen.append(await client.request("s.1", b"x" * 50))
        seen.append(await client.request("s.1", b"x", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 7\r\n\r\n"))
        seen.append(await client.request("s.1", b"x", b"NATS/1.0\r\nNats-Expected-Stream: T\r\n\r\n"))
        client.pub("s.2", b"no answer")
        await client.request("s.3", b"later")
        seen.append(await client.request("$JS.API.STREAM.MSG.GET.S", {"last_by_subj": "s.2"}))
        seen.append(await client.request("$JS.API.STREAM.INFO.S", {"subjects_filter": ">"}))
        return seen


@script
async def a_stream_without_acks_and_its_subscribers(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client, no_ack=True)
        client.sub("s.*", "1")
        client.sub("r", "2")
        client.pub("s.1", b"x", "r")
        seen, missing = await client.settle(), "no message found"
        # Nothing tells when it is stored.
        while missing in (answer := await client.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})):
            pass
        return [seen, answer]


@script
async def an_atomic_batch(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client, allow_atomic=True)
        seen = []
        for number in (1, 2):
            block = f"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: {number}\r\n\r\n".encode()
            seen.append(await client.request(f"s.{number}", b"x", block))
        block = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 3\r\nNats-Batch-Commit: 1\r\n\r\n"
        seen.append(await client.request("s.3", b"x", block))
        block = b"NATS/1.0\r\nNats-Batch-Id: c\r\nNats-Batch-Sequence: 2\r\n\r\n"
        seen.append(await client.request("s.4", b"x", block))
        return seen


# --- the API


@script
async def verbs_and_their_errors(connect: Connect) -> list[Any]:
    async with connect() as client:
        api = "$JS.API"
        seen = [await client.request(f"{api}.STREAM.INFO.NONE"), await stream(client), await stream(client)]
        seen.append(await stream(client, subjects=["t.>"]))
        seen.append((await client.request(f"{api}.STREAM.CREATE.S", b"{"))[:72])
        seen.append(await client.request(f"{api}.STREAM.CREATE.S", {"name": "T"}))
        seen.append(await client.request(f"{api}.STREAM.NAMES"))
        seen.append(await client.request(f"{api}.STREAM.NAMES", {"subject": "s.1"}))
        seen.append(await client.request(f"{api}.STREAM.LIST", {"offset": 0}))
        seen.append(await client.request(f"{api}.STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>", "u"]}))
        seen.append(await client.request(f"{api}.STREAM.PURGE.S"))
        seen.append(await client.request(f"{api}.STREAM.MSG.GET.S", {"seq": 1}))
        seen.append(await client.request(f"{api}.STREAM.MSG.GET.S"))
        seen.append(await client.request(f"{api}.STREAM.DELETE.S"))
        seen.append(await client.request(f"{api}.STREAM.DELETE.S"))
        seen.append(await client.request(f"{api}.STREAM.LEADER.STEPDOWN.S"))
        return seen


@script
async def consumers_and_their_errors(connect: Connect) -> list[Any]:
    async with connect() as client:
        api = "$JS.API.CONSUMER"
        await stream(client)
        seen = [await consumer(client), await consumer(client, filter_subject="s.1")]
        seen.append(
            await client.request(f"{api}.DURABLE.CREATE.S.d", {"stream_name": "S", "config": {"durable_name": "d"}})
        )
        seen.append(
            await client.request(
                f"{api}.CREATE.S.e.s.x",
                {"stream_name": "S", "config": {"name": "e", "filter_subject": "s.x", "inactive_threshold": 10**10}},
            )
        )
        seen.append(await client.request(f"{api}.NAMES.S"))
        seen.append(await client.request(f"{api}.LIST.S"))
        seen.append(await client.request(f"{api}.INFO.S.c"))
        seen.append(await client.request(f"{api}.INFO.S.none"))
        seen.append(await client.request(f"{api}.PAUSE.S.c", {"pause_until": "2020-01-01T00:00:00Z"}))
        seen.append(await client.request(f"{api}.DELETE.S.c"))
        seen.append(await client.request(f"{api}.DELETE.S.c"))
        return seen


@script
async def requests_that_are_not_as_they_should_be(connect: Connect) -> list[Any]:
    async with connect() as client:
        api = "$JS.API"
        await stream(client)

        async def of_consumer(path: str, **config: Any) -> str:
            return await client.request(f"{api}.CONSUMER.{path}", {"stream_name": "S", "config": config})

        seen = [await stream(client, name="R", subjects=["r"], num_replicas=3)]
        seen.append(await stream(client, name="R", subjects=["r"], num_replicas=9))
        seen.append(await stream(client, name="R", subjects=["r"], max_age=10**9, pedantic=True))
        seen.append(await of_consumer("CREATE.S", durable_name="d"))
        seen.append(await of_consumer("DURABLE.CREATE.S.d"))
        seen.append(await of_consumer("CREATE.S.d", name="other"))
        seen.append(await of_consumer("CREATE.S.d", durable_name="other"))
        seen.append(await of_consumer("CREATE.S.r", name="r", num_replicas=3))
        for verb in ("STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.S", "CONSUMER.LIST.S", "STREAM.INFO.S"):
            seen.append(await client.request(f"{api}.{verb}", "x"))
        for verb in ("STREAM.MSG.GET.S", "STREAM.MSG.DELETE.S"):
            seen.append(await client.request(f"{api}.{verb}"))
        for verb in ("CONSUMER.INFO.S.d", "CONSUMER.DELETE.S.d", "STREAM.DELETE.S"):
            seen.append(await client.request(f"{api}.{verb}", "x"))
            seen.append(await client.request(f"{api}.{verb}", "{}"))
        return seen


@script
async def a_newer_api_is_needed(connect: Connect) -> list[Any]:
    async with connect() as client:
        block = b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
        return [await client.request("$JS.API.STREAM.DELETE.S", b"", block)]


@script
async def what_is_no_verb(connect: Connect) -> list[Any]:
    async with connect() as client:
        return [await client.request("$JS.API.CONSUMER.MSG.NEXT.S.c"), await client.request("$JS.ACK.S.c.1.1.1.1.1")]


# --- direct get


@script
async def direct_gets(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client, allow_direct=True)
        await fill(client, 3)
        await client.request("s.1", b"again", b"NATS/1.0\r\nA: b\r\n\r\n")
        get = "$JS.API.DIRECT.GET.S"
        seen = [
            await client.request(get, {"seq": 2}),
            await client.request(f"{get}.s.1"),
            await client.request(get, {"last_by_subj": "s.1"}),
            await client.request(get, {"next_by_subj": "s.>", "seq": 2}),
            await client.request(get, {"seq": 9}),
            await client.request(get),
            await client.request(get, b"{"),
            await client.request(f"{get}.s.none"),
            await client.request("$JS.API.DIRECT.GET.NONE", {"seq": 1}),
        ]
        client.sub("many", "m")
        client.pub(get, {"seq": 1, "batch": 3}, "many")
        seen += await client.take(4)
        client.pub(get, {"multi_last": ["s.>"], "batch": 10}, "many")
        seen += await client.take(4)
        return seen


@script
async def a_mirror_answers_for_an_origin_that_is_gone(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client, allow_direct=True)
        await fill(client, 2)
        await stream(client, name="M", subjects=None, mirror={"name": "S"}, mirror_direct=True)
        while '"messages": 2' not in await client.request("$JS.API.STREAM.INFO.M"):
            pass
        await client.request("$JS.API.STREAM.DELETE.S")
        get = "$JS.API.DIRECT.GET.S"
        seen = [await client.request(get, {"seq": 1}), await client.request(f"{get}.s.2")]
        seen += [await client.request("$JS.API.DIRECT.GET.M", {"seq": 1})]
        client.sub("many", "m")
        for body in ({"seq": 1, "batch": 3}, {"multi_last": ["s.>"], "batch": 10}):
            client.pub(get, body, "many")
            seen += await client.take(3)
        return seen


# --- pulls


def pull(client: RawClient, body: dict[str, Any] | str = "", reply: str = "in") -> None:
    client.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply)


@script
async def pulls_and_how_they_end(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client)
        await fill(client, 3)
        await pending(client, 3)
        client.sub("in", "1")
        pull(client)
        seen = [await client.take(1)]
        pull(client, {"batch": 5, "no_wait": True})
        seen.append(await client.take(3))
        pull(client, {"batch": 5, "no_wait": True})
        seen.append(await client.take(1))
        pull(client, {"batch": 2, "expires": 200_000_000})
        seen.append(await client.take(1))
        pull(client, {"batch": 2, "expires": 5_000_000_000})
        await client.settle()
        client.pub("s.4", "4")
        seen.append(await client.take(1))
        client.pub("s.5", "5")
        seen.append(await client.take(1))
        pull(client, {"batch": 1, "expires": 400_000_000, "idle_heartbeat": 150_000_000})
        seen.append(await client.until("408"))
        pull(client, {"batch": 3, "no_wait": True, "expires": 300_000_000})
        seen.append(await client.take(1))
        await client.request("s.6", "6")
        pull(client, {"batch": 3, "no_wait": True, "expires": 5_000_000_000})
        seen.append(await client.take(2))
        pull(client, "{")
        seen.append((await client.take(1))[0][:28])
        pull(client, {"batch": 1, "expires": 10**9, "idle_heartbeat": 10**9})
        seen.append(await client.take(1))
        pull(client, {"batch": 1, "expires": 5 * 10**9})
        await client.settle()
        client.sub("gone", "2")
        client.pub("$JS.API.CONSUMER.DELETE.S.c", b"", "gone")
        seen.append(sorted(await client.take(2)))
        return seen


@script
async def pulls_take_turns(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client)
        client.sub("in.*", "1")
        for name in ("a", "b"):
            pull(client, {"batch": 3, "expires": 5 * 10**9}, f"in.{name}")
        await client.settle()
        seen = []
        client.sub("_INBOX.x", "x")
        for number in range(6):
            client.pub("s.x", str(number), "_INBOX.x")
            seen.append(sorted(await client.take(2)))
        return seen


@script
async def pulls_with_bytes(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client)
        client.sub("in", "1")
        for size in (10, 10, 2000, 10):
            await client.request("s.x", b"x" * size)
        pull(client, {"batch": 10, "max_bytes": 300, "expires": 10**9})
        seen = [await client.take(3)]
        pull(client, {"batch": 1, "max_bytes": 5000, "expires": 10**9})
        seen.append(await client.take(2))
        return seen


@script
async def more_pulls_than_may_wait(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, max_waiting=2, max_batch=5, max_expires=10**10)
        client.sub("in.*", "1")
        for number in range(3):
            pull(client, {"batch": 1, "expires": 5 * 10**9}, f"in.{number}")
        seen = [await client.take(1)]
        pull(client, {"batch": 6, "expires": 5 * 10**9}, "in.many")
        pull(client, {"batch": 1, "expires": 5 * 10**10}, "in.long")
        seen.append(await client.take(2))
        seen.append(await client.request("$JS.API.CONSUMER.INFO.S.c"))
        return seen


@script
async def acks(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, ack_wait=30 * 10**9)
        await fill(client, 7)
        await pending(client, 7)
        client.sub("in", "1")

        async def get() -> str:
            pull(client)
            message = await client.next()
            return message.reply  # type: ignore[union-attr]

        seen: list[Any] = [
            await client.request(await get(), word) for word in ("", "+ACK", "+WPI", "+TERM bad", "nonsense")
        ]
        client.pub(await get(), "+NXT", "in")
        seen.append(await client.take(1))
        await client.request("s.8", "8")
        reply = await get()
        seen.append(await client.request(reply, '-NAK {"delay": 1}'))
        reply = await get()
        seen.append(await client.request(reply, "+ACK"))
        seen.append(await client.request(reply, "+ACK"))
        seen.append(await client.request("$JS.API.CONSUMER.INFO.S.c"))
        return seen


# --- pushes


@script
async def pushes_with_flow_control_and_heartbeats(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await fill(client, 2)
        made = await consumer(client, deliver_subject="out", flow_control=True, idle_heartbeat=300_000_000)
        client.sub("out", "1")
        seen = [made, await client.take(3)]
        client.send("UNSUB 1")
        return seen


@script
async def a_deliver_group(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        client.sub("out", "plain")
        client.sub("out", "1", "g")
        await client.settle()
        await consumer(client, deliver_subject="out", deliver_group="g")
        client.pub("s.1", "x")
        return [sorted(await client.take(2)), await client.request("$JS.API.CONSUMER.INFO.S.c")]


@script
async def key_value_by_hand(connect: Connect) -> list[Any]:
    async with connect() as client:
        config = {
            "name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1, "deny_delete": True,
            "allow_rollup_hdrs": True, "allow_direct": True, "discard": "new",
        }  # fmt: skip
        seen = [await stream(client, **config)]
        seen.append(await client.request("$KV.b.key", b"value"))
        seen.append(await client.request("$JS.API.DIRECT.GET.KV_b.$KV.b.key"))
        seen.append(
            await client.request("$KV.b.key", b"", b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n")
        )
        seen.append(await client.request("$JS.API.STREAM.MSG.DELETE.KV_b", {"seq": 2}))
        return seen


@script
async def lines_of_the_documents(connect: Connect) -> list[Any]:
    """The streams that the documents make with the ``nats`` command, and what happens to a second token."""
    async with connect() as client:
        seen = [
            await stream(
                client,
                name="TOKENS", subjects=["tokens.>"], retention="workqueue", discard="new",
                discard_new_per_subject=True, max_msgs_per_subject=1,
            ),
            await client.request("tokens.a", b"1"),
            await client.request("tokens.a", b"2"),
        ]  # fmt: skip
        made = {"stream_name": "TOKENS", "config": {"durable_name": "w", "ack_policy": "explicit"}}
        seen.append(await client.request("$JS.API.CONSUMER.CREATE.TOKENS.w", made))
        client.sub("in", "1")
        client.pub("$JS.API.CONSUMER.MSG.NEXT.TOKENS.w", b"1", "in")
        message = await client.next()
        seen.append(await client.request(message.reply, b"+WPI"))  # type: ignore[union-attr]
        seen.append(await client.request(message.reply, b"+ACK"))  # type: ignore[union-attr]
        seen.append(await client.request("tokens.a", b"3"))
        return seen


@script
async def a_worker_of_the_token_document(connect: Connect) -> list[Any]:
    """Twenty tokens through a source into a stream of one slot a key; the worker's group has heartbeats."""
    async with connect() as client, connect() as publisher:
        slots = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
        seen = [await stream(client, name="INBOX", subjects=["inbox.>"])]
        work = {"name": "WORK", "retention": "workqueue", "sources": [{"name": "INBOX"}], **slots}
        seen.append(await client.request("$JS.API.STREAM.CREATE.WORK", work))
        config = {
            "durable_name": "w", "ack_policy": "explicit", "deliver_subject": "work", "deliver_group": "w",
            "idle_heartbeat": 10**9, "max_ack_pending": 4, "ack_wait": 30 * 10**9,
        }  # fmt: skip
        client.sub("work", "1", "w")
        await client.settle()
        created = {"stream_name": "WORK", "config": config}
        # A heartbeat may come before the answer, to the one who subscribes.
        seen.append(await publisher.request("$JS.API.CONSUMER.CREATE.WORK.w", created))
        done: list[tuple[str, bytes]] = []
        for number in range(20):
            # The first key has two tokens: the second waits for its slot.
            await publisher.request(f"inbox.{number % 19}", f"{number}")
        while len(done) < 20:
            message = await client.next()
            if not message.data:  # type: ignore[union-attr]
                assert b"Idle Heartbeat" in message.block  # type: ignore[operator, union-attr]
                continue
            reply = message.reply  # type: ignore[union-attr]
            client.pub(reply, "+WPI")
            done.append((message.subject, message.data))  # type: ignore[union-attr]
            client.pub(reply, "+ACK")
        first = [data for subject, data in done if subject == "inbox.0"]
        return [seen, sorted(done), first]


# --- priority groups


@script
async def a_pinned_client(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        made = await consumer(
            client, priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60 * 10**9
        )
        await fill(client, 4)
        await pending(client, 4)
        client.sub("in.*", "1")
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "g"}, "in.a")
        first = await client.next()
        pin = first.block.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()  # type: ignore[union-attr]
        seen: list[Any] = [made, len(pin)]
        pull(client, {"batch": 1, "expires": 300_000_000, "group": "g"}, "in.b")
        seen.append(await client.take(1))
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "g", "id": pin}, "in.a")
        seen.append(await client.take(1))
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "g", "id": "wrong"}, "in.c")
        seen.append(await client.take(1))
        pull(client, {"batch": 1, "expires": 5 * 10**9}, "in.d")
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "h"}, "in.e")
        seen.append(await client.take(2))
        seen.append(await client.request("$JS.API.CONSUMER.UNPIN.S.c", {"group": "g"}))
        return seen


@script
async def an_overflow_group(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, priority_groups=["g"], priority_policy="overflow")
        await fill(client, 3)
        await pending(client, 3)
        client.sub("in.*", "1")
        pull(client, {"batch": 1, "expires": 300_000_000, "group": "g", "min_pending": 10}, "in.far")
        seen = [await client.take(1)]
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "g", "min_pending": 2}, "in.far")
        seen.append(await client.take(1))
        pull(client, {"batch": 2, "expires": 5 * 10**9, "group": "g"}, "in.near")
        seen.append(await client.take(2))
        return seen


@script
async def priorities(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, priority_groups=["g"], priority_policy="prioritized")
        client.sub("in.*", "1")
        pull(client, {"batch": 2, "expires": 5 * 10**9, "group": "g", "priority": 5}, "in.later")
        pull(client, {"batch": 1, "expires": 5 * 10**9, "group": "g", "priority": 1}, "in.first")
        await client.settle()
        client.sub("acks", "2")
        seen = []
        for number in range(3):
            client.pub("s.x", str(number), "acks")
            seen.append(sorted(await client.take(2)))
        return seen


async def served(client: RawClient, count: int) -> list[str]:
    """Publish messages one after the other, and return which pull each was delivered to."""
    seen = []
    for number in range(count):
        client.pub("s.x", str(number))
        seen += [line.split()[0] for line in await client.take(1)]
    return seen


@script
async def the_highest_priority_is_filled_before_others(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, priority_groups=["g"], priority_policy="prioritized")
        pulls = {"high": (3, 1), "low": (2, 9), "mid": (1, 5), "end": (1, 9)}
        for name, (batch, priority) in pulls.items():
            client.sub(f"in.{name}", name)
            body = {"batch": batch, "priority": priority, "expires": 30 * 10**9, "group": "g"}
            pull(client, body, f"in.{name}")
        await client.settle()
        return await served(client, 7)


@script
async def an_overflow_needs_its_condition_for_each_message(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, priority_groups=["g"], priority_policy="overflow")
        await fill(client, 9)
        await pending(client, 9)
        for name in ("all", "far", "near"):
            client.sub(f"in.{name}", name)
        pull(client, {"batch": 20, "expires": 300_000_000, "group": "g", "min_pending": 4}, "in.far")
        seen: list[Any] = [await client.take(7)]
        pull(client, {"batch": 3, "group": "g"}, "in.all")
        seen.append(await client.take(3))
        # A pull without conditions does not come first.
        for name, condition in (("far", {"min_pending": 1}), ("near", {})):
            pull(client, {"batch": 9, "expires": 30 * 10**9, "group": "g"} | condition, f"in.{name}")
            await client.settle()
        return [*seen, await served(client, 4)]


@script
async def the_next_is_pinned_when_the_pin_is_taken(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client, priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60 * 10**9)
        client.sub("in.unpin", "unpin")
        for name in ("a", "b", "c"):
            client.sub(f"in.{name}", name)
            pull(client, {"batch": 9, "expires": 30 * 10**9, "group": "g"}, f"in.{name}")
            await client.settle()
        seen: list[Any] = [await served(client, 3)]
        before = "a"
        for _ in range(2):
            client.pub("$JS.API.CONSUMER.UNPIN.S.c", {"group": "g"}, "in.unpin")
            lines = await client.until("unpin")
            client.send(*["PUB s.x 0", ""] * 3)
            # Three messages, and the end of the pull that had the pin: here at once, there with the second message.
            lines += await client.take(5 - len(lines))
            # Which of those that wait is the next is the server's to say, now and then another one than the longest.
            (after,) = {line.partition(" ")[0] for line in lines if "Nats-Pin-Id" in line and " 423 " not in line}
            roles = {before: "before", after: "after", "unpin": "unpin"}
            seen.append(sorted(roles[line.partition(" ")[0]] + line[line.index("[") :] for line in lines))
            before = after
        return seen


@script
async def several_pulls_of_one_inbox(connect: Connect) -> list[Any]:
    """As clients that ask for more before they need it: they receive messages in order."""
    async with connect() as client:
        await stream(client)
        await consumer(client)
        client.sub("in", "1")
        for _ in range(3):
            pull(client, {"batch": 9, "expires": 30 * 10**9})
        await client.settle()
        client.send(*(f"PUB s.{number} 0\r\n\r\n" for number in range(20)))
        return [line.split()[1] for line in await client.take(20)]


@script
async def a_pause(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        await consumer(client)
        await fill(client, 1)
        await pending(client, 1)
        client.sub("in", "1")
        answer = await client.request("$JS.API.CONSUMER.PAUSE.S.c", {"pause_until": "2100-01-01T00:00:00Z"})
        pull(client, {"batch": 1, "expires": 200_000_000})
        seen: list[Any] = ['"paused": true' in answer, await client.take(1)]
        # A pull that stands already is served at once here; nats-server lets it expire.
        seen.append(await client.request("$JS.API.CONSUMER.PAUSE.S.c", "{}"))
        pull(client, {"batch": 1, "expires": 5 * 10**9})
        seen.append(await client.take(1))
        return seen


@script
async def an_ephemeral_consumer_goes(connect: Connect) -> list[Any]:
    async with connect() as client:
        await stream(client)
        config = {"name": "e", "ack_policy": "explicit", "inactive_threshold": 1_500_000_000}
        made = {"stream_name": "S", "config": config}
        seen = [await client.request("$JS.API.CONSUMER.CREATE.S.e", made)]
        client.sub("in", "1")
        # It waits for longer than the threshold, which is long enough for the question that follows.
        client.pub("$JS.API.CONSUMER.MSG.NEXT.S.e", {"batch": 1, "expires": 1_700_000_000}, "in")
        seen.extend(await client.take(1))
        seen.append(await client.request("$JS.API.CONSUMER.INFO.S.e"))
        return seen


@script
async def an_audit(connect: Connect) -> list[Any]:
    async with connect('{"verbose":false,"headers":true,"name":"me","lang":"x","version":"1"}') as client:
        client.sub("$JS.EVENT.ADVISORY.API", "1")
        await client.settle()
        client.pub("$JS.API.STREAM.NAMES", b"", "nowhere")
        command = await client.next()
        event = json.loads(command.data)  # type: ignore[union-attr]
        about = event["client"]
        return [
            sorted(event.keys() - {"domain", "server"}),
            [about.get(name) for name in ("kind", "name", "lang", "ver", "client_type")],
            event["subject"],
            event["type"],
        ]


@script
async def audits_of_what_cannot_be_read(connect: Connect) -> list[Any]:
    async with connect('{"verbose":false,"headers":true,"name":"me","lang":"x","version":"1"}') as client:
        client.sub("$JS.EVENT.ADVISORY.API", "1")
        await client.settle()
        seen: list[Any] = []
        for subject, data in (
            ("STREAM.CREATE.S", b'{"name":\xff'),
            ("STREAM.INFO.S", b"{bad"),
            ("STREAM.DELETE.S", b"x"),
            ("STREAM.LEADER.STEPDOWN.S", b""),
        ):
            client.pub(f"$JS.API.{subject}", data, "nowhere")
            event = json.loads((await client.next()).data)  # type: ignore[union-attr]
            keys = ("type", "subject", "request")
            seen.append([*map(event.get, keys), json.loads(event["response"])["error"]["err_code"]])
        client.send("UNSUB 1")
        return [seen, re.findall(r'"errors": ?(\d+)', await client.request("$JS.API.INFO"))]


# --- bytes that are no text


NAMES = [
    "Nats-Rollup",
    "Nats-TTL",
    "Nats-Incr",
    "Nats-Msg-Id",
    "Nats-Expected-Stream",
    "Nats-Expected-Last-Msg-Id",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Schedule",
    "Nats-Schedule-Target",
    "Nats-Schedule-Source",
    "Nats-Schedule-TTL",
    "Nats-Schedule-Time-Zone",
    "Nats-Schedule-Next",
    "Nats-Scheduler",
    "Nats-Batch-Id",
    "Nats-Batch-Sequence",
    "Nats-Batch-Commit",
    "Nats-Stream-Source",
    "Nats-Counter-Sources",
    "Nats-Marker-Reason",
    "Other",
]


@script
async def header_values_that_are_no_text(connect: Connect) -> list[Any]:
    async with connect() as client:
        allowed = ("allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_schedules", "allow_atomic", "allow_direct")
        seen = [await stream(client, **dict.fromkeys(allowed, True))]
        for name in NAMES:
            block = b"NATS/1.0\r\n%b: never\xcf\r\n\r\n" % name.encode()
            seen.append(await client.request("s.1", b"x", block))
        return [*seen, await client.request("s.1", b"y"), await client.request("$JS.API.STREAM.MSG.GET.S", {"seq": 1})]


@script
async def longer_forms_of_acks(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client), await consumer(client), *await fill(client, 3)]
        await pending(client, 3)
        client.sub("taken", "taken")
        client.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 2}, "taken")
        seen += await client.take(2)
        for place in ("OWN.x", "_.x", "_._"):
            for payload in (b"+ACK", b"+NXT", b"+TERM"):
                seen.append(await client.request(f"$JS.ACK.{place}.S.c.1.1.1.0.0.t", payload))
        return [*seen, await client.request("$JS.API.CONSUMER.INFO.S.c")]


@script
async def a_pull_of_a_subscription_that_ends(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client), await consumer(client), *await fill(client, 5)]
        await pending(client, 5)
        client.sub("in", "1")
        client.send("UNSUB 1 3")
        pull(client, {"batch": 5})
        return [*seen, *await client.take(3), await client.settle()]


@script
async def acks_that_ask_for_no_answer(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client), await consumer(client, ack_wait=60_000_000_000), *await fill(client, 30)]
        await pending(client, 30)
        client.sub("in", "1")
        pull(client, {"batch": 25})
        seen += await client.take(25)
        for seq in (*range(2, 14), 1, 2, 40, 15, 16):
            client.pub(f"$JS.ACK.S.c.1.{seq}.{seq}.0.0", b"+ACK")
        for numbers in ("1.x.17.0.0", "1..17.17.0", "x.18.18.0.0", f"1.{10**19}.19.0.0", "1.٢٠.20.0.0", "1.21.20.0.0"):
            client.pub(f"$JS.ACK.S.c.{numbers}", b"")
        client.pub("$JS.ACK.S.c.1.22.22.0.0", b'-NAK {"delay": 60000000000}')
        client.pub("$JS.ACK.S.c.1.23.23.0.0", b"+TERM")
        client.pub("$JS.ACK.S.c.1.24.24.0.0", b"+WPI")
        seen.append(await client.request("$JS.ACK.S.c.1.14.14.0.0", b"+ACK"))
        return [*seen, await client.request("$JS.API.CONSUMER.INFO.S.c")]


@script
async def header_blocks_of_no_bytes(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client, republish={"src": "s.>", "dest": "again.>"}, allow_direct=True)]
        seen += [await consumer(client, headers_only=True)]
        client.sub("s.>", "live")
        client.sub("again.>", "again")
        client.sub("ack", "ack")
        client.send("HPUB s.1 ack 0 5", "hello", "HPUB s.2 ack 0 0", "")
        seen += sorted(await client.take(6))
        client.send("UNSUB again")
        for number in (1, 2):
            seen.append(await client.request("$JS.API.STREAM.MSG.GET.S", {"seq": number}))
            seen.append(await client.request("$JS.API.DIRECT.GET.S", {"seq": number}))
        return [*seen, await client.request("$JS.API.CONSUMER.MSG.NEXT.S.c", "1")]


@script
async def a_backup_waits_for_the_subscription_that_it_is_for(connect: Connect) -> list[Any]:
    """A client's wildcard for all its answers matches the deliver subject before the client subscribes to it."""
    async with connect() as client:
        await stream(client)
        await fill(client, 3)
        client.sub("_INBOX.mux.*", "mux")
        client.sub("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_CREATE.S", "begun")
        client.pub("$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": "_INBOX.mux.x"}, "_INBOX.mux.answer")
        seen = sorted(line.split()[:2] for line in await client.take(2))
        for _ in range(30):
            seen += await client.settle()
        client.sub("_INBOX.mux.x", "exact")
        return [*seen, *sorted(line.split()[:2] for line in await client.take(4))]


@script
async def streams_that_republish_side_by_side(connect: Connect) -> list[Any]:
    async with connect() as client:
        for name in ("A", "B"):
            await stream(client, name=name, subjects=[name], republish={"src": name, "dest": f"again.{name}"})
        client.sub("again.*", "again")
        client.send(*(f"PUB {'AB'[number % 2]} {len(str(number))}\r\n{number}" for number in range(100)))
        return sorted(await client.take(100))


def code_of(answer: str) -> int:
    """Return the error's number in an answer: the texts of a JSON decoder are its own."""
    found = re.search(r'"err_code": (\d+)', answer)
    return int(found[1]) if found is not None else 0


HARD = {
    "nested": '{"description": ' + "[" * 30_000,
    "unfinished": '{"a": ' * 20_000,
    "huge": '{"%s": 1' + "0" * 30 + "}",
}


VERBS = {
    "STREAM.CREATE.T": "max_msgs",
    "STREAM.UPDATE.S": "max_msgs",
    "STREAM.RESTORE.T": "config",
    "STREAM.SNAPSHOT.S": "chunk_size",
    "STREAM.PURGE.S": "seq",
    "STREAM.MSG.GET.S": "seq",
    "STREAM.MSG.DELETE.S": "seq",
    "CONSUMER.CREATE.S.d": "seq",
    "DIRECT.GET.S": "seq",
    "CONSUMER.MSG.NEXT.S.c": "batch",
}


@script
async def bodies_that_are_hard_to_read(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client, allow_direct=True), await consumer(client)]
        for name, body in HARD.items():
            for verb, field in VERBS.items():
                answer = await client.request(f"$JS.API.{verb}", body.replace("%s", field))
                seen.append((name, verb, code_of(answer) or answer[:40]))
        for number in ("9223372036854775808", "-9223372036854775809", "1" * 5000):
            body = '{"name": "T", "max_msgs": ' + number + "}"
            seen.append(code_of(await client.request("$JS.API.STREAM.CREATE.T", body)))
        return [*seen, await client.request("$JS.API.STREAM.INFO.S")]


@script
async def times_that_no_clock_reaches(connect: Connect) -> list[Any]:
    async with connect() as client:
        most = (1 << 63) - 1
        seen = [await stream(client, allow_direct=True), await consumer(client, ack_wait=most), *await fill(client, 3)]
        await pending(client, 3)
        seen.append(await client.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True}))
        seen.append(await client.request("$JS.ACK.S.c.1.1.1.0.0", '-NAK {"delay": ' + f"{most}}}"))
        seen.append(await client.request("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "no_wait": True}))
        client.sub("taken", "taken")
        client.pub("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 3, "expires": most}, "taken")
        seen += await client.take(1)
        for field in ("max_age", "duplicate_window"):
            name = field.replace("_", "")
            seen.append(await stream(client, name=name, subjects=[name], **{field: most}))
            seen.append(await client.request(name, "x"))
        return [*seen, await client.request("$JS.API.STREAM.INFO.S")]


@script
async def mappings_that_take_long_to_search(connect: Connect) -> list[Any]:
    async with connect() as client:
        seen = [await stream(client, name="O", subjects=["o"])]
        for dest in (
            "{{wildcard(" * 250 + "}}",
            "{{wildcard(" * 9 + ")" * 2_000 + "}}",
            "{{split(1,-)}}" + "$" + "1" * 2_000,
        ):
            transform = {"src": "a.*", "dest": dest}
            sources = [{"name": "O", "subject_transforms": [transform]}]
            for field in ({"subject_transform": transform}, {"republish": transform}, {"sources": sources}):
                answer = await client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]} | field)
                seen.append((dest[:12], code_of(answer)))
                await client.request("$JS.API.STREAM.DELETE.S")


@script
async def late_acks(connect: Connect) -> list[Any]:
    """The ack of a delivery that another one has replaced."""
    async with connect() as client:
        await stream(client)
        await consumer(client)
        await fill(client, 3)
        await pending(client, 3)
        client.sub("in", "1")
        seen = []
        for late in ("+ACK", "+TERM"):
            pull(client, {"batch": 1, "expires": 10**10})
            first = await client.next()
            assert isinstance(first, Msg)
            client.pub(first.reply, "-NAK")
            await client.settle()
            pull(client, {"batch": 1, "expires": 10**10})
            seen += await client.take(1)
            client.pub(first.reply, late)
            await client.settle()
            seen.append(await client.request("$JS.API.CONSUMER.INFO.S.c"))
        return seen
