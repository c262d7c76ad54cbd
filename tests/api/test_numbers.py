"""Whole numbers of any size, as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import ConfigError
from pelton.api.json_values import counter_value, from_digits, go_integer, is_level, to_digits


@given(st.integers())
def test_any_number_survives(value: int) -> None:
    assert to_digits(value) == str(value)
    assert from_digits(to_digits(value)) == value


def test_more_digits_than_python_writes() -> None:
    assert to_digits(-(10**5000)) == "-1" + "0" * 5000
    assert from_digits("1" + "0" * 5000) == 10**5000


def test_numbers_of_go() -> None:
    assert [go_integer(text) for text in ("0", "-0", "+7", "-7", "0" * 5000 + "1")] == [0, 0, 7, -7, 1]
    assert go_integer("-9223372036854775808") == -go_integer("9223372036854775807") - 1
    for text in ("9223372036854775808", "-9223372036854775809", "9" * 5000):
        with pytest.raises(ValueError, match="value out of range"):
            go_integer(text)
    for text in ("", "+", "-", "+-1", "1_0", " 1", "1\n", "\u0663", "0x1"):
        with pytest.raises(ValueError, match="invalid syntax"):
            go_integer(text)


def test_levels() -> None:
    assert all(is_level(text, 3) for text in (None, "", "3", "-9"))
    assert not any(is_level(text, 3) for text in ("4", "x", "9" * 5000))


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
