"""A batch whose connection breaks half way is stored in order: what follows never overtakes what was lost."""

import asyncio
from pathlib import Path

import pelton
from pelton.testing.nats_server import nats_server
from tests.cluster.network import network

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
