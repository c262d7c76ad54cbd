"""Checks whether recorded histories keep the promises of streams and consumers. Pure.

Every process records each step before and after it takes it, with one clock of the machine (CLOCK_MONOTONIC,
nanoseconds); :func:`check_deliveries` compares the records with the content of the store at the end, when everything
has been drained, and reports what breaks the promises:

- ``stored``: a message acknowledged to its publisher is stored under its sequence, once, unless limits or settlement
  removed it; and only published messages are stored.
- ``settled``: a message whose ack was confirmed is never redelivered, and no ack counts twice.
- ``lost``: every message is settled in the end, or was delivered as often as allowed, with one advisory.
- ``token``: a delivery has a larger token than all those that had arrived before its pull began, and a unique one; also
  after a consumer was deleted and created again under its name, for which there is :func:`check_tokens`.
- ``count``: deliveries of a message are counted upwards, to the limit, and their numbers name one delivery each.
- ``late``: an ack is refused only if its delivery was replaced, settled, exhausted or removed.
- ``order``: with one message in flight per subject, the next comes after its predecessor was settled, and none is
  redelivered after it.

A delivery is named by its number (``dseq``), which only grows: most rules compare numbers and trust no clock. A killed
process may have done one thing more than it recorded, so an ack that was begun and not answered may hold or not,
and unrecorded deliveries (missing numbers) may have gone to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from pelton.subjects import matches

StepKind = Literal["publishing", "published", "delivered", "settling", "settled", "refused"]
BrokenRule = Literal["stored", "settled", "lost", "token", "count", "late", "order"]


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Something that one process did or saw.

    ``at`` is nanoseconds of one machine-wide clock, ``began`` when the pull of a delivery began. ``how`` is the kind
    of ack of a delivery (ack, nak, term, progress), ``name`` is the message's own, each published once.
    ``token`` is the fencing token of a delivery; 0: not recorded.
    """

    kind: StepKind
    at: int
    who: str
    stream: str
    consumer: str = ""
    seq: int = 0
    dseq: int = 0
    n: int = 0
    subject: str = ""
    name: str = ""
    how: str = ""
    began: int = 0
    token: int = 0


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a consumer; created before anything was published."""

    stream: str
    consumer: str
    filters: tuple[str, ...] = (">",)
    ack_policy: str = "explicit"
    max_deliver: int = -1
    per_subject: int = 0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the store after everything was drained.

    ``stored``: name by sequence, of each stream. ``floor``: the first sequence not removed by limits, if there are
    limits. ``told``: stream, consumer and sequence of every advisory of a message given up.
    """

    stored: Mapping[str, Mapping[int, str]]
    floor: Mapping[str, int] = msgspec.field(default_factory=dict)
    told: Sequence[tuple[str, str, int]] = ()
    settled_away: Collection[str] = ()
    """The streams that remove settled messages."""


