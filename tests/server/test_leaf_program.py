"""A program whose file is a leaf node, with no server that listens; and the domains across, in both directions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import nats
import pytest
from nats.aio.client import Client

import pelton
import pelton.sync
from pelton import observe
from pelton.metrics import metrics_text
from tests.conformance.cases.eventually import eventually
from tests.kit.nats_server import free_ports, nats_server


class Hub(NamedTuple):
    """The addresses of a hub, for clients and for leaf nodes."""

    url: str
    leafs: str


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    (port,) = free_ports(1)
    extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    with nats_server(tmp_path_factory.mktemp("hub"), domain="hub", extra=extra) as server:
        yield Hub(server.url, f"nats://127.0.0.1:{port}")


@pytest.fixture
async def at_hub(hub: Hub) -> AsyncIterator[Client]:
    async with await nats.connect(hub.url) as client:
        yield client


def leaf(hub: Hub, **options: Any) -> pelton.Leaf:
    return pelton.Leaf(hub.leafs, domain="edge", reconnect=0.05, **options)


@pytest.mark.parametrize("address", ["edge.pelton", "memory:"])
async def test_each_side_uses_the_jetstream_of_the_other(hub: Hub, tmp_path: Path, address: str) -> None:
    path = address if address == "memory:" else str(tmp_path / address)
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(pelton.open(path, leaf=leaf(hub)))
        await edge.create_stream("orders", subjects=["orders.>"])
        await edge.publish("orders.1", b"at the edge")
        far = await stack.enter_async_context(await edge.domain("hub"))
        near = await stack.enter_async_context(pelton.open(hub.url))
        back = await stack.enter_async_context(await near.domain("edge"))
        invoices = await far.create_stream("invoices", subjects=["invoices.>"], storage="memory")
        assert (await far.publish("invoices.1", b"at the hub")).domain == "hub"
        for name, streams, stored in (("edge", back, b"at the edge"), ("hub", far, b"at the hub")):
            assert (await streams.account_info()).domain == name
            stream = await streams.stream({"edge": "orders", "hub": "invoices"}[name])
            consumer = await stream.create_consumer(durable_name="d", ack_policy="explicit")
            [message] = await consumer.fetch(1, timeout=5)
            assert message.data == stored
            await message.ack()
            assert (await consumer.info()).num_ack_pending == 0
            async with aclosing(stream.ordered()) as ordered:
                assert (await anext(ordered)).data == stored
            bucket = await streams.create_bucket("settings")
            assert await bucket.put("colour", b"red") == 1
            assert (await bucket.get("colour")).value == b"red"
            garage = await streams.queue("garage")
            assert (await garage.enqueue("wash", car="car1")).id
            await garage.delete()
            await streams.delete_bucket("settings")
        await invoices.delete()


async def test_what_the_program_subscribes_to_and_answers(hub: Hub, at_hub: Client, tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "edge.pelton", leaf=leaf(hub)) as edge:
        heard = await edge.subscribe("news.*")

        async def is_heard() -> bool:
            await at_hub.publish("news.1", b"from the hub")
            return await heard.next(timeout=0.2) is not None

        await eventually(is_heard, True)
        messages = await at_hub.subscribe("told.*")
        await at_hub.flush()
        await edge.create_stream("told", subjects=["told.*"])

        async def is_told() -> bool:
            await edge.publish("told.1", b"from the edge")
            try:
                return (await messages.next_msg(0.2)).data == b"from the edge"
            except nats.errors.TimeoutError:
                return False

        await eventually(is_told, True)


async def test_the_program_takes_from_streams_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """Mirrored and sourced, again and again: each message once, in order."""
    path = tmp_path / "edge.pelton"
    origin = pelton.StreamSource(name="O", external=pelton.External(api="$JS.hub.API"))

    async def numbers(stream: pelton.Stream) -> list[int]:
        last = (await stream.info()).state.last_seq
        return [int((await stream.get_message(seq)).data) for seq in range(1, last + 1)]

    async with pelton.open(hub.url) as near:
        made = await near.create_stream("O", subjects=["o.*"])
        for begun in (0, 21):
            await near.publish_batch([("o.1", b"%d" % number) for number in range(begun, begun + 20)])
            async with pelton.open(path, leaf=leaf(hub)) as edge:
                await near.publish("o.2", b"%d" % (begun + 20))
                copies = [await edge.create_stream("M", mirror=origin), await edge.create_stream("S", sources=[origin])]
                for copy in copies:
                    await eventually(partial(numbers, copy), await numbers(made))
        await made.delete()


async def test_a_hub_whose_acks_name_its_domain(tmp_path: Path) -> None:
    """As newer servers have them: ``$JS.ACK.DOMAIN.HASH.…``, and so for flow control."""
    (port,) = free_ports(1)
    extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}\nfeature_flags {{ js_ack_fc_v2: true }}'
    origin = pelton.StreamSource(name="O", external=pelton.External(api="$JS.hub.API"))
    with nats_server(tmp_path / "hub", domain="hub", extra=extra) as server:
        joined = leaf(Hub(server.url, f"nats://127.0.0.1:{port}"))
        async with (
            pelton.open(server.url) as near,
            pelton.open(tmp_path / "edge.pelton", leaf=joined) as edge,
            await edge.domain("hub") as far,
        ):
            made = await near.create_stream("O", subjects=["o"])
            await near.publish_batch([("o", bytes(5000))] * 500)
            copy = await edge.create_stream("M", mirror=origin)

            async def stored() -> int:
                return (await copy.info()).state.messages

            await eventually(stored, 500)
            consumer = await (await far.stream("O")).create_consumer(durable_name="d", ack_policy="explicit")
            [message] = await consumer.fetch(1, timeout=5)
            await message.ack()
            info = await (await made.consumer("d")).info()
            assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 1)


async def test_a_mirror_of_a_bucket_of_the_hub_is_written_through(hub: Hub, tmp_path: Path) -> None:
    path, origin = tmp_path / "edge.pelton", {"name": "cars", "domain": "hub"}
    async with pelton.open(hub.url) as near, pelton.open(path, leaf=leaf(hub)) as edge:
        cars = await near.create_bucket("cars", history=5)
        await cars.put("a", b"1")
        copy = await edge.create_bucket("copy", mirror=origin)

        async def held() -> dict[str, bytes | None]:
            listed = copy.keys()
            return {key: (await copy.get(key)).value async for key in listed}

        await eventually(held, dict[str, bytes | None](a=b"1"))
        assert await copy.put("b", b"2") == 2
        await copy.delete("a")
        # Its marker may not be here yet.
        assert await copy.create("a", b"3") == 4
        with pytest.raises(pelton.BucketKeyExistsError):
            await copy.create("a", b"4")
        with pytest.raises(pelton.WrongLastSequenceError):
            await copy.update("b", b"5", 1)
        assert [(await cars.get(key)).value for key in ("a", "b")] == [b"3", b"2"]
        await eventually(held, dict[str, bytes | None](a=b"3", b=b"2"))
        with pytest.raises(pelton.ConfigError, match="no transaction includes"):
            async with edge.transaction() as tx:
                await tx.bucket(copy).put("a", b"6")
        await near.delete_bucket("cars")
    async with pelton.open(path) as plain:
        with pytest.raises(pelton.ConfigError, match="this file has no hub"):
            await (await plain.bucket("copy")).put("a", b"8")


def test_blocking_calls(hub: Hub, tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "edge.pelton", leaf=leaf(hub)) as edge, edge.domain("hub") as far:
        assert far.account_info().domain == "hub"
        assert edge.account_info().domain == "edge"


PROGRAM = """
import asyncio, sys, pelton
async def main():
    async with pelton.open(sys.argv[1], leaf=pelton.Leaf(sys.argv[2], domain="edge", reconnect=0.05)) as jet:
        async with await jet.domain("hub"):
            print("joined", flush=True)
            await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_of_two_processes_one_is_the_leaf_and_the_other_takes_over(
    hub: Hub, at_hub: Client, tmp_path: Path
) -> None:
    path = tmp_path / "edge.pelton"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, path, hub.leafs], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert await asyncio.to_thread(first.stdout.readline) == b"joined\n"
        try:
            async with pelton.open(path, leaf=leaf(hub)) as edge:
                await edge.create_stream("orders", subjects=["orders.>"])
                # By the other process.
                async with await edge.domain("hub") as far:
                    assert (await far.account_info()).domain == "hub"

                async def stored() -> int:
                    return (await edge.account_info()).streams and (
                        await (await edge.stream("orders")).info()
                    ).state.messages

                async def is_acknowledged() -> bool:
                    try:
                        await at_hub.request("orders.1", b"", timeout=1)
                    except nats.errors.Error:
                        return False
                    return True

                await eventually(is_acknowledged, True)
                assert await stored() == 1
                os.kill(first.pid, signal.SIGKILL)
                await eventually(is_acknowledged, True)
                await at_hub.request("orders.2", b"", timeout=1)
                assert await stored() == 3
        finally:
            first.kill()


