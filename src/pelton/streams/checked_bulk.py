"""Appending many messages at once that have conditions or are schedules, each answered by itself.

Design: The single path (``Appender.append``) reads each header, looks every subject up that a condition's filter can
match, and writes a row at a time. Here, messages of the usual forms (:class:`UsualForm`) are *planned* first, which
tells all that does not depend on the stream's messages; then all the subjects are looked up together,
the conditions compared in order, and what they let through is stored together. Whatever is not of a usual form, or
could be refused for another reason than its condition, has no plan, and takes the single path: the answers are the
same.

A block of a usual form, which most with conditions or schedules have, holds nothing else. So what it asks for is known
without a look at each header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Final, NamedTuple

import msgspec

from pelton.api import ApiError, Outgoing, PubAck, api_error, headers
from pelton.api.schedule import first_due, parse_schedule
from pelton.streams.appender import Appender
from pelton.streams.publish_checks import is_bare
from pelton.streams.reader import Reader, Spots, SubjectBounds
from pelton.streams.state import StreamState
from pelton.streams.timers import Firing

# With fewer subjects below the same beginnings, each is looked up: to ask first whether there are any costs as much.
_FEW: Final = 8


class LastLookup:
    """Looks subjects of one stream up."""

    def __init__(self, state: StreamState, reader: Reader) -> None:
        self._state = state
        self._bounds = SubjectBounds(state.db, state.id)
        self._reader = reader

    def of(self, wanted: Mapping[Spots, list[str]]) -> dict[str, int]:
        """Return the last sequences of those subjects that have messages: every token at each of its spots.

        There may be others among them.
        """
        if not wanted:
            return {}
        state = self._state
        state.write_rows()
        bounds = state.subjects.counted_lasts(self._likely(wanted))
        newer = state.subjects.newer(state.last)
        for subject in _present(wanted, newer):
            bounds[subject] = max(bounds.get(subject, 0), newer[subject].last)
        if not bounds:
            return {}
        # A subject's last message may have been removed since.
        there = state.table.subjects_at(bounds.values())
        exact = (
            (subject, seq if there.get(seq) == subject else self._reader.last_seq_of(subject))
            for subject, seq in bounds.items()
        )
        return {subject: seq for subject, seq in exact if seq}

    def _likely(self, wanted: Mapping[Spots, list[str]]) -> list[str]:
        """Return the subjects that may be counted: at most spots there is nothing between the first and the last."""
        likely: list[str] = []
        for spots, tokens in wanted.items():
            first, last = min(tokens), max(tokens)
            for spot in spots:
                if len(tokens) < _FEW or self._bounds.has_within(spot + first, spot + last):
                    likely += map(spot.__add__, tokens)
        return likely


def _present(wanted: Mapping[Spots, list[str]], newer: Mapping[str, object]) -> Iterable[str]:
    """Return those of the uncounted subjects that are wanted, and maybe others: by the shorter of two ways."""
    if not newer:
        return ()
    if sum(len(spots) * len(tokens) for spots, tokens in wanted.items()) <= len(newer):
        pairs = chain.from_iterable(product(spots, tokens) for spots, tokens in wanted.items())
        return [subject for spot, token in pairs if (subject := spot + token) in newer]
    tokens = set(chain.from_iterable(wanted.values()))
    return [subject for subject in newer if subject[subject.rfind(".") + 1 :] in tokens]


_SUB: Final = "sub"


class PlannedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, and what is to be done with it. ``block`` are its headers as they are stored.

    Its subject ends in ``token``. It is a schedule that ``fires``, or None; ``expected`` is the last sequence of the
    subjects that end in ``where`` at one of the ``spots``, or -1.
    """

    message: Outgoing
    block: bytes | None
    token: str
    fires: int | None = None
    expected: int = -1
    spots: Spots = ()
    where: str = ""
    msg_id: str = ""


class _Taken:
    """What is to be stored, and where: ``seqs`` by subject; ``tokens`` are the last ones of subjects."""

    def __init__(self) -> None:
        self.plans: list[PlannedMessage] = []
        self.seqs: dict[str, int] = {}
        self.tokens: set[str] = set()

    def add(self, seq: int, plan: PlannedMessage) -> None:
        """Add a message."""
        self.plans.append(plan)
        self.seqs[plan.message.subject] = seq
        self.tokens.add(plan.token)

    def last_of(self, plan: PlannedMessage) -> int:
        """Return the last sequence here that a plan's condition refers to, 0 if there is none."""
        if plan.where not in self.tokens:
            return 0
        return max((self.seqs.get(spot + plan.where, 0) for spot in plan.spots), default=0)


class Answers(NamedTuple):
    """An answer for each of the first messages, and those that were stored; the next message is to be stored alone."""

    answers: list[PubAck | ApiError]
    stored: list[Outgoing]


