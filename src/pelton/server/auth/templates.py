"""Permissions in JWTs: as rules, and those of scoped signing keys with the user's own values put in. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pelton.server.auth.claims import PermissionClaims, ResponseClaims, SubjectPermissionClaims
from pelton.server.settings.config import AllowDeny, PermissionRules, ResponseRules
from pelton.subjects import is_filter

_NS: Final = 1_000_000_000
_FUNCTION: Final = re.compile(r"\{\{\s*([a-z-]+)\(([^)]*)\)\s*\}\}")
_MOST: Final = 4096

# The values of each function of a template, by its name and argument: ``tag(region)`` may have several.
Values = Mapping[tuple[str, str], Sequence[str]]


class TemplateError(ValueError):
    """A template that cannot be filled with a user's values."""


def values_of(name: str, subject: str, tags: Sequence[str], account: tuple[str, str, Sequence[str]]) -> Values:
    """Return what templates may use: of the user, and of its ``account`` the name, the subject and the tags."""
    values: dict[tuple[str, str], list[str]] = {
        ("name", ""): [name],
        ("subject", ""): [subject],
        ("account-name", ""): [account[0]],
        ("account-subject", ""): [account[1]],
    }
    for function, known in (("tag", tags), ("account-tag", account[2])):
        for tag in known:
            key, _, value = tag.partition(":")
            values.setdefault((function, key.lower()), []).append(value)
    return values


def rules_of(claims: PermissionClaims, values: Values | None = None) -> PermissionRules | None:
    """Return the rules of claims, None if they say nothing; with ``values``, filled in. Raises TemplateError."""
    publish, subscribe = _rules(claims.pub, values), _rules(claims.sub, values)
    answers = _answers(claims.resp)
    if answers is not None and publish.allow is None:
        publish = AllowDeny(allow=(), deny=publish.deny)
    found = PermissionRules(publish=publish, subscribe=subscribe, allow_responses=answers)
    return None if found == PermissionRules() else found


def _rules(claims: SubjectPermissionClaims, values: Values | None) -> AllowDeny:
    allow, deny = tuple(claims.allow or ()), tuple(claims.deny or ())
    if values is None:
        return AllowDeny(allow=allow or None, deny=deny)
    # What cannot be filled in allows nothing; that it denies nothing must not be.
    allowed = _filled(allow, values, missing=lambda rule: None)
    denied = _filled(deny, values, missing=_refuse)
    return AllowDeny(allow=allowed if allow else None, deny=denied)


def _refuse(rule: str) -> None:
    raise TemplateError(f"{rule!r} cannot be filled in for this user")


def _filled(rules: Sequence[str], values: Values, missing: Callable[[str], None]) -> tuple[str, ...]:
    found = []
    for rule in rules:
        filled = _expanded(rule, values)
        if not filled:
            missing(rule)
        found += filled
    return tuple(found)


def _expanded(rule: str, values: Values) -> list[str]:
    """Return a rule for each combination of the values of its functions."""
    left, done = [rule], list[str]()
    while left:
        text = left.pop()
        function = _FUNCTION.search(text)
        if function is None:
            done.append(text)
            continue
        argument = function[2].strip().lower()
        left += [
            text[: function.start()] + value + text[function.end() :]
            for value in values.get((function[1], argument), ())
        ]
        if len(left) + len(done) > _MOST:
            raise TemplateError(f"{rule!r} has too many values")
    # Values come from users' names and tags: they must not smuggle in wildcards or more tokens than one.
    tokens = _FUNCTION.sub("x", rule).count(".")
    stars = _wildcards(_FUNCTION.sub("x", rule))
    return [text for text in sorted(done) if _is_rule(text) and text.count(".") == tokens and _wildcards(text) == stars]


def _wildcards(rule: str) -> int:
    return sum(token in ("*", ">") for token in re.split(r"[. ]", rule))


def _is_rule(text: str) -> bool:
    parts = text.split(" ")
    return len(parts) <= 2 and all(map(is_filter, parts))


def _answers(claims: ResponseClaims | None) -> ResponseRules | None:
    if claims is None:
        return None
    default = ResponseRules()
    return ResponseRules(max_msgs=claims.max or default.max_msgs, expires=claims.ttl / _NS or default.expires)
