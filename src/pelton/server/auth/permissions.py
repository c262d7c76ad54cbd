"""What a user may publish and subscribe to: subjects that are allowed, and subjects that are not. Pure."""

from __future__ import annotations

import msgspec

from pelton.subjects import is_subset, matches, overlaps


class SubjectRules(msgspec.Struct, frozen=True, kw_only=True):
    """Filters that are allowed (None: all) and filters that are denied; a denial wins."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def allows(self, subject: str) -> bool:
        """Whether a subject is allowed."""
        if self.allow is not None and not any(matches(each, subject) for each in self.allow):
            return False
        return not any(matches(each, subject) for each in self.deny)

    def allows_filter(self, subject: str, queue: str = "") -> bool:
        """Whether a filter is allowed, except what is denied of it. A rule may name a queue group as well."""
        if self.allow is not None and not any(_covers(each, subject, queue) for each in self.allow):
            return False
        return not any(_covers(each, subject, queue) for each in self.deny)

    def cuts(self, subject: str) -> bool:
        """Whether some subjects of an allowed filter are denied, so that each message has to be checked."""
        return any(overlaps(_filter_of(each), subject) for each in self.deny)


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a user. ``responses`` is how often a user may answer a request that it received (0: not at all),
    ``response_s`` for how long (0: for ever).
    """

    publish: SubjectRules = SubjectRules()
    subscribe: SubjectRules = SubjectRules()
    responses: int = 0
    response_s: float = 0.0


def _filter_of(rule: str) -> str:
    return rule.partition(" ")[0]


def _covers(rule: str, subject: str, queue: str) -> bool:
    wanted, _, group = rule.partition(" ")
    if group and not (queue and matches(group, queue)):
        return False
    return is_subset(subject, wanted)
