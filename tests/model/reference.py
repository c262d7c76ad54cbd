"""Streams and consumers, modelled as plainly as possible: with dicts, and every query answered by counting.

Written from NATS's rules, not from the engine. Nothing here is fast, shared or durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pelton.api import ConsumerConfig, StreamConfig
from pelton.subjects import matches

Message = tuple[int, str, bytes, int]
"""Time, subject, payload, length of the header block (-1 for none)."""


def size_of(message: Message) -> int:
    """Return the size of a message in NATS's file store."""
    _, subject, data, header = message
    return 30 + len(subject.encode()) + len(data) + (0 if header < 0 else 4 + header)


@dataclass
class Asked:
    """The conditions of a publish."""

    msg_id: str = ""
    stream: str = ""
    last_seq: int | None = None
    last_subject_seq: int | None = None
    last_subject_filter: str = ""
    last_msg_id: str | None = None


@dataclass
class StreamModel:
    """The messages of a stream by sequence."""

    config: StreamConfig
    messages: dict[int, Message] = field(default_factory=dict)
    last: int = 0
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    id_of: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return min(self.messages, default=self.last + 1)

    @property
    def bytes(self) -> int:
        return sum(size_of(message) for message in self.messages.values())

    def of(self, subject_filter: str) -> list[int]:
        """The sequences of the messages that match, in order."""
        return sorted(seq for seq, message in self.messages.items() if matches(subject_filter, message[1]))

    def last_of(self, subject_filter: str) -> int:
        return max(self.of(subject_filter), default=0)

    def age(self, now: int) -> None:
        limit = self.config.max_age.ns
        if limit > 0:
            self.messages = {seq: message for seq, message in self.messages.items() if message[0] > now - limit}

    def publish(self, subject: str, data: bytes, header: int, asked: Asked, now: int) -> tuple[str, int]:
        """Return the outcome: a word, and the sequence that was stored or (of a duplicate) known."""
        self.age(now)
        word = self._refusal(subject, data, header, asked, now)
        if word:
            return word
        self.last += 1
        self.messages[self.last] = (now, subject, data, header)
        if asked.msg_id:
            self.ids[asked.msg_id] = (self.last, now)
            self.id_of[self.last] = asked.msg_id
        self.trim()
        return "stored", self.last

    def _refusal(self, subject: str, data: bytes, header: int, asked: Asked, now: int) -> tuple[str, int] | None:
        if 0 <= self.config.max_msg_size < len(data) + max(header, 0):
            return "too large", 0
        if asked.stream not in ("", self.config.name):
            return "wrong stream", 0
        if asked.last_subject_seq is None and asked.last_subject_filter:
            return "no sequence", 0
        known = self.ids.get(asked.msg_id)
        if known is not None and known[1] > now - self.config.duplicate_window.ns:
            return "duplicate", known[0]
        wrong = self._unexpected(subject, asked)
        if wrong is not None:
            return wrong
        return self._no_room((now, subject, data, header))

    def _unexpected(self, subject: str, asked: Asked) -> tuple[str, int] | None:
        if asked.last_subject_seq is not None:
            real = self.last_of(asked.last_subject_filter or subject)
            if real != asked.last_subject_seq:
                return "wrong sequence", real
        if asked.last_seq is not None and asked.last_seq != self.last:
            return "wrong sequence", self.last
        if asked.last_msg_id and asked.last_msg_id != self.id_of.get(self.last, ""):
            return "wrong id", 0
        return None

    def _no_room(self, message: Message) -> tuple[str, int] | None:
        config = self.config
        if config.discard != "new":
            return None
        mine = self.of(message[1])
        full = 0 < config.max_msgs_per_subject <= len(mine)
        if full and config.discard_new_per_subject:
            return "subject full", 0
        if 0 < config.max_msgs <= len(self.messages) and not full:
            return "full", 0
        over = 0 < config.max_bytes < self.bytes + size_of(message)
        if over and not (full and size_of(message) <= size_of(self.messages[mine[0]])):
            return "bytes full", 0
        return None

    def trim(self) -> None:
        """Apply the limits to all messages, the oldest first."""
        config = self.config
        if config.max_msgs_per_subject > 0:
            for subject in {message[1] for message in self.messages.values()}:
                for seq in self.of(subject)[: -config.max_msgs_per_subject]:
                    del self.messages[seq]
        if config.discard == "new":
            return
        while self.messages and (0 < config.max_msgs < len(self.messages) or 0 < config.max_bytes < self.bytes):
            del self.messages[self.first]

    def purge(self, subject_filter: str, upto: int, keep: int) -> int:
        """Remove messages; return how many."""
        doomed = self.of(subject_filter or ">")
        if upto:
            doomed = [seq for seq in doomed if seq < upto]
        if keep:
            doomed = doomed[:-keep]
        for seq in doomed:
            del self.messages[seq]
        if not subject_filter and upto > self.last + 1:
            self.last = upto - 1
        return len(doomed)


