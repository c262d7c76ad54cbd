"""Which strings are subjects, and which are filters.

The rules are NATS's: tokens are separated by dots, none is empty, none holds white space, `>` stands only at
the end. Two refusals go further, because such a string cannot travel or be stored faithfully: NUL, and a lone
surrogate, which has no UTF-8 form.
"""

import re

_TOKEN = r"[^. \t\n\f\r\0\ud800-\udfff]+"
_WILD = r"[*>](?![^.])"  # a whole token, not the beginning of a longer one
_LITERAL = rf"(?!{_WILD}){_TOKEN}"
_ANY_BUT_TAIL = rf"(?!>(?![^.])){_TOKEN}"

_SUBJECT = re.compile(rf"{_LITERAL}(?:\.{_LITERAL})*")
_FILTER = re.compile(rf"(?:{_ANY_BUT_TAIL}\.)*{_TOKEN}")
_HAS_WILD = re.compile(rf"(?:^|\.){_WILD}")


def is_subject(subject: str) -> bool:
    """Whether a message can be published to `subject`: well formed, without wildcards."""
    return _SUBJECT.fullmatch(subject) is not None


def is_filter(subject: str) -> bool:
    """Whether `subject` is well formed; wildcards are allowed."""
    return _FILTER.fullmatch(subject) is not None


def has_wildcard(subject: str) -> bool:
    """Whether a token of `subject` is a wildcard, so that it names more than one subject."""
    return _HAS_WILD.search(subject) is not None
