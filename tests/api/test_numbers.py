"""Whole numbers of any size, as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import ConfigError
from pelton.api.numbers import counter_value, from_digits, to_digits


@given(st.integers())
def test_any_number_survives(value: int) -> None:
    assert to_digits(value) == str(value)
    assert from_digits(to_digits(value)) == value


def test_more_digits_than_python_writes() -> None:
    assert to_digits(-(10**5000)) == "-1" + "0" * 5000
    assert from_digits("1" + "0" * 5000) == 10**5000


@pytest.mark.parametrize("text", ["", "x", "inf", "nan"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ConfigError):
        from_digits(text)


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b'{"val":7}', b'{"val":"x"}'])
def test_what_is_no_counter(data: bytes) -> None:
    with pytest.raises(ConfigError):
        counter_value(data)


def test_a_counter() -> None:
    assert counter_value(b'{"val":"-12"}') == -12
