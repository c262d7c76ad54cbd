"""What may be published, subscribed to and received: as the real server has it, and never more than the rules say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server.identity import Permissions, SubjectRules, permissions_of_rules
from pelton.server.settings.options import AllowDeny, PermissionRules, ResponseRules
from pelton.subjects import is_subset, matches
from tests.kit.nats_server import nats_server
from tests.kit.served import ServedStore, served_store
from tests.server.auth.real import BareClient

QUEUES = ["", "q", "q.x", "z"]
Rules = tuple[tuple[str, ...] | None, tuple[str, ...]]


def random_filter(random: Random) -> str:
    tokens = [random.choice("ab*") for _ in range(random.randint(1, 3))]
    if random.random() < 0.25:
        tokens[-1] = ">"
    return ".".join(tokens)


def random_rules(random: Random, *, queues: bool) -> Rules:
    def rule() -> str:
        queue = random.choice(["", "", " q", " q.*", " *"]) if queues else ""
        return random_filter(random) + queue

    allow = tuple(rule() for _ in range(random.randint(1, 3))) if random.random() < 0.6 else None
    deny = tuple(rule() for _ in range(random.randint(1, 3))) if random.random() < 0.6 else ()
    return allow, deny


def config(kind: str, all_rules: list[Rules]) -> str:
    """Return users, each with its rules, and one who may do everything."""
    users = ["{user: all, password: p}"]
    for number, (allow, deny) in enumerate(all_rules):
        said = ([f"allow: {json.dumps(allow)}"] if allow else []) + ([f"deny: {json.dumps(deny)}"] if deny else [])
        users.append(f"{{user: u{number}, password: p, permissions: {{{kind}: {{{', '.join(said)}}}}}}}")
    return "authorization {users: [" + ",".join(users) + "]}"


def user(name: str) -> dict[str, str]:
    return {"user": name, "pass": "p"}


@pytest.mark.parametrize("seed", range(2))
def test_publishing_is_as_on_the_server(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    all_rules = [random_rules(random, queues=False) for _ in range(20)]
    subjects = sorted({random_filter(random) for _ in range(60)})
    with (
        nats_server(tmp_path, jetstream=False, extra=config("pub", all_rules)) as server,
        served(tmp_path, config("pub", all_rules)) as ours,
    ):
        for (number, (allow, deny)), port in product(enumerate(all_rules), (server.port, ours.port)):
            rules = SubjectRules(allow, deny)
            with closing(BareClient(port, user(f"u{number}"))) as client:
                for subject in subjects:
                    assert client.ask(f"PUB {subject} 0\r\n") == rules.allows(subject), (allow, deny, subject)
                    expected = [] if rules.allows(subject) else [f'Permissions Violation for Publish to "{subject}"']
                    assert client.errors == expected


@pytest.mark.parametrize("seed", range(2))
def test_subscribing_and_receiving_are_as_on_the_server(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    all_rules = [random_rules(random, queues=True) for _ in range(10)]
    filters = sorted({random_filter(random) for _ in range(20)} | {"a.a", "a.b", "b", "b.a.b"})
    subjects = ["a", "b", "a.a", "a.b", "b.b", "b.a.b", "a.b.a", "b.b.b"]
    with (
        nats_server(tmp_path, jetstream=False, extra=config("sub", all_rules)) as server,
        closing(BareClient(server.port, user("all"))) as everybody,
    ):
        for number, (allow, deny) in enumerate(all_rules):
            rules = SubjectRules(allow, deny)
            with closing(BareClient(server.port, user(f"u{number}"))) as client:
                for filter in filters:
                    for queue in QUEUES:
                        accepted = client.ask(f"SUB {filter} {queue} 1")
                        ours = rules.allows_filter(filter, queue)
                        # A '>' where only a '*' is allowed: the server is too lenient.
                        assert accepted == ours or (accepted and filter.endswith(">")), (allow, deny, filter, queue)
                        if not accepted:
                            continue
                        everybody.ask(*[f"PUB {subject} 0\r\n" for subject in subjects])
                        client.ask()
                        received = set(client.received)
                        client.ask("UNSUB 1")
                        if ours:
                            passes = received_by(rules, filter, queue, subjects)
                            # Where a denied subject only overlaps the filter, the server lets it through.
                            assert passes <= received, (allow, deny, filter, queue)
                            leaked = received - passes
                            assert all(is_overlap(deny, filter, subject) for subject in leaked), (deny, filter, leaked)


@pytest.mark.parametrize("seed", range(2))
def test_our_server_holds_to_the_rules(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    all_rules = [random_rules(random, queues=True) for _ in range(10)]
    filters = sorted({random_filter(random) for _ in range(20)} | {"a.a", "a.b", "b", "b.a.b"})
    subjects = ["a", "b", "a.a", "a.b", "b.b", "b.a.b", "a.b.a", "b.b.b"]
    with (
        served(tmp_path, config("sub", all_rules)) as server,
        closing(BareClient(server.port, user("all"))) as everybody,
    ):
        for number, (allow, deny) in enumerate(all_rules):
            rules = SubjectRules(allow, deny)
            with closing(BareClient(server.port, user(f"u{number}"))) as client:
                for filter, queue in product(filters, QUEUES):
                    accepted = client.ask(f"SUB {filter} {queue} 1")
                    assert accepted == rules.allows_filter(filter, queue), (allow, deny, filter, queue)
                    everybody.ask(*[f"PUB {subject} 0\r\n" for subject in subjects])
                    client.ask()
                    received = set(client.received)
                    client.ask("UNSUB 1")
                    expected = received_by(rules, filter, queue, subjects) if accepted else set()
                    assert received == expected, (allow, deny, filter, queue)


@contextmanager
def served(folder: Path, text: str) -> Iterator[ServedStore]:
    """Run `pelton serve` with a configuration."""
    (folder / "pelton.conf").write_text(text)
    with served_store(None, ("-c", str(folder / "pelton.conf"))) as server:
        yield server


def received_by(rules: SubjectRules, filter: str, queue: str, subjects: list[str]) -> set[str]:
    cut = rules.cuts(filter, queue)
    return {subject for subject in subjects if matches(filter, subject) and (not cut or rules.receives(subject, queue))}


def is_overlap(deny: tuple[str, ...], filter: str, subject: str) -> bool:
    """Whether a subject is denied only by rules that are no part of the filter."""
    denied = [rule.split(" ")[0] for rule in deny]
    return not any(matches(rule, subject) and is_subset(rule, filter) for rule in denied)


TOKENS = st.sampled_from(["a", "b", "*"])
FILTERS = st.builds(
    lambda tokens, tail: ".".join([*tokens, ">"] if tail else tokens or ["a"]),
    st.lists(TOKENS, min_size=1, max_size=3),
    st.booleans(),
)
SUBJECTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join)
RULES = st.builds(lambda filter, queue: filter + queue, FILTERS, st.sampled_from(["", "", " q", " q.*"]))


@given(
    st.none() | st.lists(RULES, max_size=3).map(tuple),
    st.lists(RULES, max_size=3).map(tuple),
    FILTERS,
    st.sampled_from(QUEUES),
    SUBJECTS,
)
def test_nobody_receives_what_no_rule_allows_or_a_rule_denies(
    allow: tuple[str, ...] | None, deny: tuple[str, ...], filter: str, queue: str, subject: str
) -> None:
    rules = SubjectRules(allow, deny)
    if not (rules.allows_filter(filter, queue) and matches(filter, subject)):
        return
    if rules.cuts(filter, queue) and not rules.receives(subject, queue):
        return
    if allow is not None:
        assert any(matches(rule.split(" ")[0], subject) for rule in allow)
    assert not any(matches(rule, subject) for rule in deny if " " not in rule)
    if queue:
        named = [rule.split(" ") for rule in deny if " " in rule]
        assert not any(matches(each, subject) and is_subset(queue, group) for each, group in named)


@given(st.none() | st.lists(FILTERS, max_size=3).map(tuple), st.lists(FILTERS, max_size=3).map(tuple), SUBJECTS)
def test_nobody_publishes_what_no_rule_allows_or_a_rule_denies(
    allow: tuple[str, ...] | None, deny: tuple[str, ...], subject: str
) -> None:
    allowed = allow is None or any(matches(rule, subject) for rule in allow)
    assert SubjectRules(allow, deny).allows(subject) == (allowed and not any(matches(rule, subject) for rule in deny))


@pytest.mark.parametrize(
    ("allow", "attempt"),
    [
        (("a.*",), "a.>"),
        (("a.*",), ">"),
        (("a.*",), "*.*"),
        (("a.*",), "a"),
        (("a.*",), "a.b.c"),
        (("a.>",), ">"),
        (("a.>",), "a"),
        (("a.>",), "*.b"),
        (("a.b", "a.c"), "a.*"),
        (("_INBOX.me.>",), "_INBOX.>"),
        (("_INBOX.me.>",), "_INBOX.*.x"),
        (("a q",), "a"),
        ((), "a"),
    ],
)
def test_a_wider_filter_gets_round_no_rule(allow: tuple[str, ...], attempt: str) -> None:
    assert not SubjectRules(allow).allows_filter(attempt)


def test_rules_of_a_configuration() -> None:
    assert permissions_of_rules(None) is None
    found = permissions_of_rules(
        PermissionRules(
            publish=AllowDeny(allow=()),
            subscribe=AllowDeny(deny=("b",)),
            allow_responses=ResponseRules(max_msgs=-1, expires=5.0),
        )
    )
    assert isinstance(found, Permissions)
    assert (found.responses, found.response_s) == (-1, 5.0)
    assert not found.publish.allows("a")
    assert found.subscribe.allows("a")
    assert not found.subscribe.allows_filter("b")
    assert Permissions().publish.allows("a")
