"""The two mappings of a stream: the subject a message is stored under, and the one it is republished under.

``subject_transform`` (ADR-30) renames incoming messages before anything else sees them: conditions, limits and counts
use the new subject. ``republish`` (ADR-28) publishes stored messages under another subject, with headers that name
their stream and sequence. Republished messages are effects of the stream, dispatched before its transaction ends; those
without a recipient are not created at all.

``Nats-Last-Sequence`` is the sequence of the previous message of the same subject, so that a subscriber notices a gap.
The last sequences of republished subjects are cached while they are exact: a removal drops those that it affects, and
limits that the next flush would apply are applied at once if they could affect one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from pelton.api import ApiError, Outgoing, StreamConfig, api_error, headers, rfc3339
from pelton.streams.reader import Reader
from pelton.streams.state import StreamState
from pelton.subjects import Draw, Transform, TransformError, is_filter, overlaps

_KNOWN_LIMIT: Final = 50_000
# A message's own headers come before ours: its block without the end, ours without the first line.
_END: Final = -len("\r\n")
_START: Final = len("NATS/1.0\r\n")


class _Opening(msgspec.Struct, frozen=True):
    """The subject under which messages of one subject are republished, and the start of their headers."""

    subject: str
    block: str


def check_mappings(config: StreamConfig) -> None:
    """Raise ApiError (10052, 10155, 10156) if a mapping of a resolved configuration is invalid."""
    transform = config.subject_transform
    if transform is not None and transform.src and not is_filter(transform.src):
        raise api_error("JSStreamTransformInvalidSource", stream=config.name, err=f"invalid subject {transform.src}")
    try:
        _renaming(config, _never)
    except TransformError as error:
        raise api_error("JSStreamTransformInvalidDestination", stream=config.name, err=error) from None
    _check_republish(config)


def _check_republish(config: StreamConfig) -> None:
    republish = config.republish
    if republish is None:
        return
    if republish.dest and any(overlaps(republish.dest, subject) for subject in config.subjects):
        raise _invalid("destination forms a cycle", config)
    try:
        _republish(config, _never)
    except TransformError:
        text = f"with transform from '{republish.src}' to '{republish.dest}' not valid"
        raise _invalid(text, config) from None


def _invalid(text: str, config: StreamConfig) -> ApiError:
    text = f"stream configuration for republish {text}"
    return api_error("JSStreamInvalidConfigF", stream=config.name, err=text)


def _never(below: int) -> int:
    raise AssertionError("a mapping that is only checked draws nothing")


# As on a NATS server, an empty destination means none.


def _renaming(config: StreamConfig, draw: Draw) -> Transform | None:
    transform = config.subject_transform
    return Transform(transform.src, transform.dest, draw) if transform is not None and transform.dest else None


def _republish(config: StreamConfig, draw: Draw) -> Transform | None:
    republish = config.republish
    return Transform(republish.src, republish.dest, draw) if republish is not None and republish.dest else None


class Mappings:
    """The mappings of one stream; ``flush`` applies its limits to what was appended."""

    def __init__(self, state: StreamState, reader: Reader, flush: Callable[[], None]) -> None:
        config, draw = state.config, state.env.draw
        self._state = state
        self._reader = reader
        self._flush = flush
        self._renaming = _renaming(config, draw)
        self._republish = _republish(config, draw)
        self._headers_only = config.republish is not None and config.republish.headers_only

    @property
    def is_empty(self) -> bool:
        """Whether nothing is mapped."""
        return self._renaming is None and self._republish is None

    @property
    def republishes(self) -> bool:
        return self._republish is not None

    def renamed(self, subject: str) -> str:
        """Return the subject that a published message is stored under."""
        return subject if self._renaming is None else self._renaming.apply(subject) or subject

    def prepared(self, messages: Iterable[Outgoing], now: int) -> list[Outgoing]:
        """Rename the messages that are stored next, in this order, and republish them."""
        if self._renaming is None:
            mapped = list(messages)
        else:
            rename = self._renaming.apply
            mapped = [Outgoing(rename(m.subject) or m.subject, m.data, m.headers) for m in messages]
        if self._republish is not None:
            self.republish(mapped, now)
        return mapped

    def republish(self, messages: Sequence[Outgoing], now: int) -> None:
        """Republish the messages that are stored next, in this order."""
        state, transform = self._state, self._republish
        if transform is None:
            return
        lasts = state.lasts
        if not state.env.may_have_recipient(transform.reach):
            lasts.clear()
            return
        if len(lasts) > _KNOWN_LIMIT:
            lasts.clear()
        republished, only = state.effects.republished, self._headers_only
        openings: dict[str, _Opening | None] = {}
        stamp = f"\r\n{headers.TIME_STAMP}: {rfc3339(now)}\r\n{headers.LAST_SEQUENCE}: "
        for seq, message in enumerate(messages, state.last + 1):
            subject = message.subject
            try:
                opening = openings[subject]
            except KeyError:
                opening = openings[subject] = self._opening(transform, subject)
            if opening is None:
                lasts.pop(subject, None)
                continue
            last = self._last_of(subject)
            lasts[subject] = seq
            size = f"\r\n{headers.MSG_SIZE}: {len(message.data)}" if only else ""
            block = f"{opening.block}{seq}{stamp}{last}{size}\r\n\r\n".encode()
            if message.headers is not None:
                block = message.headers[:_END] + block[_START:]
            republished.append(Outgoing(opening.subject, b"" if only else message.data, block))

    def _opening(self, transform: Transform, subject: str) -> _Opening | None:
        """Return the opening for a subject's republished messages; None if they would have no recipient."""
        dest = transform.apply(subject)
        if dest is None or not self._state.env.has_recipient(dest):
            return None
        stream = f"NATS/1.0\r\n{headers.STREAM}: {self._state.name}"
        return _Opening(dest, f"{stream}\r\n{headers.SUBJECT}: {subject}\r\n{headers.SEQUENCE}: ")

    def _last_of(self, subject: str) -> int:
        """Return the sequence of the subject's last message, 0 if there is none."""
        state = self._state
        seq = state.lasts.get(subject)
        if seq is None:
            seq = self._last_seq_of(subject)
        if state.is_trimmed and seq and state.awaits_trim(seq):
            self._flush()
            seq = self._last_seq_of(subject)
        return seq

    def _last_seq_of(self, subject: str) -> int:
        if self._state.is_trimmed:
            # Limits may have removed the subject's last message.
            self._flush()
        return self._reader.last_seq_of(subject)
