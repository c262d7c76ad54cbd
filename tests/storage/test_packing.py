"""Compressed payloads: when compression pays, what is read back, and the effect of damage."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.storage import Database, MessageTable, RowValues, intact, message_table
from pelton.storage.messages import ORIGINAL_LENGTH, pack, row_checksum, unpack, unpack_all


def row(data: bytes, seq: int = 7, hdr: bytes | None = b"h") -> RowValues:
    return seq, 5, "s.a", hdr, data, row_checksum(seq, 5, "s.a", hdr, data)


@given(
    st.binary(max_size=400).flatmap(lambda part: st.integers(0, 9).map(lambda times: part * times)),
    st.none() | st.binary(),
)
def test_what_is_packed_comes_back(data: bytes, hdr: bytes | None) -> None:
    published = row(data, hdr=hdr)
    stored = pack(published)
    assert len(stored[4]) <= len(data)
    assert unpack(stored) == published
    assert intact(unpack(stored))


@pytest.mark.parametrize("data", [b"", b"x" * 127, os.urandom(5000)], ids=["empty", "small", "random"])
def test_what_does_not_pay_stays(data: bytes) -> None:
    assert pack(row(data)) == row(data)


def test_only_packed_rows_are_looked_at_twice() -> None:
    plain = [row(b"a"), row(b"b")]
    assert unpack_all(plain) is plain
    assert unpack_all([row(b"a"), pack(row(b"b" * 500))]) == [row(b"a"), row(b"b" * 500)]


@given(st.integers(0, 5), st.integers(0, 10_000))
def test_a_flipped_bit_is_found_wherever_it_is(column: int, bit: int) -> None:
    values: list[object] = list(pack(row(b"some text " * 40)))
    value = values[column]
    if isinstance(value, int):
        values[column] = value ^ 1 << bit % 62
    else:
        assert isinstance(value, str | bytes)
        raw = bytearray(value if isinstance(value, bytes) else value.encode())
        raw[bit // 8 % len(raw)] ^= 1 << bit % 7
        values[column] = bytes(raw) if isinstance(value, bytes) else raw.decode()
    assert not intact(unpack(tuple(values)))  # type: ignore[arg-type]  # a damaged row


@pytest.mark.parametrize("value", [None, "text", 1.5, b"\0", 1 << 62, -1])
@pytest.mark.parametrize("column", [2, 3, 4, 5])
def test_a_column_of_another_type_is_found(column: int, value: object) -> None:
    values: list[object] = list(pack(row(b"some text " * 40)))
    values[column] = value
    assert not intact(unpack(tuple(values)))  # type: ignore[arg-type]  # a damaged row


def test_a_table_counts_and_returns_what_was_published() -> None:
    database = Database("packing", memory=True)
    database.execute(message_table(1))
    table = MessageTable(database, 1)
    published = [row(b"%d " % n * 300, seq=n) for n in range(1, 6)]
    table.insert(published, packed=True)
    sizes = [len(each[4]) for each in published]
    assert [each.data for each in table.oldest(9)] == sizes
    assert [each[0] for each in database.execute(f"SELECT {ORIGINAL_LENGTH} FROM m_1")] == sizes
    assert int(str(database.value("SELECT sum(length(data)) FROM m_1"))) < sum(sizes) / 8
    assert table.get(3) == published[2]
    assert table.scan(1, 9, 9) == published
    assert list(table.walk(2, 3, 9)) == published[1:3]
    assert [each.data for each in table.remove_range(1, 5)] == sizes
    database.close()
