"""A consumer does what the plain model does, whichever opener publishes, fetches, acks, deletes or reopens."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import pelton
from pelton.api import AckOp, PullRequest, consumer_config, resolved_consumer, resolved_stream, stream_config
from tests.model.machine import StoreMachine, openers
from tests.model.reference import Asked, ConsumerModel, StreamModel

SUBJECTS = ("s.a", "s.b", "s.c", "s.b.c")

configs = st.fixed_dictionaries(
    {
        "ack_policy": st.sampled_from(["explicit", "explicit", "explicit", "all", "none"]),
        "max_ack_pending": st.sampled_from([0, 2, 5, -1]),
        "max_deliver": st.sampled_from([-1, -1, 1, 2, 3]),
        "backoff": st.sampled_from([(), (), (0.1, 1.0)]),
        "filters": st.sampled_from([(), (), ("s.b",), ("s.*",), ("s.a", "s.b.>")]),
        "max_ack_pending_per_subject": st.sampled_from([0, 1, 1, 2, 3]),
        "deliver_policy": st.sampled_from(
            ["all", "all", "new", "last", "by_start_sequence", "by_start_time", "last_per_subject"]
        ),
    }
)
streams = st.fixed_dictionaries(
    {
        "retention": st.sampled_from(["limits", "workqueue"]),
        "max_msgs": st.sampled_from([-1, -1, 6]),
        "max_age": st.sampled_from([0, 0, 5]),
        "max_msgs_per_subject": st.sampled_from([-1, -1, 2]),
    }
)


class ConsumerMachine(StoreMachine):
    """One consumer, four openers of its file, one model."""

    @initialize(stream=streams, config=configs, before=st.lists(st.sampled_from(SUBJECTS), max_size=6))
    def create(self, stream: dict[str, Any], config: dict[str, Any], before: list[str]) -> None:
        self.stream = StreamModel(resolved_stream(stream_config("S", subjects=["s.>"], **stream)))
        self.run(self.jets[0].create_stream(self.stream.config))
        middle = self.now
        for index, subject in enumerate(before):
            if index == len(before) // 2:
                self.pass_time(0.5)
                middle = self.now
            self.publish(subject, 1, 0)
        fields = _fields(config, stream["retention"] == "workqueue", middle)
        wanted = consumer_config(durable_name="c", **fields)
        self.run(_create(self.jets[0], wanted))
        self.model = ConsumerModel(resolved_consumer(wanted), self.stream)
        self.model.start = self._start(middle)
        if self.model.config.deliver_policy == "last_per_subject":
            lasts = {message[1]: seq for seq, message in sorted(self.stream.messages.items())}
            self.model.met = set(self.stream.messages) - set(lasts.values())
        self.held: list[tuple[int, int]] = []

    def _start(self, middle: int) -> int:
        """The last sequence that is skipped."""
        messages, config = self.stream.messages, self.model.config
        wanted = [seq for seq, message in messages.items() if self.model.wants(message[1])]
        later = [seq for seq, message in messages.items() if message[0] >= middle]
        starts = {
            "all": 0,
            "new": self.stream.last,
            "last": max(wanted, default=1) - 1,
            "by_start_sequence": config.opt_start_seq - 1,
            "by_start_time": min(later, default=self.stream.last + 1) - 1,
            "last_per_subject": 0,
        }
        return starts[config.deliver_policy]

    @rule(subject=st.sampled_from(SUBJECTS), count=st.integers(1, 4), opener=openers)
    def publish(self, subject: str, count: int, opener: int) -> None:
        for _ in range(count):
            self.stream.publish(subject, b"x", -1, Asked(), self.now)
        self.run(self.jets[opener].publish_batch([(subject, b"x")] * count))

    @rule(batch=st.integers(1, 6), opener=openers)
    def fetch(self, batch: int, opener: int) -> None:
        got = self.run(self.jets[opener].backend.pull("S", "c", PullRequest(batch=batch, no_wait=True)))
        expected = self.model.fetch(batch, self.now, [d.seq for d in got])
        assert [(d.seq, d.consumer_seq, d.num_delivered, d.num_pending) for d in got] == expected
        self.held += [(d.seq, d.consumer_seq) for d in got]

    @precondition(lambda self: getattr(self, "held", None))
    @rule(
        picks=st.lists(st.integers(0, 40), min_size=1, max_size=5),
        kind=st.sampled_from(["ack", "ack", "ack", "nak", "progress", "term"]),
        delay=st.sampled_from([0, 0, 100_000_000, 3_000_000_000]),
        opener=openers,
    )
    def settle(self, picks: list[int], kind: Any, delay: int, opener: int) -> None:
        """Acknowledge old and new deliveries, some of them more than once."""
        chosen = [self.held[-1 - pick % len(self.held)] for pick in picks]
        acks = [AckOp(kind=kind, seq=seq, consumer_seq=name, delay_ns=delay) for seq, name in chosen]
        answers = self.run(self.jets[opener].backend.ack("S", "c", acks))
        assert [answer is None for answer in answers] == [
            self.model.ack(kind, seq, name, delay, self.now) for seq, name in chosen
        ]

    @rule(seq=st.integers(1, 30), opener=openers)
    def delete_message(self, seq: int, opener: int) -> None:
        self.stream.age(self.now)
        if self.stream.messages.pop(seq, None) is not None:
            self.run(_delete(self.jets[opener], seq))

    @rule(subject=st.sampled_from(["", "s.a", "s.b", "s.b.>"]), keep=st.integers(0, 2), opener=openers)
    def purge(self, subject: str, keep: int, opener: int) -> None:
        self.stream.age(self.now)
        assert self.run(_purge(self.jets[opener], subject, keep)) == self.stream.purge(subject, 0, keep)

    @precondition(lambda self: getattr(self, "model", None) and self.model.config.max_ack_pending_per_subject)
    @rule(opener=openers)
    def raise_limit(self, opener: int) -> None:
        config = self.model.config
        more = {"max_ack_pending_per_subject": config.max_ack_pending_per_subject + 1}
        wanted = consumer_config(config, **more)
        self.run(_create(self.jets[opener], wanted))
        self.model.config = wanted

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        self.stream.age(self.now)
        model = self.model
        for jet in self.jets:
            info = self.run(_info(jet))
            model.forget_vanished()
            assert info.num_pending == len(model.ahead())
            assert info.num_ack_pending == len(model.pending)
            assert info.num_redelivered == sum(entry.deliveries > 1 for entry in model.pending.values())
            assert info.delivered.consumer_seq == model.deliveries
        self.check_rows()


def _fields(config: dict[str, Any], workqueue: bool, middle: int) -> dict[str, Any]:
    """Return a valid configuration, derived from a random one."""
    fields = dict(config)
    filters = fields.pop("filters")
    fields["filter_subjects"] = filters if len(filters) > 1 else ()
    fields["filter_subject"] = filters[0] if len(filters) == 1 else ""
    if workqueue:
        fields.update(ack_policy="explicit", deliver_policy="all")
    if fields["ack_policy"] != "explicit":
        fields["max_ack_pending_per_subject"] = 0
    if fields["ack_policy"] == "none":
        fields["max_ack_pending"] = 0
    if fields["max_deliver"] == 1:
        fields["backoff"] = ()
    if fields["deliver_policy"] == "last_per_subject" and not filters:
        fields["filter_subject"] = ">"
    if fields["deliver_policy"] == "by_start_sequence":
        fields["opt_start_seq"] = 4
    if fields["deliver_policy"] == "by_start_time":
        fields["opt_start_time"] = pelton.rfc3339(middle)
    return {**fields, "ack_wait": 1}


async def _create(jet: pelton.Jet, config: pelton.ConsumerConfig) -> None:
    await (await jet.stream("S")).create_consumer(config)


async def _delete(jet: pelton.Jet, seq: int) -> None:
    await (await jet.stream("S")).delete_message(seq)


async def _purge(jet: pelton.Jet, subject: str, keep: int) -> int:
    return await (await jet.stream("S")).purge(filter=subject, keep=keep)


async def _info(jet: pelton.Jet) -> pelton.ConsumerInfo:
    return await (await (await jet.stream("S")).consumer("c")).info()


TestConsumer = ConsumerMachine.TestCase
