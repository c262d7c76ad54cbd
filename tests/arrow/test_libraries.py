"""Polars, DuckDB, pandas, Parquet and Delta read streams, and their data becomes messages."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pelton
import pelton.arrow

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")
deltalake = pytest.importorskip("deltalake")
pd = pytest.importorskip("pandas")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("orders", subjects=["orders.>"], allow_msg_ttl=True)
        jet.publish_batch([(f"orders.{place}", b"%d" % n) for n, place in enumerate(("eu", "us", "eu", "ch"))])
    return path


def rows(path: Path) -> list[tuple[str, bytes]]:
    found = pelton.arrow.open(path).stream("orders", columns=["subject", "data"]).read_all()
    return list(zip(found["subject"].to_pylist(), found["data"].to_pylist(), strict=True))


def test_each_library_reads_what_the_api_reads(path: Path) -> None:
    store = pelton.arrow.open(path)
    with pelton.sync.open(path) as jet:
        stream = jet.stream("orders")
        told = [(m.subject, m.data) for m in (stream.get_message(seq) for seq in range(1, 5))]
        frame = pl.from_arrow(stream.to_arrow())
    assert list(frame.select("subject", "data").iter_rows()) == told
    assert list(pl.from_arrow(store.stream("orders")).select("subject", "data").iter_rows()) == told
    orders = duckdb.from_arrow(store.stream("orders"))
    assert orders.order("sequence").project("subject, data").fetchall() == told
    counted = duckdb.from_arrow(store.stream("orders", columns=["subject"])).aggregate("subject, count(*) as n")
    assert counted.filter("n > 1").fetchall() == [("orders.eu", 2)]
    table = store.stream("orders").read_pandas()
    assert list(zip(table["subject"], table["data"], strict=True)) == told


def frames(values: dict[str, list[Any]]) -> list[Any]:
    table = pa.table(values)
    relation = duckdb.from_arrow(table)
    return [table, table.to_reader(), table.to_batches()[0], pl.from_arrow(table), table.to_pandas(), relation]


def test_data_of_each_library_becomes_messages(path: Path) -> None:
    store = pelton.arrow.open(path)
    for number, frame in enumerate(frames({"subject": ["orders.a", "orders.b"], "data": [b"1", b"2"]})):
        before = rows(path)
        assert store.publish("orders", frame) == 2, number
        assert rows(path) == [*before, ("orders.a", b"1"), ("orders.b", b"2")]


def test_rows_become_json_under_subjects_that_they_name(path: Path) -> None:
    table = pl.DataFrame({"country": ["ch", "fr"], "id": [1, 2], "note": ["ü", None]})
    assert pelton.arrow.open(path).publish("orders", table, subject="orders.new.{country}") == 2
    assert rows(path)[-2:] == [
        ("orders.new.ch", '{"country":"ch","id":1,"note":"ü"}'.encode()),
        ("orders.new.fr", b'{"country":"fr","id":2,"note":null}'),
    ]


def test_ids_headers_and_times_to_live_are_those_of_the_row(path: Path) -> None:
    kind = pa.map_(pa.string(), pa.string())
    table = pa.table(
        {
            "subject": ["orders.a", "orders.b"],
            "data": ["x", "y"],
            "msg_id": ["1", None],
            "headers": pa.array([[("Note", "n")], None], kind),
            "ttl": pa.array([None, 3600], pa.int32()),
        }
    )
    store = pelton.arrow.open(path)
    stored = store.publish("orders", table)
    assert (stored, store.publish("orders", table)) == (2, 1)
    found = store.stream("orders", start_seq=5).read_all()
    # The first row's id is known by then.
    assert found["subject"].to_pylist() == ["orders.a", "orders.b", "orders.b"]
    headers = [dict(row) if row else {} for row in found["headers"].to_pylist()]
    assert headers[0] == {"Note": ["n"], "Nats-Msg-Id": ["1"]}
    assert headers[1] == {"Nats-TTL": ["3600s"]}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"data": [b"x"]}, "no column subject"),
        ({"subject": ["orders.a"], "data": [1]}, "column data is bigint"),
        ({"subject": ["orders.a"], "data": [b""], "price": [1.5]}, "would be lost"),
        ({"subject": ["other"], "data": [b""]}, "does not take"),
        ({"subject": ["orders..a"], "data": [b""]}, "not a subject"),
        ({"subject": pa.array([None], pa.string()), "data": [b""]}, "null in 1 of 1 rows"),
    ],
)
def test_data_that_is_no_message_is_refused(path: Path, data: dict[str, Any], says: str) -> None:
    before = rows(path)
    with pytest.raises(pelton.ConfigError, match=says):
        pelton.arrow.open(path).publish("orders", pa.table(data))
    assert rows(path) == before
    with pytest.raises(pelton.ConfigError, match="no Arrow data"):
        pelton.arrow.open(path).publish("orders", [1])


def test_parquet_files_go_on_where_they_ended(path: Path, tmp_path: Path) -> None:
    store, folder = pelton.arrow.open(path), tmp_path / "lake"
    assert [store.to_parquet("orders", folder) for _ in range(2)] == [4, 0]
    with pelton.sync.open(path) as jet:
        jet.publish("orders.new", b"4")
    # What a killed export leaves behind is not read.
    (folder / ".orders.1.5-5.parquet.1").write_bytes(b"half a file")
    assert store.to_parquet("orders", folder) == 1
    files = sorted(folder.glob("*.parquet"))
    assert len(files) == 2
    found = sorted((row for file in files for row in pq.read_table(file).to_pylist()), key=lambda row: row["sequence"])
    assert [(row["subject"], row["data"]) for row in found] == rows(path)
    with pelton.sync.open(path) as jet:
        jet.delete_stream("orders")
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish("orders.again", b"")
    assert store.to_parquet("orders", folder) == 1
    assert store.to_parquet("orders", folder, subjects="none") == 0
    with pytest.raises(pelton.ConfigError, match="start_seq"):
        store.to_parquet("orders", folder, start_seq=3)


def test_a_delta_table_has_each_message_once(path: Path, tmp_path: Path) -> None:
    store, table = pelton.arrow.open(path), tmp_path / "lake"
    assert [store.to_delta("orders", table) for _ in range(2)] == [4, 0]
    with pelton.sync.open(path) as jet:
        jet.publish("orders.new", b"4", headers={"Note": "n"})
    assert [store.to_delta("orders", table) for _ in range(2)] == [1, 0]
    found = pl.read_delta(str(table)).sort("sequence")
    assert list(found.select("subject", "data").iter_rows()) == rows(path)
    assert found["time"].dtype == pl.Datetime("us", "UTC")
