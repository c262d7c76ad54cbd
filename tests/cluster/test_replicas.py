"""A cluster of three: replicas, placement, and how the servers report them."""

import asyncio
from collections.abc import Iterator

import pytest

import pelton
from tests.kit.nats_server import NatsCluster, nats_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with nats_cluster(tmp_path_factory.mktemp("cluster"), tags=("red", "green", "green")) as running:
        yield running


async def test_who_leads_and_who_follows(cluster: NatsCluster) -> None:
    async with pelton.open(cluster.url) as jet:
        stream = await jet.create_stream("S", num_replicas=3)
        consumer = await stream.create_consumer(durable_name="c")
        for info in (await stream.info(), await consumer.info()):
            assert info.cluster is not None
            names = {info.cluster.leader, *(peer.name for peer in info.cluster.replicas)}
            assert (info.cluster.name, names) == ("pelton", {"n0", "n1", "n2"})
        while not all(peer.current for peer in (await stream.info()).cluster.replicas):  # type: ignore[union-attr]
            await asyncio.sleep(0)


async def test_more_replicas_than_servers(cluster: NatsCluster) -> None:
    async with pelton.open(cluster.url, patience=0.5) as jet:
        for number, err_code in ((5, 10005), (7, 10052)):
            with pytest.raises(pelton.ApiError) as refusal:
                await jet.create_stream("MANY", num_replicas=number)
            assert refusal.value.err_code == err_code


async def test_a_stream_lies_where_its_tags_say(cluster: NatsCluster) -> None:
    async with pelton.open(cluster.url, patience=0.5) as jet:
        red = await jet.create_stream("RED", placement={"tags": ["red"]})
        green = await jet.create_stream("GREEN", placement={"tags": ["green"]}, num_replicas=2)
        there = (await red.info()).cluster
        assert there is not None
        assert (there.leader, there.replicas) == ("n0", [])
        there = (await green.info()).cluster
        assert there is not None
        assert {there.leader, there.replicas[0].name} == {"n1", "n2"}
        with pytest.raises(pelton.ApiError) as refusal:
            await jet.create_stream("BLUE", placement={"tags": ["blue"]})
        assert refusal.value.err_code == 10005
        assert "blue" in refusal.value.description


async def test_a_queue_gets_more_replicas_when_it_is_opened_with_them(cluster: NatsCluster) -> None:
    async with pelton.open(cluster.url) as jet:
        garage = await jet.queue("garage", exclusive=True)
        job = garage.job(name="job")(lambda: "done")
        handles = [await job.enqueue(key="car1"), await job.enqueue()]
        flow = await garage.new_flow()
        flow.add(job)
        in_flow = await flow.enqueue()
        again = await jet.queue("garage", num_replicas=3)
        again.job(name="job")(lambda: "done")
        names = [name for name in await jet.stream_names() if name.startswith("JOBS_garage")]
        assert [(await jet.stream(name)).config.num_replicas for name in names] == [3] * len(names)
        await again.work(until_empty=True, handle_signals=False)
        assert [(await handle.outcome(timeout=60)).value() for handle in handles] == ["done", "done"]
        assert (await in_flow.outcome(timeout=60)).state == "completed"
        assert (await jet.queue("garage")).exclusive
        await jet.queue("garage", num_replicas=1)
        assert [(await jet.stream(name)).config.num_replicas for name in names] == [1] * len(names)