async def test_what_cannot_be_a_leaf(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(pelton.ConfigError, match="is a cluster, and leaf mean"):
        pelton.open(hub.url, leaf=leaf(hub))
    path = tmp_path / "edge.pelton"
    for wrong, why in (
        (pelton.Leaf("http://hub"), "the address of a hub is 'http://hub'"),
        (pelton.Leaf([]), "the address of a hub is ''"),
        (pelton.Leaf(cast("Any", 3)), "the address of a hub is 3"),
        (pelton.Leaf("nats://hub", domain="a.b"), "must be one token"),
        (pelton.Leaf("nats://hub", domain=cast("Any", b"")), "must be one token"),
        (pelton.Leaf("nats://hub", user=cast("Any", 3), password=""), "user is 3"),
        (pelton.Leaf("nats://hub", nkey=cast("Any", 3)), "nkey is 3"),
        (pelton.Leaf("nats://hub", deny_imports="a.>"), "deny_imports is 'a.>'"),
        (pelton.Leaf("nats://hub", deny_exports=["a..b"]), "deny_exports is"),
        (pelton.Leaf("nats://hub", reconnect=0), "reconnect is 0"),
        (pelton.Leaf("nats://hub", tls_first=cast("Any", "auto")), "tls_first is 'auto'"),
        (pelton.Leaf("nats://hub", user="a"), "belong together"),
        (pelton.Leaf("nats://hub", nkey="SU", credentials="file"), "keep one of them"),
        ("nats://hub", "give a pelton.Leaf"),
    ):
        with pytest.raises(pelton.ConfigError, match=why):
            pelton.open(path, leaf=wrong)  # type: ignore[arg-type]  # one of them is wrong
    with pytest.raises(pelton.ConfigError, match="leave them out"):
        pelton.open(path, leaf=leaf(hub), read_only=True)
    async with pelton.open(path) as plain:
        with pytest.raises(pelton.ConfigError, match="this file has no hub"):
            await plain.domain("hub")
    assert "secret" not in repr(leaf(hub, user="me", password="secret"))


async def test_a_hub_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.connect.store._ORIGIN_S", 0.3)
    (port,) = free_ports(1)
    away = pelton.Leaf(f"nats://127.0.0.1:{port}", domain="edge", reconnect=0.05)
    async with pelton.open(tmp_path / "edge.pelton", leaf=away) as edge:
        await edge.create_stream("orders")
        assert (await edge.publish("orders", b"works on")).seq == 1
        with pytest.raises(pelton.ServerUnreachableError, match="Connect call failed"):
            await edge.domain("hub", patience=0.5)
        settings = await edge.create_bucket("settings", mirror={"name": "settings", "domain": "hub"})
        with pytest.raises(pelton.ServerUnreachableError, match="Connect call failed"):
            await settings.put("colour", b"red")
        # As any process tells it that has the file open.
        path = str(tmp_path / "edge.pelton")

        async def told() -> list[str]:
            health = await observe.health_facts(edge, path, (), ())
            return [alarm.text for alarm in observe.alarms_of(health) if alarm.kind == "hub"]

        async def is_away() -> bool:
            return [f"The hub nats://127.0.0.1:{port} is away" in text for text in await told()] == [True]

        async def is_well() -> bool:
            return not await told()

        await eventually(is_away, True)
        extra = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
        with nats_server(tmp_path / "hub", domain="hub", extra=extra):
            far = await edge.domain("hub", patience=20)
            assert (await far.account_info()).domain == "hub"
            await eventually(is_well, True)
            [hub] = (await observe.store_summary(edge, path)).hubs
            assert (hub.domain, hub.reason, hub.attempts, hub.pid) == ("edge", "", 0, os.getpid())
            assert hub.connected_ns
            text, _ = await metrics_text(edge, path=path)
            assert f'pelton_leaf_connected{{hub="nats://127.0.0.1:{port}"}} 1.0' in text.decode()
            await far.create_bucket("settings", history=2)

            async def is_put() -> bool:
                with suppress(pelton.ServerUnreachableError, pelton.ServerTimeoutError):
                    return await settings.put("colour", b"red") > 0
                return False

            await eventually(is_put, True)
        with pytest.raises(pelton.ServerUnreachableError, match="the hub is away, or has no such bucket"):
            await settings.put("colour", b"blue")
        with nats_server(tmp_path / "hub", domain="hub", extra=extra):
            await far.create_stream("invoices")
        await far.close()
    assert not os.path.exists(f"{path}-leafs")
