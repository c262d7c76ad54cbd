"""Who gets a message: compared with a plain list of subscriptions, through any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.server import router as routers
from pelton.server.router import ClientSubscription, MessageFrame, Router
from pelton.subjects import matches
from tests.kit.wire_client import ClientParser, Msg


class Ear:
    """A client that counts."""

    def __init__(self, *, echo: bool = True, room: int = 1) -> None:
        self.echo = echo
        self.room = self.reserve = room
        self.heard: Counter[ClientSubscription] = Counter()

    def deliver(self, subscription: ClientSubscription, frame: MessageFrame) -> None:
        self.heard[subscription] += 1

    def deliver_run(self, subscription: ClientSubscription, run: bytes, size: int, replies: Sequence[str]) -> None:
        self.heard[subscription] += len(replies)

    def may_receive(self, subscription: ClientSubscription, subject: str) -> bool:
        return not subject.startswith("b")


TOKENS = st.sampled_from(["a", "b", "*"])
FILTERS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join) | st.sampled_from([">", "a.>", "*.>"])
SUBJECTS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(".".join)
STEPS = st.lists(st.tuples(FILTERS, st.sampled_from(["", "", "g", "h"]), st.booleans(), st.booleans()), max_size=12)


@given(STEPS, st.lists(SUBJECTS, min_size=1, max_size=4))
def test_who_gets_a_message(steps: list[tuple[str, str, bool, bool]], subjects: list[str]) -> None:
    router, known = Router(lambda fit: fit[-1]), []
    quiet, loud = Ear(echo=False), Ear()
    for number, (subject, queue, is_cut, is_removed) in enumerate(steps):
        one = ClientSubscription(quiet if number % 2 else loud, b"%d" % number, subject, queue, is_cut=is_cut)
        router.add(one)
        known.append(one)
        for subject in subjects:
            router.deliver(subject, MessageFrame(subject, "", None, b""), quiet)
        if is_removed:
            router.remove(known.pop(0))
    quiet.heard.clear()
    loud.heard.clear()
    for subject in subjects:
        before = sum(quiet.heard.values()) + sum(loud.heard.values())
        count = router.deliver(subject, MessageFrame(subject, "", None, b""), quiet)
        fit = [one for one in known if matches(one.subject, subject) and one.client is not quiet]
        fit = [one for one in fit if not (one.is_cut and subject.startswith("b"))]
        plain = [one for one in fit if not one.queue]
        groups = {one.queue for one in fit if one.queue}
        assert count == len(plain) + len(groups) == sum(quiet.heard.values()) + sum(loud.heard.values()) - before
        only = router.only_below(subject[: subject.rfind(".") + 1])
        assert only is None or only is router.targets(subject).only
        assert router.has_subscriber(subject) == any(matches(one.subject, subject) for one in known)


@given(st.none() | st.just(b"NATS/1.0\r\nA: b\r\n\r\n"), st.binary(max_size=30), st.sampled_from(["", "reply"]))
def test_a_message_is_encoded_for_clients_that_know_headers_and_for_others(
    block: bytes | None, data: bytes, reply: str
) -> None:
    frame = MessageFrame("a.b", reply, block, data)
    for headers in (True, False):
        head, tail = frame.parts(headers)
        expected = Msg("a.b", b"7", reply, block if headers else None, data)
        assert ClientParser().feed(head + b"7" + tail) == [expected]


def test_a_subject_with_very_many_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered for few is found anew for many, and is the same."""
    found = []
    for most in (1024, 1):
        monkeypatch.setattr(routers, "_SHARED_UP_TO", most)
        router = Router(lambda fit: fit[-1])
        for number, (subject, queue) in enumerate([("a.*", ""), ("a.b", ""), ("a.b", "g"), (">", "g"), ("*.b", "h")]):
            router.add(ClientSubscription(Ear(), b"%d" % number, subject, queue))
        told = [router.targets(subject) for subject in ("a.b", "a.*", "x.b", "y")]
        found.append([([one.sid for one in each.plain], [len(group) for group in each.groups]) for each in told])
        assert len(router._shared) == (4 if most > 1 else 1)
    assert found[0] == found[1]
    assert found[0][:2] == [([b"0", b"1"], [2, 1]), ([b"0"], [1])]
