"""An interest stream holds exactly what its consumers still need, whatever they and their owners do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import pelton
from pelton.api import AckOp, PullRequest, consumer_config, resolved_consumer, resolved_stream, stream_config
from tests.model.machine import StoreMachine, openers
from tests.model.reference import Asked, ConsumerModel, StreamModel

SUBJECTS = ("s.a", "s.b", "s.c", "s.b.c")
NAMES = ("one", "two", "three")

names = st.sampled_from(NAMES)
streams = st.fixed_dictionaries(
    {
        "retention": st.sampled_from(["interest", "interest", "interest", "limits"]),
        "max_msgs": st.sampled_from([-1, -1, 6]),
        "max_age": st.sampled_from([0, 0, 5]),
        "max_msgs_per_subject": st.sampled_from([-1, -1, 2]),
    }
)
configs = st.fixed_dictionaries(
    {
        "ack_policy": st.sampled_from(["explicit", "explicit", "explicit", "all", "none"]),
        "max_deliver": st.sampled_from([-1, -1, 1, 2]),
        "filters": st.sampled_from([(), (), ("s.b",), ("s.*",), ("s.a", "s.b.>")]),
        "max_ack_pending_per_subject": st.sampled_from([0, 0, 1, 2]),
        "deliver_policy": st.sampled_from(["all", "all", "new", "by_start_sequence", "last_per_subject"]),
        "opt_start_seq": st.sampled_from([2, 9]),
        "inactive_threshold": st.sampled_from([0, 0, 3]),
    }
)


@dataclass
class Wanting(ConsumerModel):
    """A consumer that knows which messages it still needs."""

    exhausted: set[int] = field(default_factory=set)
    used: int = 0

    def fetch(self, batch: int, now: int, got: Sequence[int] = ()) -> list[tuple[int, int, int, int]]:
        before = set(self.pending)
        out = super().fetch(batch, now, got)
        if self.stream.config.retention == "interest":
            self.exhausted |= (before - set(self.pending)) & set(self.stream.messages)
        self.used = now
        return out

    def keeps(self, seq: int, subject: str) -> bool:
        ahead = seq > self.start and seq not in self.met
        return self.wants(subject) and (ahead or seq in self.pending or seq in self.exhausted)

    def is_idle(self, now: int) -> bool:
        return 0 < self.config.inactive_threshold.ns <= now - self.used


class InterestMachine(StoreMachine):
    """Up to three consumers, four openers of their file, one model."""

    @initialize(stream=streams)
    def create(self, stream: dict[str, Any]) -> None:
        self.stream = StreamModel(resolved_stream(stream_config("S", subjects=["s.>"], **stream)))
        self.run(self.jets[0].create_stream(self.stream.config))
        self.consumers: dict[str, Wanting] = {}
        self.held: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}

    def _settle_model(self) -> None:
        """Drop messages that are too old, consumers that are inactive, and messages without interest."""
        self.stream.age(self.now)
        self.consumers = {name: c for name, c in self.consumers.items() if not c.is_idle(self.now)}
        if self.stream.config.retention == "interest":
            for seq, message in list(self.stream.messages.items()):
                if not any(consumer.keeps(seq, message[1]) for consumer in self.consumers.values()):
                    del self.stream.messages[seq]

    # --- consumers

    @rule(name=names, config=configs, opener=openers)
    def create_consumer(self, name: str, config: dict[str, Any], opener: int) -> None:
        self._settle_model()
        if name in self.consumers:
            return
        wanted = consumer_config(durable_name=name, **_fields(config))
        self.run(_create(self.jets[opener], wanted))
        model = self.consumers[name] = Wanting(resolved_consumer(wanted), self.stream, used=self.now)
        starts = {"all": 0, "new": self.stream.last, "by_start_sequence": wanted.opt_start_seq - 1}
        model.start = starts.get(wanted.deliver_policy, 0)
        if wanted.deliver_policy == "last_per_subject":
            lasts = {message[1]: seq for seq, message in sorted(self.stream.messages.items())}
            model.met = set(self.stream.messages) - set(lasts.values())
        self.held[name] = []

    @rule(name=names, opener=openers)
    def delete_consumer(self, name: str, opener: int) -> None:
        self._settle_model()
        if self.consumers.pop(name, None) is not None:
            self.run(_delete_consumer(self.jets[opener], name))

    @rule(name=names, filter_subject=st.sampled_from(["s.b", "s.*"]), opener=openers)
    def narrow(self, name: str, filter_subject: str, opener: int) -> None:
        self._settle_model()
        model = self.consumers.get(name)
        if model is not None and not model.config.filter_subject and not model.config.filter_subjects:
            wanted = consumer_config(model.config, filter_subject=filter_subject)
            self.run(_create(self.jets[opener], wanted))
            model.config = wanted

    @rule(name=names, seq=st.integers(1, 12), opener=openers)
    def reset(self, name: str, seq: int, opener: int) -> None:
        """Continue from a sequence: skipped messages are no longer needed, stored ones are needed again."""
        self._settle_model()
        model = self.consumers.get(name)
        if model is None or seq < model.config.opt_start_seq:
            return
        if model.config.deliver_policy not in ("new", "last_per_subject"):
            self.run(_reset(self.jets[opener], name, seq))
            model.pending.clear()
            model.removed.clear()
            model.exhausted.clear()
            model.met.clear()
            model.start = seq - 1

    # --- messages

    @rule(subject=st.sampled_from(SUBJECTS), count=st.integers(1, 4), opener=openers)
    def publish(self, subject: str, count: int, opener: int) -> None:
        self._settle_model()
        for _ in range(count):
            if self.stream.config.retention == "limits" or self._is_wanted(subject):
                self.stream.publish(subject, b"x", -1, Asked(), self.now)
            else:
                self.stream.last += 1
        acks = self.run(self.jets[opener].publish_batch([(subject, b"x")] * count))
        assert acks[-1].seq == self.stream.last

    def _is_wanted(self, subject: str) -> bool:
        return any(c.wants(subject) and c.start <= self.stream.last for c in self.consumers.values())

    @rule(name=names, batch=st.integers(1, 6), opener=openers)
    def fetch(self, name: str, batch: int, opener: int) -> None:
        self._settle_model()
        if (model := self.consumers.get(name)) is None:
            return
        got = self.run(self.jets[opener].backend.pull("S", name, PullRequest(batch=batch, no_wait=True)))
        expected = model.fetch(batch, self.now, [d.seq for d in got])
        assert [(d.seq, d.consumer_seq, d.num_delivered, d.num_pending) for d in got] == expected
        self.held[name] += [(d.seq, d.consumer_seq) for d in got]

    @rule(
        name=names,
        picks=st.lists(st.integers(0, 40), min_size=1, max_size=5),
        kind=st.sampled_from(["ack", "ack", "ack", "ack", "nak", "term"]),
        opener=openers,
    )
    def settle(self, name: str, picks: list[int], kind: Any, opener: int) -> None:
        self._settle_model()
        model, held = self.consumers.get(name), self.held[name]
        if model is None or not held:
            return
        chosen = [held[-1 - pick % len(held)] for pick in picks]
        acks = [AckOp(kind=kind, seq=seq, consumer_seq=number) for seq, number in chosen]
        answers = self.run(self.jets[opener].backend.ack("S", name, acks))
        expected = [model.ack(kind, seq, number, 0, self.now) for seq, number in chosen]
        assert [answer is None for answer in answers] == expected
        if kind != "nak" and any(expected) and model.config.ack_policy != "none":
            model.used = self.now

    @rule(seq=st.integers(1, 20), opener=openers)
    def delete_message(self, seq: int, opener: int) -> None:
        self._settle_model()
        if self.stream.messages.pop(seq, None) is not None:
            self.run(_delete(self.jets[opener], seq))

    @rule(subject=st.sampled_from(["", "s.a", "s.b.>"]), keep=st.integers(0, 2), opener=openers)
    def purge(self, subject: str, keep: int, opener: int) -> None:
        self._settle_model()
        assert self.run(_purge(self.jets[opener], subject, keep)) == self.stream.purge(subject, 0, keep)

    @precondition(lambda self: hasattr(self, "stream"))
    @rule(opener=openers)
    def change_retention(self, opener: int) -> None:
        self._settle_model()
        other = "interest" if self.stream.config.retention == "limits" else "limits"
        self.run(self.jets[opener].update_stream("S", retention=other))
        self.stream.config = resolved_stream(stream_config(self.stream.config, retention=other))

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "stream"):
            return
        self._settle_model()
        stored = self.stream.messages
        for jet in self.jets:
            info = self.run(_info(jet))
            gaps = [seq for seq in range(self.stream.first, self.stream.last + 1) if seq not in stored]
            assert (info.state.messages, info.state.last_seq) == (len(stored), self.stream.last)
            assert (info.state.deleted, info.state.consumer_count) == (gaps, len(self.consumers))
            for name, model in self.consumers.items():
                model.forget_vanished()
                found = self.run(_consumer_info(jet, name))
                assert (found.num_pending, found.num_ack_pending) == (len(model.ahead()), len(model.pending))
        self.check_rows()


def _fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return a valid configuration, derived from a random one."""
    fields = dict(config)
    filters = fields.pop("filters")
    fields["filter_subjects"] = filters if len(filters) > 1 else ()
    fields["filter_subject"] = filters[0] if len(filters) == 1 else ""
    if fields["ack_policy"] != "explicit":
        fields["max_ack_pending_per_subject"] = 0
    if fields["deliver_policy"] == "last_per_subject" and not filters:
        fields["filter_subject"] = ">"
    if fields["deliver_policy"] != "by_start_sequence":
        fields["opt_start_seq"] = 0
    return {**fields, "ack_wait": 1}


async def _create(jet: pelton.Jet, config: pelton.ConsumerConfig) -> None:
    await (await jet.stream("S")).create_consumer(config)


async def _delete_consumer(jet: pelton.Jet, name: str) -> None:
    await (await (await jet.stream("S")).consumer(name)).delete()


async def _reset(jet: pelton.Jet, name: str, seq: int) -> None:
    await (await (await jet.stream("S")).consumer(name)).reset(seq)


async def _delete(jet: pelton.Jet, seq: int) -> None:
    await (await jet.stream("S")).delete_message(seq)


async def _purge(jet: pelton.Jet, subject: str, keep: int) -> int:
    return await (await jet.stream("S")).purge(filter=subject, keep=keep)


async def _info(jet: pelton.Jet) -> pelton.StreamInfo:
    return await (await jet.stream("S")).info(deleted_details=True)


async def _consumer_info(jet: pelton.Jet, name: str) -> pelton.ConsumerInfo:
    return await (await (await jet.stream("S")).consumer(name)).info()


TestInterest = InterestMachine.TestCase