class BrokenPromise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was not kept."""

    rule: BrokenRule
    where: str
    text: str


def check_deliveries(steps: Iterable[Step], promises: Iterable[Promise], ending: Ending) -> list[BrokenPromise]:
    """Return the broken promises; an empty list for a good history. Steps may come in any order."""
    published: dict[str, list[Step]] = defaultdict(list)
    of_consumers: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: step.at):
        if step.consumer:
            of_consumers[step.stream, step.consumer].append(step)
        else:
            published[step.stream].append(step)
    checks = [
        _ConsumerCheck(promise, of_consumers[promise.stream, promise.consumer], published[promise.stream], ending)
        for promise in promises
    ]
    found = [broken for check in checks for broken in check.run()]
    for stream in sorted({*published, *ending.stored}):
        mine = [check for check in checks if check.promise.stream == stream]
        found += _check_stored(stream, published[stream], mine, ending)
    return found


def check_tokens(stream: str, consumer: str, steps: Iterable[Step]) -> Iterator[BrokenPromise]:
    """Yield what is wrong with the tokens of a consumer, or of all consumers that successively had this name."""
    where = f"{stream}/{consumer}"
    delivered = [s for s in steps if s.kind == "delivered" and s.token and (s.stream, s.consumer) == (stream, consumer)]
    for token, times in Counter(step.token for step in delivered).items():
        if times > 1:
            yield BrokenPromise(rule="token", where=where, text=f"{times} deliveries have the token {token}")
    arrived = sorted(delivered, key=lambda step: step.at)
    place, largest = 0, 0
    for step in sorted(delivered, key=lambda step: step.began):
        while place < len(arrived) and arrived[place].at < step.began:
            largest = max(largest, arrived[place].token)
            place += 1
        if step.token <= largest:
            text = f"message {step.seq} was delivered with token {step.token} after token {largest}"
            yield BrokenPromise(rule="token", where=where, text=text)


def _check_stored(
    stream: str, steps: Sequence[Step], consumers: Sequence[_ConsumerCheck], ending: Ending
) -> Iterator[BrokenPromise]:
    kept, floor = ending.stored.get(stream, {}), ending.floor.get(stream, 1)
    begun = {step.name for step in steps if step.kind == "publishing"}
    for name, times in Counter(kept.values()).items():
        if times > 1:
            yield BrokenPromise(rule="stored", where=stream, text=f"{name} is stored {times} times")
    for seq, name in kept.items():
        if name not in begun:
            yield BrokenPromise(rule="stored", where=stream, text=f"message {seq}, {name}, was never published")
    for step in (step for step in steps if step.kind == "published"):
        found = kept.get(step.seq)
        if found == step.name or (found is None and step.seq < floor):
            continue
        if found is None and stream in ending.settled_away and _may_be_gone(step, consumers):
            continue
        yield BrokenPromise(
            rule="stored", where=stream, text=f"{step.name} was stored as {step.seq}, but {found} is there"
        )


def _may_be_gone(step: Step, consumers: Sequence[_ConsumerCheck]) -> bool:
    return all(check.may_be_settled(step.seq) for check in consumers if check.wants(step.subject))


def _answered(steps: Iterable[Step]) -> Iterator[tuple[Step, Step | None]]:
    """Yield every step that was begun, with its answer; None if its process was killed."""
    waiting: dict[tuple[str, int, int], Step] = {}
    for step in steps:
        key = (step.who, step.seq, step.dseq)
        if step.kind == "settling":
            waiting[key] = step
        elif key in waiting:
            yield waiting.pop(key), step
    for step in waiting.values():
        yield step, None


class _ConsumerCheck:
    """The history of one consumer, in order of time."""

    def __init__(self, promise: Promise, steps: Sequence[Step], published: Sequence[Step], ending: Ending) -> None:
        self.promise = promise
        self._ending = ending
        self._published = published
        self._where = f"{promise.stream}/{promise.consumer}"
        self._floor = ending.floor.get(promise.stream, 1)
        self._deliveries: dict[int, list[Step]] = defaultdict(list)
        self._numbers: dict[int, Step] = {}
        self._twice: list[Step] = []
        self._steps = steps
        for step in steps:
            if step.kind == "delivered":
                if step.dseq in self._numbers:
                    self._twice.append(step)
                self._numbers[step.dseq] = step
                self._deliveries[step.seq].append(step)
        for mine in self._deliveries.values():
            mine.sort(key=lambda step: step.dseq)
        self._refused = [step for step in steps if step.kind == "refused"]
        self._held: dict[int, list[Step]] = defaultdict(list)
        self._maybe: dict[int, list[Step]] = defaultdict(list)
        for begun, answer in _answered(step for step in steps if step.how in ("ack", "term")):
            if answer is None or answer.kind == "settled":
                self._maybe[begun.seq].append(begun)
            if answer is not None and answer.kind == "settled":
                self._held[begun.seq].append(answer)
        self._told = [seq for stream, name, seq in ending.told if (stream, name) == (promise.stream, promise.consumer)]
        self._gone = set(self._told)
        self._last_maybe = max(self._maybe, default=0)

    def wants(self, subject: str) -> bool:
        return any(matches(text, subject) for text in self.promise.filters)

    def may_be_settled(self, seq: int) -> bool:
        """Whether a message may have been settled: an ack was begun, and not refused."""
        policy = self.promise.ack_policy
        if policy == "none":
            return True
        return seq in self._maybe or (policy == "all" and seq <= self._last_maybe)

    def run(self) -> Iterator[BrokenPromise]:
        yield from check_tokens(self.promise.stream, self.promise.consumer, self._steps)
        yield from self._check_counts()
        yield from self._check_settled()
        yield from self._check_lost()
        yield from self._check_late()
        if self.promise.per_subject == 1:
            yield from self._check_order()

    def _broken(self, rule: BrokenRule, text: str) -> BrokenPromise:
        return BrokenPromise(rule=rule, where=self._where, text=text)

    def _check_counts(self) -> Iterator[BrokenPromise]:
        for step in self._twice:
            yield self._broken("count", f"two deliveries have the number {step.dseq}")
        limit = self.promise.max_deliver
        for seq, mine in self._deliveries.items():
            if 0 < limit < mine[-1].n:
                yield self._broken("count", f"message {seq} was delivered {mine[-1].n} times, the limit is {limit}")
            for earlier, later in pairwise(mine):
                if later.n <= earlier.n:
                    yield self._broken("count", f"message {seq}: delivery {later.n} came after delivery {earlier.n}")

    def _check_settled(self) -> Iterator[BrokenPromise]:
        for seq, ends in self._held.items():
            if seq < self._floor:
                # Acks of messages that limits have since removed are accepted from any client: there is nothing to
                # settle.
                continue
            if len(ends) > 1:
                yield self._broken("settled", f"message {seq} was settled {len(ends)} times")
            last = self._deliveries[seq][-1] if seq in self._deliveries else ends[0]
            if last.dseq > ends[0].dseq:
                yield self._broken(
                    "settled",
                    f"message {seq} was delivered (number {last.dseq}) though number {ends[0].dseq} was settled",
                )
        if self.promise.ack_policy == "all":
            yield from self._check_settled_before()

    def _check_settled_before(self) -> Iterator[BrokenPromise]:
        """An ack-all settles earlier deliveries: a pull that began later gets none of them."""
        upto, times = 0, sorted((end.at, end.seq) for ends in self._held.values() for end in ends)
        place = 0
        deliveries = sorted((step for mine in self._deliveries.values() for step in mine), key=lambda step: step.began)
        for step in deliveries:
            while place < len(times) and times[place][0] < step.began:
                upto = max(upto, times[place][1])
                place += 1
            if step.seq <= upto:
                yield self._broken("settled", f"message {step.seq} was delivered after all up to {upto} were acked")

    def _check_lost(self) -> Iterator[BrokenPromise]:
        for seq, times in Counter(self._told).items():
            if times > 1:
                yield self._broken("lost", f"message {seq} was given up {times} times")
        for seq in self._told:
            if seq in self._held:
                yield self._broken("lost", f"message {seq} was settled, and given up")
        if self.promise.ack_policy == "none":
            return
        kept = self._ending.stored.get(self.promise.stream, {})
        for step in self._published:
            if step.kind != "published" or step.seq < self._floor or not self.wants(step.subject):
                continue
            if not self.may_be_settled(step.seq) and step.seq not in self._gone:
                there = "is stored" if step.seq in kept else "is gone"
                yield self._broken("lost", f"message {step.seq} was never settled, nor given up, and {there}")

    def _check_late(self) -> Iterator[BrokenPromise]:
        last = max(self._numbers, default=0)
        for step in self._refused:
            replaced = any(other.dseq > step.dseq for other in self._deliveries.get(step.seq, ()))
            settled = any(end.at < step.at for end in self._ends_of(step))
            if replaced or settled or step.seq in self._gone or step.seq < self._floor:
                continue
            # A killed process may have received it without recording it.
            if not any(number not in self._numbers for number in range(step.dseq + 1, last + 1)):
                yield self._broken("late", f"an ack of message {step.seq}, number {step.dseq}, was refused for nothing")

    def _ends_of(self, step: Step) -> list[Step]:
        if self.promise.ack_policy == "all":
            return [end for seq, ends in self._maybe.items() if seq >= step.seq for end in ends]
        return self._maybe.get(step.seq, [])

    def _check_order(self) -> Iterator[BrokenPromise]:
        holders: dict[str, Step] = {}
        for number in sorted(self._numbers):
            step = self._numbers[number]
            before = holders.get(step.subject)
            holders[step.subject] = step
            if before is None or before.seq == step.seq:
                continue
            if before.seq > step.seq:
                yield self._broken("order", f"message {step.seq} of {step.subject} came after message {before.seq}")
            elif not any(end.at < step.at for end in self._maybe.get(before.seq, ())) and not self._is_gone(before.seq):
                yield self._broken("order", f"message {step.seq} of {step.subject} came while {before.seq} was held")

    def _is_gone(self, seq: int) -> bool:
        return seq in self._gone or seq < self._floor
