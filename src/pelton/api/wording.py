"""Values as people read them: numbers, sizes, durations, times, and texts of others without marks that mislead. Pure.

The dashboard and the command line say everything in these words. What is not known is an empty text.
"""

from __future__ import annotations

import re
from typing import Final

from pelton.api import StoreSettingsError, rfc3339
from pelton.api.times import SECOND, parse_rfc3339

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LONG: Final = (("d", 86_400), ("h", 3600), ("min", 60))
_LARGE: Final = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_IN_FULL: Final = 10_000
# Controls, separators of lines, what turns the direction of a text, tags that nobody sees, and halves of characters.
_MARKS: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f"
_any_mark: Final = re.compile(f"[{_MARKS}]")
_any_but_layout: Final = re.compile(f"(?![\n\t])[{_MARKS}]")


def number_text(value: float) -> str:
    """Return a whole number in full, ``1,640,000``; others with what matters of them: ``2.53``, ``457``, ``59 k``."""
    if isinstance(value, int):
        return f"{value:,}"
    if value < 99.5:
        return f"{value:.3g}"
    if value < _IN_FULL:
        return f"{value:,.0f}"
    unit, size = next(each for each in _LARGE if value >= 0.9995 * each[1])
    return f"{value / size:,.{int(value < 9.95 * size)}f} {unit}"


def bytes_text(size: float) -> str:
    """Return a number of bytes."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def span_text(seconds: float) -> str:
    """Return a duration, such as ``3.2 µs``, ``12 ms``, ``3.4 s`` or ``76 min``."""
    for unit, length in _LONG:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    if 0 < seconds < 0.0001:
        return f"{max(seconds * 1_000_000, 0.1):.3g} µs"
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 0.9995 else f"{seconds:.3g} s"


def age_text(time: str | int, now: int) -> str:
    """Return for how long a time has been past: RFC 3339 text, or wall nanoseconds."""
    if not time:
        return ""
    at = time if isinstance(time, int) else parse_rfc3339(time)
    return span_text(float(max(now - at, 0) // SECOND))


def moment_text(time: str | int) -> str:
    """Return a time as ``2026-01-31 12:00:00 UTC``."""
    if not time:
        return ""
    return (time if isinstance(time, str) else rfc3339(time))[:19].replace("T", " ") + " UTC"


def visible_text(text: str, *, keep_lines: bool = False) -> str:
    r"""Return text with the characters spelled out that nobody sees and that change what is seen: ESC as ``\x1b``.

    Names, keys and messages come from others: a terminal obeys escape sequences in them, and marks of direction make
    ``exe.png`` of ``gnp.exe``. ``keep_lines``: line breaks and tabs stay what they are.
    """
    return (_any_but_layout if keep_lines else _any_mark).sub(_spell_out, text)


def _spell_out(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


# --- errors in the words of the command line: what the library says for programs, and what a person types instead

ERROR_WORDS: Final = {
    "check its name, or create it with create_stream": "see 'pelton stream ls', or create it with 'pelton stream add'",
    "create it with create_consumer, with a durable_name if it has to outlive its clients": (
        "see 'pelton consumer ls', or create it with 'pelton consumer add'"
    ),
    "check its name, or create it with create_bucket": "see 'pelton kv ls', or create it with 'pelton kv add'",
    "check its name, or create it with create_objects": (
        "check its name, or create it with 'pelton object put --create'"
    ),
    "create a stream whose subjects match it, or check the spelling": (
        "check the spelling, see 'pelton stream ls', or create one with 'pelton stream add'"
    ),
    "stream.info() tells which sequences it holds": "'pelton stream info' tells which sequences it holds",
    "see jobs(), history() and dead_letters() for its jobs": "see 'pelton jobs ls' and 'pelton dead ls'",
    ", the 'id' of the handle from enqueue": ", see 'pelton jobs ls'",
    "see flows()": "see 'pelton flow ls'",
    "see schedules(), or define it first": "see 'pelton cron ls'",
    "see workers()": "see 'pelton workers'",
    "check its name, see jet.queue_names(), or open it without create=False to make it": "see 'pelton queue ls'",
    "give concurrency, rate, or both; unlimit() takes a limit away": (
        "give --concurrency, --rate, or both; 'pelton limits rm' takes a limit away"
    ),
    "update it from its revision, or put it": "put it with --revision and its last one, or without --revision",
    "give its key, pelton.open(path, key=...)": "give its key: --key-file FILE, or PELTON_KEY",
    "pelton.open(path, read_only=True) reads it": "commands that only look read it",
    "; the statement changed nothing, the transaction continues": "",
}
"""What errors of the library say, and what takes its place; each is a part of the library's texts (a test)."""


def text_for_people(error: Exception | str) -> str:
    """Return what an error says, in the words of the command line: for it, the dashboard and the audit."""
    text = f"{error.path}: {error.reason}" if isinstance(error, StoreSettingsError) and error.reason else str(error)
    for of_library, ours in ERROR_WORDS.items():
        text = text.replace(of_library, ours)
    return text


def without_login(address: str) -> str:
    """Return an address as it may be shown: without a user's name and password, or a token."""
    scheme, separator, rest = address.rpartition("//")
    return scheme + separator + rest.rpartition("@")[2]
