"""Header blocks: whole, malformed, repeated, and searched without decoding."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import ConfigError, Headers, headers

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(lambda v: v.strip(" \t"))


def test_one_block() -> None:
    block = headers.encode({"Nats-Msg-Id": "o-1", "Via": ["a", "b"]})
    assert block == b"NATS/1.0\r\nNats-Msg-Id: o-1\r\nVia: a\r\nVia: b\r\n\r\n"
    decoded = headers.decode(block)
    assert dict(decoded) == {"Nats-Msg-Id": "o-1", "Via": "a"}
    assert decoded.get_all("Via") == ["a", "b"]
    assert (decoded.get_all("via"), decoded.get("via"), len(decoded)) == ([], None, 2)
    assert headers.encode(decoded) == block
    assert repr(decoded) == "Headers({'Nats-Msg-Id': ['o-1'], 'Via': ['a', 'b']})"


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1)))
def test_any_headers_survive(given: dict[str, list[str]]) -> None:
    block = headers.encode(given)
    decoded = headers.decode(block)
    assert {name: decoded.get_all(name) for name in decoded} == given
    assert all(headers.first(block, name) == values[0] for name, values in given.items())
    assert headers.encode(decoded) == block


def test_a_value_is_replaced_in_its_place_or_added() -> None:
    block = headers.encode({"A": "1", "B": "2", "C": "3"})
    assert headers.decode(headers.with_header(block, "B", "two")) == {"A": "1", "B": "two", "C": "3"}
    assert headers.with_header(block, "C", "three") == headers.encode({"A": "1", "B": "2", "C": "three"})
    assert headers.with_header(headers.encode({}), "A", "1") == headers.encode({"A": "1"})
    assert headers.with_header(block, "D", "4") == headers.encode({"A": "1", "B": "2", "C": "3", "D": "4"})


@given(st.binary())
def test_any_bytes_are_headers_or_refused(block: bytes) -> None:
    for data in (block, b"NATS/1.0\r\n" + block, b"NATS/1.0\r\n" + block + b"\r\n\r\n"):
        with contextlib.suppress(ConfigError):
            assert isinstance(headers.decode(data), Headers)


def test_bytes_that_are_no_text_survive() -> None:
    block = b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n"
    assert headers.encode(headers.decode(block)) == block


def test_a_status_line() -> None:
    decoded = headers.decode(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n")
    assert (decoded.status, decoded.description) == (408, "Request Timeout")
    assert decoded["Nats-Pending-Messages"] == "3"
    bare = headers.decode(b"NATS/1.0 100\r\n\r\n")
    assert (bare.status, bare.description, len(bare)) == (100, "", 0)
    assert headers.decode(b"NATS/1.0\r\n\r\n").status is None


def test_spaces_around_values_are_no_part_of_them() -> None:
    block = b"NATS/1.0\r\nA:1\r\nB: \t 2 \r\nC:\r\nD: x: y\r\n\r\n"
    assert dict(headers.decode(block)) == {"A": "1", "B": "2", "C": "", "D": "x: y"}
    assert [headers.first(block, name) for name in "ABCDE"] == ["1", "2", "", "x: y", None]


def test_the_first_of_a_name_is_not_the_first_of_a_longer_one() -> None:
    block = headers.encode({"Nats-Expected-Last-Subject-Sequence-Subject": "a", "X-Nats-TTL": "9", "Nats-TTL": "5s"})
    assert headers.first(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE) is None
    assert headers.first(block, headers.TTL) == "5s"
    assert headers.first(block, "nats-ttl") is None


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.1\r\n\r\n",
        b"HTTP/1.0\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/1.0\r\nA 1\r\n\r\n",
        b"NATS/1.0\r\n: 1\r\n\r\n",
        b"NATS/1.0\r\nA b: 1\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n",
        b"NATS/1.0\r\nA: 1\nB: 2\r\n\r\n",
        b"NATS/1.0\nA: 1\n\n",
        b"NATS/1.0\r\nA: 1\r\n\r\ntrailing",
        b"NATS/1.0 40\r\n\r\n",
    ],
)
def test_malformed_blocks(block: bytes) -> None:
    with pytest.raises(ConfigError, match=r"no NATS/1\.0 header block"):
        headers.decode(block)


@pytest.mark.parametrize("name", ["", "A b", "A:b", "A\r\nB", "Ä", "\x00"])
def test_names_that_break_out(name: str) -> None:
    with pytest.raises(ConfigError, match="visible ASCII"):
        headers.encode({name: "1"})


@pytest.mark.parametrize("value", ["a\r\nB: 1", "a\n", "\r"])
def test_values_that_break_out(value: str) -> None:
    with pytest.raises(ConfigError, match="header A: the value holds a line break"):
        headers.encode({"A": value})


def test_values_that_are_no_text() -> None:
    with pytest.raises(ConfigError, match="header A: the value 3 is no text"):
        headers.encode({"A": [3]})  # type: ignore[list-item]


def test_no_headers() -> None:
    assert headers.decode(headers.encode({})) == Headers()