@dataclass
class Pending:
    """A message that is delivered and not settled."""

    name: int
    deliveries: int
    due: int
    subject: str


@dataclass
class ConsumerModel:
    """A consumer's deliveries. ``start`` is the last sequence that it skips."""

    config: ConsumerConfig
    stream: StreamModel
    start: int = 0
    deliveries: int = 0
    met: set[int] = field(default_factory=set)
    pending: dict[int, Pending] = field(default_factory=dict)
    # Delivered, not settled, and no longer in the stream: an ack in time counts.
    removed: dict[int, Pending] = field(default_factory=dict)

    def wants(self, subject: str) -> bool:
        config = self.config
        filters = config.filter_subjects or ((config.filter_subject,) if config.filter_subject else (">",))
        return any(matches(text, subject) for text in filters)

    def ahead(self) -> list[int]:
        """The messages that were not delivered yet."""
        found = self.stream.messages.items()
        return sorted(s for s, m in found if s > self.start and s not in self.met and self.wants(m[1]))

    def fetch(self, batch: int, now: int, got: Sequence[int] = ()) -> list[tuple[int, int, int, int]]:
        """Deliver: (sequence, number of the delivery, deliveries of the message, left) each.

        If subjects take turns, any of those may be next that can be; ``got`` says which ones were.
        """
        self.stream.age(now)
        self.forget_vanished()
        self.removed = {seq: entry for seq, entry in self.removed.items() if entry.due > now}
        out: list[tuple[int, int, int, int]] = []
        for seq in sorted(self.pending, key=lambda s: (self.pending[s].due, s)):
            entry = self.pending[seq]
            if entry.due > now or len(out) >= batch:
                break
            if seq not in self.stream.messages or 0 < self.config.max_deliver <= entry.deliveries:
                del self.pending[seq]
            else:
                out.append(self._deliver(seq, entry.deliveries + 1, now))
        while len(out) < batch and (seq := self._next_new(got[len(out)] if len(out) < len(got) else 0)):
            out.append(self._deliver(seq, 1, now))
        return out

    def forget_vanished(self) -> None:
        """Messages removed from the stream are not awaited any more, unless their holder keeps a subject."""
        if not self.config.max_ack_pending_per_subject:
            for seq in [seq for seq in self.pending if seq not in self.stream.messages]:
                self.removed[seq] = self.pending.pop(seq)

    def _next_new(self, got: int) -> int:
        if 0 < self.config.max_ack_pending <= len(self.pending):
            return 0
        taken: dict[str, int] = {}
        for entry in self.pending.values():
            taken[entry.subject] = taken.get(entry.subject, 0) + 1
        limit = self.config.max_ack_pending_per_subject
        found: dict[str, int] = {}
        for seq in self.ahead():
            subject = self.stream.messages[seq][1]
            if not limit:
                return seq
            if taken.get(subject, 0) < limit:
                found.setdefault(subject, seq)
        return got if got in found.values() else min(found.values(), default=0)

    def _deliver(self, seq: int, deliveries: int, now: int) -> tuple[int, int, int, int]:
        self.deliveries += 1
        self.met.add(seq)
        if self.config.ack_policy != "none":
            subject = self.stream.messages[seq][1]
            self.pending[seq] = Pending(self.deliveries, deliveries, now + self._wait(deliveries), subject)
        return seq, self.deliveries, deliveries, len(self.ahead())

    def _wait(self, deliveries: int) -> int:
        backoff = self.config.backoff
        return (backoff[min(deliveries, len(backoff)) - 1] if backoff else self.config.ack_wait).ns

    def ack(self, kind: str, seq: int, name: int, delay: int, now: int) -> bool:
        """Return whether it had an effect."""
        if self.config.ack_policy == "none":
            return True
        self.forget_vanished()
        entry = self.pending.get(seq) or self.removed.get(seq)
        if entry is None:
            return self.stream.config.retention == "limits" and seq not in self.stream.messages
        if entry.name != name:
            return False
        if kind == "nak":
            entry.due = now + delay
        elif kind == "progress":
            entry.due = now + self._wait(entry.deliveries)
        else:
            self._settle(seq, kind)
        return True

    def _settle(self, seq: int, kind: str) -> None:
        every = self.config.ack_policy == "all"
        for done in [s for s in self.removed if s == seq or (every and s < seq)]:
            del self.removed[done]
        for done in [s for s in self.pending if s == seq or (every and s < seq)]:
            del self.pending[done]
            if self.stream.config.retention == "workqueue":
                self.stream.messages.pop(done, None)
