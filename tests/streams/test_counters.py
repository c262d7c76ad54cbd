"""The stored message of an increment, and what is not one."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pelton.api import ApiError, headers
from pelton.streams.counters import Total, counted, digits, increment_of, total_of
from pelton.streams.publish_checks import fields_of

PLUS_TWO = headers.encode({"Nats-Incr": "+2"})


def test_an_increment_makes_a_total() -> None:
    after = counted(Total(), PLUS_TWO, "+2")
    assert (after.headers, after.data, after.total) == (PLUS_TWO, b'{"val":"2"}', Total(Decimal(2)))
    assert counted(total_of(after.headers, after.data), PLUS_TWO, "+2").data == b'{"val":"4"}'


def test_a_total_is_exact_however_large() -> None:
    large = "9" * 60_000
    after = counted(Total(Decimal(large)), PLUS_TWO, "1")
    assert digits(after.total.value) == "1" + "0" * 60_000
    assert counted(after.total, PLUS_TWO, "-" + large).data == b'{"val":"1"}'


@pytest.mark.parametrize("data", [b"", b"no json", b"[]", b"{}", b"null", b'{"val":7}', b'{"val":"x"}', b'{"val":""}'])
def test_what_is_no_counter_is_broken(data: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        total_of(None, data)
    assert refused.value.err_code == 10172


@pytest.mark.parametrize("told", ["x", "[]", '{"A":1}', '{"A":{"b":1}}'])
def test_sources_that_cannot_be_read_are_broken(told: str) -> None:
    with pytest.raises(ApiError) as refused:
        total_of(headers.encode({"Nats-Counter-Sources": told}), b'{"val":"1"}')
    assert refused.value.err_code == 10172


@pytest.mark.parametrize("told", ["", "null", "{}"])
def test_no_sources_are_no_sources(told: str) -> None:
    assert total_of(headers.encode({"Nats-Counter-Sources": told}), b'{"val":"1"}').sources == {}


def test_a_name_that_only_looks_like_it_is_no_increment() -> None:
    fields = fields_of(headers.encode({"X-Nats-Incr": "1", "Nats-Increase": "2"}))
    assert increment_of(fields, b"payload", counting=True) == ""