class CheckedBulk:
    """Stores planned messages in one stream; the caller has checked ``Appender.takes_checked_bulk``."""

    def __init__(self, appender: Appender, reader: Reader) -> None:
        self._state = appender.state
        self._appender = appender
        self._reader = reader
        self._lookup = LastLookup(appender.state, reader)
        self._due: tuple[str, int] = ("", 0)

    # --- planning

    def plan(self, message: Outgoing) -> PlannedMessage | None:
        """Return what is to be done with a message; None: it takes the single path."""
        block, subject = message.headers, message.subject
        token = subject[subject.rfind(".") + 1 :]
        if block is None:
            return PlannedMessage(message, None, token)
        form = usual_form(block)
        if form is None:
            return PlannedMessage(message, block, token) if is_bare(block) else None
        fires = None
        if form.schedule:
            fires = self._fires(form, subject)
            if fires is None:
                return None
            block = headers.with_value(block, headers.ROLLUP, _SUB)
        if not form.expected:
            return PlannedMessage(message, block, token, fires, msg_id=form.msg_id)
        spots = self._reader.spots_of(form.where_parent)
        if spots is None:
            return None
        return PlannedMessage(message, block, token, fires, int(form.expected), spots, form.where_token, form.msg_id)

    def _fires(self, form: UsualForm, subject: str) -> int | None:
        """Return when a schedule fires; None if it might be refused."""
        config = self._state.config
        if not (config.allow_msg_schedules and config.allow_rollup_hdrs):
            return None
        parent = form.target_parent
        # The target is a subject of this stream, and another one.
        if self._reader.spots_of(parent) != (f"{parent}.",) or f"{parent}.{form.target_token}" == subject:
            return None
        known, due = self._due
        if known != form.schedule:
            try:
                due = first_due(parse_schedule(form.schedule), 0)
            except ValueError:
                return None
            self._due = form.schedule, due
        return due

    # --- appending

    def append(self, plans: Sequence[PlannedMessage], now: int, *, until_refused: bool = False) -> Answers:
        """Store messages, or answer why one is refused, in order; ``until_refused``: none after the first refused.

        It ends before a message that replaces another one.
        """
        taken, answers = _Taken(), list[PubAck | ApiError]()
        lasts = self._lookup.of(_wanted(plans))
        state = self._state
        state.write_rows()
        first, name, knows_ids = state.last + 1, state.name, state.config.duplicate_window.ns > 0
        for plan in plans:
            if plan.msg_id and knows_ids and (known := state.ids.find(plan.msg_id, now)) is not None:
                answers.append(PubAck(name, known, True))
                continue
            if plan.expected >= 0:
                last = max((lasts.get(spot + plan.where, 0) for spot in plan.spots), default=0) if lasts else 0
                last = taken.last_of(plan) or last
                if last != plan.expected:
                    answers.append(api_error("JSStreamWrongLastSequenceErrF", seq=last))
                    if until_refused:
                        break
                    continue
            subject = plan.message.subject
            if plan.fires is not None and (subject in lasts or subject in taken.seqs):
                break
            seq = first + len(taken.plans)
            taken.add(seq, plan)
            if plan.msg_id:
                state.ids.add(seq, now, plan.msg_id)
            answers.append(PubAck(name, seq))
        if taken.plans:
            self._store(taken, now)
        return Answers(answers, [plan.message for plan in taken.plans])

    def _store(self, taken: _Taken, now: int) -> None:
        state, first = self._state, self._state.last + 1
        messages = [plan.message for plan in taken.plans]
        subjects = [message.subject for message in messages]
        payloads = [message.data for message in messages]
        self._appender.store_all(subjects, [plan.block for plan in taken.plans], payloads, now)
        if not state.config.allow_msg_schedules:
            return
        firings = [
            Firing(seq, plan.message.subject, plan.fires)
            for seq, plan in enumerate(taken.plans, first)
            if plan.fires is not None
        ]
        if firings:
            state.timers.put_all(firings)
        # Any other message on the subject of a schedule replaces it.
        at_seq = {firing.subject: firing.seq for firing in firings}
        state.timers.stop_all([subject for subject, seq in taken.seqs.items() if at_seq.get(subject) != seq])


def _wanted(plans: Sequence[PlannedMessage]) -> dict[Spots, list[str]]:
    """Return the subjects that conditions refer to, and those of schedules, which would replace what is there."""
    wanted: dict[Spots, list[str]] = {}
    for plan in plans:
        if plan.expected >= 0:
            wanted.setdefault(plan.spots, []).append(plan.where)
        if plan.fires is not None:
            spot = plan.message.subject[: -len(plan.token)]
            wanted.setdefault((spot,), []).append(plan.token)
    return wanted


_TOKEN: Final = r"([0-9A-Za-z_-]+)"
_PARENT: Final = r"([!-~]+)\."
_FORM: Final = re.compile(
    r"NATS/1\.0\r\n"
    rf"(?:{headers.SCHEDULE}: (@at [0-9TZ:.+-]+)\r\n{headers.SCHEDULE_TARGET}: {_PARENT}{_TOKEN}\r\n"
    rf"(?:{headers.DELAY}: [0-9a-z.]+\r\n)?)?"
    rf"(?:{headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: ([0-9]{{1,18}})\r\n"
    rf"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: {_PARENT}{_TOKEN}\r\n)?"
    rf"(?:{headers.MSG_ID}: ([!-~]+)\r\n)?\r\n"
)
# A longer block may hold a subject that is too long, which only the checks of a single message tell.
_LONGEST: Final = 1_024


class UsualForm(NamedTuple):
    """What a block asks for; an empty text: it does not. Subjects are given as all tokens but the last, and the last.

    ``schedule`` is a time, ``expected`` the last sequence (digits) of what the filter ``where`` matches.
    """

    schedule: str
    target_parent: str
    target_token: str
    expected: str
    where_parent: str
    where_token: str
    msg_id: str


def usual_form(block: bytes) -> UsualForm | None:
    """Return what a header block of a usual form asks for; None for any other."""
    if len(block) > _LONGEST or not block.isascii():
        return None
    found = _FORM.fullmatch(block.decode("ascii"))
    return None if found is None else UsualForm._make(found.groups(""))
