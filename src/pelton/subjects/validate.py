"""Validates subjects and filters.

The rules are NATS's: tokens are separated by dots, none is empty, none holds white space, `>` is only allowed at
the end. Three checks go further, because such a string cannot be sent or stored faithfully: NUL, a lone
surrogate, which has no UTF-8 form, and more than `LONGEST` bytes.
"""

import re
from typing import Final

LONGEST: Final = 3072
"""The most bytes of a subject or filter.

A NATS server closes a connection whose control line is longer than its `max_control_line`, 4,096 bytes by default,
and does not report its setting. Beside a subject that line holds the reply inbox and, in requests and acks,
the names of a stream and a consumer, each of up to 255 bytes.
"""

_WIDEST = 4  # bytes of a character in UTF-8
_SPACE = r" \t\n\v\f\r"
_TOKEN = rf"[^.{_SPACE}\0\ud800-\udfff]+"
_WILD = r"[*>](?![^.])"  # a whole token, not the beginning of a longer one
_LITERAL = rf"(?!{_WILD}){_TOKEN}"
_ANY_BUT_TAIL = rf"(?!>(?![^.])){_TOKEN}"

_SUBJECT = re.compile(rf"{_LITERAL}(?:\.{_LITERAL})*")
_FILTER = re.compile(rf"(?:{_ANY_BUT_TAIL}\.)*{_TOKEN}")
_HAS_WILD = re.compile(rf"(?:^|\.){_WILD}")
_FAULTS: Final = (
    (re.compile(r"\A\Z"), "it is empty"),
    (re.compile(r"[\ud800-\udfff]"), "it holds a lone surrogate, which has no UTF-8 form"),
    (re.compile(r"\0"), "it holds a NUL character"),
    (re.compile(rf"[{_SPACE}]"), "it holds white space"),
    (re.compile(r"\A\.|\.\Z|\.\."), "it has an empty token: a dot at an end, or two in a row"),
)


def is_subject(subject: str) -> bool:
    """Whether a message can be published to `subject`: well formed, without wildcards, not too long."""
    return _SUBJECT.fullmatch(subject) is not None and fits(subject)


def is_filter(subject: str) -> bool:
    """Whether `subject` is well formed and not too long; wildcards are allowed."""
    return _FILTER.fullmatch(subject) is not None and fits(subject)


def has_wildcard(subject: str) -> bool:
    """Whether a token of `subject` is a wildcard, so that it names more than one subject."""
    return _HAS_WILD.search(subject) is not None


def fits(subject: str) -> bool:
    """Whether a string, without lone surrogates, has no more bytes than a subject may."""
    return len(subject) * _WIDEST <= LONGEST or len(subject.encode()) <= LONGEST


def fault_of(subject: str, *, wildcards: bool = False) -> str:
    """Return why a string is no subject, or with `wildcards` no filter, as a clause; empty if it is valid."""
    if (is_filter if wildcards else is_subject)(subject):
        return ""
    for pattern, fault in _FAULTS:
        if pattern.search(subject):
            return fault
    if not fits(subject):
        return f"it has {len(subject.encode())} bytes, and {LONGEST} are the most"
    return "only its last token can be '>'" if wildcards else "'*' and '>' as tokens are wildcards, for filters"
