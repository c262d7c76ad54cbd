"""Time affects a stream as it affects a plain dict, however far the clock jumps and whichever opener reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import pelton
from pelton.api import headers, resolved_stream, stream_config
from tests.model.machine import StoreMachine, openers

S = 1_000_000_000
SUBJECTS = ("s.a", "s.b", "s.c")
PLANS = ("s.plan", "s.plot", "s.a")
TARGETS = ("s.a", "s.t")


@dataclass
class Entry:
    """A message: ``expires`` None without its own deadline, -1 for never; ``every`` 0 for a one-time schedule."""

    ts: int
    subject: str
    said: str
    expires: int | None = None
    target: str = ""
    due: int = 0
    every: int = 0


@dataclass
class TimeModel:
    """The messages of a stream by sequence, and which message is the schedule of its subject."""

    config: pelton.StreamConfig
    messages: dict[int, Entry] = field(default_factory=dict)
    plans: dict[str, int] = field(default_factory=dict)
    last: int = 0

    def of(self, subject: str) -> list[int]:
        return sorted(seq for seq, entry in self.messages.items() if entry.subject == subject)

    def remove(self, doomed: list[int]) -> None:
        for seq in doomed:
            entry = self.messages.pop(seq)
            if self.plans.get(entry.subject) == seq:
                del self.plans[entry.subject]

    def trim(self) -> None:
        limit, most = self.config.max_msgs_per_subject, self.config.max_msgs
        if limit > 0:
            for subject in {entry.subject for entry in self.messages.values()}:
                self.remove(self.of(subject)[:-limit])
        if most > 0:
            self.remove(sorted(self.messages)[: max(len(self.messages) - most, 0)])

    def store(self, entry: Entry, *, rollup: bool) -> None:
        self.last += 1
        self.messages[self.last] = entry
        self.plans.pop(entry.subject, None)
        if entry.target:
            self.plans[entry.subject] = self.last
        if rollup:
            self.trim()
            self.remove(self.of(entry.subject)[:-1])

    def publish(self, entry: Entry) -> int:
        self.advance(entry.ts)
        self.store(entry, rollup=bool(entry.target))
        seq = self.last
        self.trim()
        return seq

    def expiry(self, ttl: int | None, now: int) -> int | None:
        least = self.config.subject_delete_marker_ttl.ns // S
        if ttl is None or ttl < 0:
            return ttl
        return now + (max(ttl, least) if self.config.max_msgs_per_subject != 1 else ttl) * S

    def is_over(self, entry: Entry, now: int) -> bool:
        if entry.expires is not None and 0 <= entry.expires <= now:
            return True
        return entry.expires != -1 and 0 < self.config.max_age.ns <= now - entry.ts

    def advance(self, now: int) -> None:
        doomed = [seq for seq in sorted(self.messages) if self.is_over(self.messages[seq], now)]
        last_said = dict[str, str]()
        for entry in (self.messages[seq] for seq in doomed):
            # Markers come in the order of the last messages of their subjects.
            last_said.pop(entry.subject, None)
            last_said[entry.subject] = entry.said
        self.remove(doomed)
        if self.config.subject_delete_marker_ttl:
            for subject, said in last_said.items():
                if said != "marker" and not self.of(subject):
                    self.store(
                        Entry(now, subject, "marker", now + self.config.subject_delete_marker_ttl.ns), rollup=True
                    )
        for seq, plan in sorted((seq, self.messages[seq]) for seq in self.plans.values()):
            if plan.due <= now and self.plans.get(plan.subject) == seq:
                self.fire(seq, plan, now)
        self.trim()

    def fire(self, seq: int, plan: Entry, now: int) -> None:
        self.store(Entry(now, plan.target, f"made by {plan.subject}"), rollup=False)
        if not plan.every:
            self.remove(self.of(plan.subject))
        elif plan.due + plan.every * S >= now:
            plan.due += plan.every * S
        else:
            plan.due = rounded(now) + plan.every * S


def rounded(now: int) -> int:
    return (now + S // 2) // S * S


settings = st.fixed_dictionaries(
    {
        "max_age": st.sampled_from([0, 0, 3, 20]),
        "subject_delete_marker_ttl": st.sampled_from([0, 2, 8]),
        "max_msgs_per_subject": st.sampled_from([-1, -1, 1, 2]),
        "max_msgs": st.sampled_from([-1, -1, 4]),
    }
)


class TimeMachine(StoreMachine):
    """Openers of one store act, then all must see what the model holds."""

    @initialize(fields=settings)
    def create(self, fields: dict[str, float]) -> None:
        config = stream_config("S", subjects=["s.*"], allow_msg_ttl=True, allow_msg_schedules=True, **fields)
        self.model = TimeModel(resolved_stream(config))
        self.run(self.jets[0].create_stream(config))

    @rule(who=openers, subject=st.sampled_from(SUBJECTS), ttl=st.sampled_from([None, None, 1, 4, 30, -1]))
    def publish(self, who: int, subject: str, ttl: int | None) -> None:
        asked = "never" if ttl == -1 else ttl
        ack = self.run(self.jets[who].publish(subject, b"data", ttl=asked))
        self.model.advance(self.now)
        assert ack.seq == self.model.publish(Entry(self.now, subject, "data", self.model.expiry(ttl, self.now)))

    @rule(
        who=openers,
        subject=st.sampled_from(PLANS),
        goal=st.sampled_from(TARGETS),
        seconds=st.sampled_from([1, 3, 10]),
        again=st.booleans(),
        ttl=st.sampled_from([None, None, 4]),
    )
    def schedule(self, who: int, subject: str, goal: str, seconds: int, again: bool, ttl: int | None) -> None:
        if subject == goal:
            return
        now = self.now
        when = {"every": seconds} if again else {"delay": seconds}
        asked = {} if ttl is None else {"Nats-TTL": str(ttl)}
        ack = self.run(self.jets[who].schedule(subject, b"plan", target=goal, headers=asked, **when))
        due = rounded(now) + seconds * S if again else now + seconds * S
        self.model.advance(now)
        expires = self.model.expiry(ttl, now)
        plan = Entry(now, subject, "plan", expires, goal, due, seconds if again else 0)
        assert ack.seq == self.model.publish(plan)

    @rule(seconds=st.sampled_from([60.0, 86_400.0]))
    def advance_far(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(times=st.integers(2, 4))
    def advance_and_look(self, times: int) -> None:
        """Let schedules fire again and again."""
        for _ in range(times):
            self.pass_time(1.0)
            self.the_same()

    @rule(who=openers, subject=st.sampled_from((*SUBJECTS, *PLANS)))
    def purge(self, who: int, subject: str) -> None:
        self.model.advance(self.now)
        self.run(_purge(self.jets[who], subject))
        self.model.remove(self.model.of(subject))

    @precondition(lambda self: hasattr(self, "model") and self.model.messages)
    @rule(who=openers, data=st.data())
    def delete(self, who: int, data: st.DataObject) -> None:
        self.model.advance(self.now)
        if not self.model.messages:
            return
        seq = data.draw(st.sampled_from(sorted(self.model.messages)))
        self.run(_delete(self.jets[who], seq))
        self.model.remove([seq])

    @invariant()
    def the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.advance(self.now)
        expected = {seq: (entry.subject, entry.said) for seq, entry in self.model.messages.items()}
        for jet in self.jets:
            assert self.run(_messages(jet)) == (self.model.last, expected)
        self.check_rows()


async def _purge(jet: pelton.Jet, subject: str) -> None:
    await (await jet.stream("S")).purge(filter=subject)


async def _delete(jet: pelton.Jet, seq: int) -> None:
    await (await jet.stream("S")).delete_message(seq)


async def _messages(jet: pelton.Jet) -> tuple[int, dict[int, tuple[str, str]]]:
    stream = await jet.stream("S")
    state = (await stream.info(deleted_details=True)).state
    gone = set(state.deleted or ())
    found = {}
    for seq in range(state.first_seq, state.last_seq + 1):
        if seq not in gone and state.messages:
            message = await stream.get_message(seq)
            found[seq] = (message.subject, _said(message))
    return state.last_seq, found


def _said(message: pelton.StoredMessage) -> str:
    asked = headers.decode(message.hdrs) if message.hdrs else {}
    if "Nats-Marker-Reason" in asked:
        return "marker"
    scheduler = asked.get("Nats-Scheduler")
    return f"made by {scheduler}" if scheduler else message.data.decode()


TestTime = TimeMachine.TestCase
