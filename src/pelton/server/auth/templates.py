"""Permissions in JWTs: as rules, and those of scoped signing keys with the user's own values put in. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product, zip_longest
from math import prod
from typing import Final

from pelton.server.auth.tokens import PermissionClaims, ResponseClaims, SubjectPermissionClaims
from pelton.server.settings.options import AllowDeny, PermissionRules, ResponseRules
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
    """Return a rule for each combination of the values of its functions; a value is never looked at as a template."""
    # A split gives text, function and argument in turn.
    words = _FUNCTION.split(rule)
    known = [values.get((name, word.strip().lower()), ()) for name, word in zip(words[1::3], words[2::3], strict=True)]
    if prod(map(len, known)) > _MOST:
        raise TemplateError(f"{rule!r} has too many values")
    texts: list[Sequence[str]] = [(text,) for text in words[::3]]
    filled = map("".join, product(*(part for pair in zip_longest(texts, known, fillvalue=("",)) for part in pair)))
    # Values come from users' names and tags: they must not smuggle in wildcards, queues, or more tokens than one.
    shape = _shape(_FUNCTION.sub("x", rule))
    return [text for text in sorted(filled) if _is_rule(text) and _shape(text) == shape]


def _shape(rule: str) -> tuple[int, int, int]:
    """Return the numbers of a rule's tokens, words and wildcards."""
    return rule.count("."), rule.count(" "), sum(token in ("*", ">") for token in re.split(r"[. ]", rule))


def is_well_formed(claims: PermissionClaims) -> bool:
    """Whether permissions name subjects; those to subscribe may name a queue group after one."""
    return all(
        all(rule.split(" ")[0].split(".")) and rule.count(" ") <= most
        for rules, most in ((claims.pub, 0), (claims.sub, 1))
        for rule in (*(rules.allow or ()), *(rules.deny or ()))
    )


def _is_rule(text: str) -> bool:
    parts = text.split(" ")
    return len(parts) <= 2 and all(map(is_filter, parts))


def _answers(claims: ResponseClaims | None) -> ResponseRules | None:
    if claims is None:
        return None
    default = ResponseRules()
    return ResponseRules(max_msgs=claims.max or default.max_msgs, expires=claims.ttl / _NS or default.expires)
