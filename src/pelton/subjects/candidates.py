"""Which literal subjects a filter can match, if there are few. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_ONE, _REST = "*", ">"


def candidates(subject_filter: str, patterns: Sequence[str]) -> set[str] | None:
    """Return the literal subjects that match a filter and one of ``patterns``; None if they cannot be listed.

    ``a.*.x`` and the patterns ``a.b.>`` and ``a.c.*`` give ``a.b.x`` and ``a.c.x``; with the pattern ``a.>`` any token
    may stand in the middle.
    """
    wanted = subject_filter.split(".")
    if _REST in wanted:
        return None
    found: set[str] = set()
    for pattern in patterns:
        tokens = _met(wanted, pattern.split("."))
        if tokens is None:
            continue
        if _ONE in tokens:
            return None
        found.add(".".join(tokens))
    return found


def _met(wanted: Sequence[str], pattern: Sequence[str]) -> list[str] | None:
    """Return the tokens that both allow, ``*`` where both allow any; None if no subject matches both."""
    if pattern[-1] == _REST:
        if len(wanted) < len(pattern):
            return None
        pattern = [*pattern[:-1], *wanted[len(pattern) - 1 :]]
    if len(pattern) != len(wanted):
        return None
    tokens: list[str] = []
    for one, other in zip(wanted, pattern, strict=True):
        if _ONE not in (one, other) and one != other:
            return None
        tokens.append(other if one == _ONE else one)
    return tokens
