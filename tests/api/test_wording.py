"""Values as people read them."""

from __future__ import annotations

import pytest

from pelton.api.times import SECOND
from pelton.api.wording import age_text, bytes_text, moment_text, number_text, span_text, visible_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (999, "999"), (1_640_000, "1,640,000"), (0.0, "0"), (0.1234, "0.123"), (2.5, "2.5"), (99.4, "99.4"),
        (99.6, "100"), (457.4, "457"), (4570.0, "4,570"), (9_999.4, "9,999"), (10_000.0, "10 k"), (59_300.0, "59 k"),
        (999_400.0, "999 k"), (999_600.0, "1.0 M"), (1_640_000.0, "1.6 M"), (27.3e6, "27 M"), (3.2e9, "3.2 G"),
        (4.2e13, "42,000 G"),
    ],
)  # fmt: skip
def test_numbers_are_never_in_scientific_notation(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (2e-8, "0.1 µs"), (6.71e-7, "0.671 µs"), (0.00009996, "100 µs"),
     (0.00014, "0.14 ms"), (0.0123, "12.3 ms"), (0.9996, "1 s"), (3.44, "3.44 s"), (119.0, "119 s"), (4570.0, "76 min"),
     (7200.0, "2 h"), (200_000.0, "2 d"), (86_400.0 * 1500, "1,500 d")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_times_have_a_zone_and_what_is_unknown_is_empty() -> None:
    assert moment_text("2026-01-31T12:00:00.123Z") == "2026-01-31 12:00:00 UTC"
    assert moment_text(SECOND) == "1970-01-01 00:00:01 UTC"
    assert age_text("1970-01-01T00:00:01Z", 301 * SECOND) == age_text(SECOND, 301 * SECOND) == "5 min"
    assert age_text(400 * SECOND, SECOND) == "0 s", "a clock that differs"
    assert (moment_text(""), moment_text(0), age_text("", 1), age_text(0, 1)) == ("", "", "", "")
    assert bytes_text(1500) == "1.5 KiB"


def test_what_misleads_is_spelled_out_and_what_is_text_is_not() -> None:
    assert visible_text("\u202egnp.exe") == "\\u202egnp.exe"
    assert (
        visible_text("a\x1b]0;owned\x07\x9b2J\r\u2066b\nc\ud800") == "a\\x1b]0;owned\\x07\\x9b2J\\r\\u2066b\\nc\\ud800"
    )
    assert visible_text("a\r\tb\nc\u2028d", keep_lines=True) == "a\\r\tb\nc\\u2028d"
    for text in (
        "M\u00fcller 2\u00a0000 \u20ac",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "👨\u200d👩\u200d👧",
        "\ufeffa",
    ):
        assert visible_text(text) == text
