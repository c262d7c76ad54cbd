"""Streams read as Arrow data: the same rows as by the API, from files, memory and servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import pelton
import pelton.arrow
from pelton.api import headers as headers_of
from pelton.api import rfc3339
from pelton.subjects import compile_filter
from tests.kit.nats_server import nats_server

WHERE = ["file", "encrypted", "memory", "server"]
OPTIONS: dict[str, dict[str, Any]] = {
    "everything": {},
    "one subject": {"subjects": "orders.eu.>"},
    "two filters": {"subjects": ["orders.eu.1", "orders.us.*"]},
    "a range": {"start_seq": 7, "end_seq": 60},
    "beyond the end": {"start_seq": 1000},
    "some columns": {"columns": ["size", "subject"], "subjects": "orders.us.2"},
}
STREAMS: dict[str, dict[str, Any]] = {
    "direct": {"allow_direct": True},
    "ordered": {},
    "work queue": {"retention": "workqueue"},
    "compressed": {"allow_direct": True, "compression": "s2"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running.url


@asynccontextmanager
async def opened(where: str, path: Path, server: str) -> AsyncIterator[pelton.Jet]:
    address = {"memory": "memory:", "server": server}.get(where, str(path))
    async with pelton.open(address, **({"key": "secret"} if where == "encrypted" else {})) as jet:
        if where == "server":
            for name in await jet.stream_names():
                await jet.delete_stream(name)
        yield jet


async def filled(jet: pelton.Jet, **fields: Any) -> pelton.Stream:
    stream = await jet.create_stream("orders", subjects=["orders.>"], **fields)
    for number in range(80):
        place = ("eu", "us", "ch")[number % 3]
        told = {"Note": ["a", "ü"]} if number % 5 == 0 else None
        await jet.publish(f"orders.{place}.{number % 4}", b'{"id": %d}' % number * (1 + number % 2), headers=told)
    for seq in (1, 2, 30, 61):
        await stream.delete_message(seq)
    return stream


async def by_the_api(stream: pelton.Stream) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        try:
            found = await stream.get_next_message(">", rows[-1]["sequence"] + 1 if rows else 1)
        except pelton.MessageNotFoundError:
            return rows
        headers = headers_of.decode(found.hdrs) if found.hdrs else {}
        told = {name: list(headers.get_all(name)) for name in headers if name != "Nats-Msg-Id"} or None
        rows.append(
            {
                "stream": "orders",
                "subject": found.subject,
                "sequence": found.seq,
                "time": found.time_ns,
                "headers": told,
                "data": found.data,
                "size": len(found.data),
            }
        )


def rows_of(reader: pa.RecordBatchReader) -> list[dict[str, Any]]:
    rows = reader.read_all()
    if "time" in rows.column_names:
        place = rows.column_names.index("time")
        rows = rows.set_column(place, "time", rows["time"].cast(pa.int64()))
    found = rows.to_pylist(maps_as_pydicts="strict")
    for row in found:
        if "headers" in row:
            # Pelton's client for servers adds ids.
            row["headers"] = {k: v for k, v in (row["headers"] or {}).items() if k != "Nats-Msg-Id"} or None
    return found


def chosen(rows: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]]:
    filters = options.get("subjects", ">")
    tests = [compile_filter(text) for text in ([filters] if isinstance(filters, str) else filters)]
    first, last = options.get("start_seq", 1), options.get("end_seq", 10**9)
    wanted = [row for row in rows if first <= row["sequence"] <= last and any(test(row["subject"]) for test in tests)]
    columns = options.get("columns")
    return wanted if columns is None else [{name: row[name] for name in columns} for row in wanted]


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("where", WHERE)
async def test_rows_are_those_of_the_api(tmp_path: Path, server: str, where: str, kind: str) -> None:
    async with opened(where, tmp_path / "store.pelton", server) as jet:
        stream = await filled(jet, **STREAMS[kind])
        rows = await by_the_api(stream)
        assert len(rows) == 76
        for name, options in OPTIONS.items():
            assert rows_of(await stream.to_arrow(**options)) == chosen(rows, options), name
        for seq in (0, 40, 75):
            time = rfc3339(rows[seq]["time"])
            assert rows_of(await stream.to_arrow(start_time=time)) == rows[seq:]
            assert rows_of(await stream.to_arrow(end_time=time)) == rows[:seq]


@pytest.mark.parametrize("where", ["file", "encrypted", "server"])
async def test_a_blocking_program_reads_the_same(tmp_path: Path, server: str, where: str) -> None:
    address = server if where == "server" else tmp_path / "store.pelton"
    key = {"key": "secret"} if where == "encrypted" else {}
    async with opened(where, tmp_path / "store.pelton", server) as jet:
        rows = await by_the_api(await filled(jet, allow_direct=True))
        # Beside a live writer.
        store = pelton.arrow.open(address, **key)
        for options in OPTIONS.values():
            found = await asyncio.to_thread(lambda options=options: rows_of(store.stream("orders", **options)))
            assert found == chosen(rows, options)


async def test_values_are_decoded_and_errors_told(tmp_path: Path) -> None:
    class Order(msgspec.Struct):
        id: int
        paid: bool | None = None

    async with pelton.open(tmp_path / "store.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders"])
        await jet.publish("orders", b'{"id": 1, "paid": true, "more": 3}')
        await jet.publish("orders", b"no json")
        await jet.publish("orders", b'{"id": 10000000000000000000000}')
        fields = pa.schema([("id", pa.int64()), ("paid", pa.bool_())])
        found = (await stream.to_arrow(decode="json", schema=fields, columns=["value", "error"])).read_all()
        assert found["value"].to_pylist() == [{"id": 1, "paid": True}, None, None]
        assert [bool(error) for error in found["error"].to_pylist()] == [False, True, True]
        await stream.purge()
        await jet.publish("orders", msgspec.msgpack.encode(Order(5)))
        found = (await stream.to_arrow(decode="msgpack", schema=pa.struct(list(fields)))).read_all()
        assert found["value"].to_pylist() == [{"id": 5, "paid": None}]
        await stream.purge()
        await jet.publish("orders", "ü".encode())
        await jet.publish("orders", b"\xff")
        found = (await stream.to_arrow(decode="text")).read_all()
        assert found["value"].to_pylist() == ["ü", None]
        assert found["data"].to_pylist() == ["ü".encode(), b"\xff"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "data"}, "a list of names"),
        ({"columns": ["datum"]}, "no column 'datum'"),
        ({"columns": ["data", "data"]}, "twice"),
        ({"columns": ["value"]}, "need decode="),
        ({"columns": ["error"], "decode": "text"}, "select both"),
        ({"decode": "xml"}, "choose json, msgpack or text"),
        ({"decode": "json"}, "needs schema="),
        ({"schema": pa.int64()}, "needs decode"),
        ({"decode": "text", "schema": pa.int64()}, "leave schema out"),
        ({"decode": "json", "schema": pa.time32("s")}, "cannot be decoded to time32"),
        ({"subjects": "orders..eu"}, "not a subject filter"),
        ({"start_seq": 0}, "start_seq"),
        ({"end_seq": -1}, "end_seq"),
        ({"start_time": "yesterday"}, "RFC 3339"),
        ({"end_time": 5}, "RFC 3339"),
    ],
)
async def test_bad_options_say_what_to_do(options: dict[str, Any], says: str) -> None:
    async with pelton.open("memory:") as jet:
        stream = await jet.create_stream("orders", subjects=["orders"])
        with pytest.raises(pelton.ConfigError, match=says):
            await stream.to_arrow(**options)


async def test_a_damaged_message_is_an_error_and_not_a_row(tmp_path: Path) -> None:
    path = tmp_path / "store.pelton"
    async with pelton.open(path) as jet:
        await filled(jet)
    data = path.read_bytes()
    place = data.index(b'{"id": 44}')
    path.write_bytes(data[: place + 7] + b"5" + data[place + 8 :])
    async with pelton.open(path) as jet:
        reader = await (await jet.stream("orders")).to_arrow()
        with pytest.raises(pelton.CorruptMessageError, match="45"):
            reader.read_all()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(pelton.NotAStoreError):
        pelton.arrow.open(tmp_path / "none.pelton")
    with pytest.raises(pelton.ConfigError, match="to_arrow"):
        pelton.arrow.open("memory:")
    with pelton.sync.open(tmp_path / "store.pelton"):
        pass
    with pytest.raises(pelton.StreamNotFoundError):
        pelton.arrow.open(tmp_path / "store.pelton").stream("orders")


async def test_a_reader_that_is_left_behind_lets_the_store_go(tmp_path: Path) -> None:
    path = tmp_path / "store.pelton"
    async with pelton.open(path) as jet:
        stream = await filled(jet)
        reader = await stream.to_arrow()
        assert reader.read_next_batch().num_rows
    assert reader.read_all().num_rows == 0
    async with pelton.open(path) as jet:
        assert (await jet.publish("orders.eu.1", b"")).seq == 81


def test_a_queues_history_is_a_table(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "store.pelton") as jet:
        queue = jet.queue("garage")

        @queue.job(max_attempts=1)
        def repair(car: str) -> str:
            if car == "wreck":
                raise ValueError("beyond repair")
            return f"{car} is new"

        queue.enqueue(repair, "car1")
        queue.enqueue(repair, "wreck")
        queue.work(until_empty=True)
        queue.cancel(queue.enqueue(repair, "sold").id)
        told = {outcome.id: outcome for outcome in queue.history()}
    found = pelton.arrow.open(tmp_path / "store.pelton").queue_history("garage").read_all()
    assert found.num_rows == len(told) == 3
    for row in found.to_pylist():
        outcome = told[row["id"]]
        assert (row["job"], row["state"], row["attempt"]) == (outcome.job, outcome.state, outcome.attempt)
        assert row["error"] == outcome.error
        assert (row["started_at"] is None) == (outcome.state == "cancelled")
        assert row["result"] == ('"car1 is new"' if outcome.state == "completed" else None)
    times = found["finished_at"].cast(pa.int64()).to_pylist()
    assert sorted(times) == sorted(outcome.finished_at for outcome in told.values())
