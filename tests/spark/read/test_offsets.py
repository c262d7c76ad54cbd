"""Offsets of a streaming query, and the start of its first batch."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import pelton
from pelton.spark import DataLossError
from pelton.spark.read.ranges import StreamPosition, begin, from_json, next_end, to_json
from pelton.spark.read.read_options import read_options
from pelton.spark.read.readers import PeltonStreamReader


def test_offsets_are_kept_in_order_and_read_back() -> None:
    offset = {"b": StreamPosition(5, "t", 5), "a": StreamPosition(1, "s")}
    assert list(to_json(offset)) == ["a", "b"]
    assert to_json(offset)["a"] == {"created": "s", "sequence": 1}
    assert from_json(to_json(offset)) == offset


def test_the_end_of_a_streams_first_batch_says_where_that_began_and_no_other_does() -> None:
    initial = {"a": StreamPosition(3, "s", 3), "b": StreamPosition(0, "t", 0)}
    first = next_end(initial, {"a": StreamPosition(9, "s")})
    assert first == {"a": StreamPosition(9, "s", 3), "b": StreamPosition(0, "t", 0)}
    second = next_end(first, {"b": StreamPosition(4, "t"), "new": StreamPosition(2, "u")})
    assert second == {"a": StreamPosition(9, "s"), "b": StreamPosition(4, "t", 0), "new": StreamPosition(2, "u")}
    assert next_end(second, {"b": StreamPosition(5, "t")})["b"] == StreamPosition(5, "t")
    anew = next_end(initial, {"a": StreamPosition(2, "later")})
    assert anew["a"] == StreamPosition(2, "later")
    assert begin(first["a"], StreamPosition(7, "s", 7)) == StreamPosition(3, "s")
    assert begin(second["a"], first["a"]) == first["a"]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_first_batch_is_the_same_when_it_is_planned_again(tmp_path: Path, start: str) -> None:
    options = {"path": str(tmp_path / "s.pelton"), "stream": "orders", "startingSequence": start}

    def reader() -> Any:
        return PeltonStreamReader(read_options(options), StructType().add("sequence", "long"))

    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("orders", subjects=["orders.>"])
        jet.publish_batch([("orders.a", b"")] * 5)
        first, second = reader(), reader()
        begun = first.initialOffset()
        jet.publish_batch([("orders.a", b"")] * 3)
        end = first.latestOffset(begun, ReadAllAvailable())
        planned = first.partitions(begun, end)
        jet.publish_batch([("orders.a", b"")] * 2)
        again = second.partitions(second.initialOffset(), end)
        assert [str(part) for part in again] == [str(part) for part in planned]
        assert [(part.first, part.last) for part in again] == [(1 if start == "earliest" else 6, 8)]
        jet.stream("orders").purge(seq=8)
        begun = second.initialOffset()
        if start == "latest":
            # Messages of it that limits have removed are reported.
            with pytest.raises(DataLossError, match="the sequences 6 to 7 are gone"):
                second.partitions(begun, end)
        else:
            # A query that starts at the front gets the front as it is then.
            assert [(part.first, part.last) for part in second.partitions(begun, end)] == [(8, 8)]
        following = second.latestOffset(end, ReadAllAvailable())
        assert [(part.first, part.last) for part in second.partitions(end, following)] == [(9, 10)]
        assert second.latestOffset(following, ReadAllAvailable()) == following
        for one in (first, second):
            one.stop()
