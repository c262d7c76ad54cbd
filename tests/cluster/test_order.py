"""Messages published over a connection that breaks are stored in order: later ones never overtake lost ones."""

import asyncio
from pathlib import Path

import pytest

import pelton
from tests.cluster.network import network
from tests.kit.nats_server import nats_server

_MESSAGES = 2000
_SIZE = 8192
_CUTS = 4


async def test_a_batch_keeps_its_order_through_cuts(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with network(server.port) as net, pelton.open(net.url) as jet, pelton.open(server.url) as near:
            stream = await jet.create_stream("S", subjects=["s"])
            batch = [("s", b"%-*d" % (_SIZE, number)) for number in range(_MESSAGES)]
            work = asyncio.create_task(jet.publish_batch(batch))
            for cut in range(1, _CUTS + 1):
                while net.carried < cut * _MESSAGES * _SIZE // (_CUTS + 1) and not work.done():
                    await asyncio.sleep(0)
                net.cut()
                net.mend()
            acks = await work
            assert (await stream.info()).state.messages == _MESSAGES
            stream = await near.update_stream("S", allow_direct=True)
            stored = []
            while messages := await stream.get_messages(seq=len(stored) + 1):
                stored += [int(message.data) for message in messages]
            assert stored == list(range(_MESSAGES))
            assert [ack.seq for ack in acks] == list(range(1, _MESSAGES + 1))


@pytest.mark.parametrize(("size", "cuts"), [(_SIZE, 0), (100, 2), (_SIZE, _CUTS)])
async def test_publishes_in_flight_keep_their_order(tmp_path: Path, size: int, cuts: int) -> None:
    with nats_server(tmp_path) as server:
        async with network(server.port) as net, pelton.open(net.url) as jet:
            stream = await jet.create_stream("S", subjects=["s"])
            before = net.carried
            # Most large ones wait for room; those of the second half start while others are sent again.
            early = [asyncio.create_task(jet.publish("s", b"%-*d" % (size, n))) for n in range(_MESSAGES // 2)]
            late: list[asyncio.Task[pelton.PubAck]] = []
            for cut in range(1, cuts + 1):
                while net.carried - before < cut * _MESSAGES * size // (2 * cuts + 2):
                    await asyncio.sleep(0)
                net.cut()
                net.mend()
                for number in range(_MESSAGES // 2 // cuts):
                    late.append(asyncio.create_task(jet.publish("s", b"%-*d" % (size, number))))
                    await asyncio.sleep(0)
            acks = await asyncio.gather(*early, *late)
            assert [ack.seq for ack in acks] == list(range(1, len(acks) + 1))
            assert (await stream.info()).state.messages == len(acks)
