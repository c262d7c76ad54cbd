"""Templates of scoped signing keys: what a user's name and tags may put into rules."""

from __future__ import annotations

import pytest

from pelton.server.tokens import PermissionClaims, SubjectPermissionClaims
from pelton.server.users import TemplateError, rules_of, values_of


def allowed(rule: str, name: str, *tags: str) -> tuple[str, ...] | None:
    claims = PermissionClaims(pub=SubjectPermissionClaims(allow=(rule,)))
    rules = rules_of(claims, values_of(name, "UANN", tags, ("acme", "AACME", ("tier:gold",))))
    assert rules is not None
    return rules.publish.allow


def test_a_rule_is_filled_for_each_combination_of_values() -> None:
    rule = "{{name()}}.{{tag(site)}}.{{ account-tag(tier) }}.{{tag(site)}}"
    assert allowed(rule, "ann", "site:a", "site:b") == ("ann.a.gold.a", "ann.a.gold.b", "ann.b.gold.a", "ann.b.gold.b")
    assert allowed("plain.>", "ann") == ("plain.>",)


@pytest.mark.parametrize("name", ["{{name()}}", "{{ name() }}x", "a b", "a.b", "*", ">", "", "a\tb"])
def test_a_value_adds_no_template_token_wildcard_or_queue(name: str) -> None:
    claims = SubjectPermissionClaims
    for rule in ("jobs.{{name()}}", "jobs.{{name()}} {{name()}}"):
        values = values_of(name, "UANN", (f"site:{name}",), ("acme", "AACME", ()))
        for text in (rule, rule.replace("name()", "tag(site)")):
            permitted = rules_of(PermissionClaims(sub=claims(allow=(text,))), values)
            assert permitted is not None
            # It is no template again: whatever is allowed is what the rule says with the value as a plain token.
            literal = tuple({text.replace("{{name()}}", name).replace("{{tag(site)}}", name)})
            assert permitted.subscribe.allow in ((), literal if name.startswith("{") else ())
            if permitted.subscribe.allow == ():
                with pytest.raises(TemplateError, match="cannot be filled in"):
                    rules_of(PermissionClaims(sub=claims(deny=(text,))), values)


def test_too_many_values_are_refused_before_they_are_combined() -> None:
    tags = [f"site:{number}" for number in range(100)]
    with pytest.raises(TemplateError, match="too many values"):
        allowed("{{tag(site)}}" * 20, "ann", *tags)
