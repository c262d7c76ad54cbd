"""The two mappings of a stream: the name a message is stored under, and the one it is said again under.

``subject_transform`` (ADR-30) renames what comes in, before anything else looks at it: conditions, limits and counts
are about the new name. ``republish`` (ADR-28) says what was stored under another subject, with headers that tell where
it lies. Such messages wait in the stream's outbox and are handed on when the transaction commits; what nobody would
get is not made at all.

``Nats-Last-Sequence`` is the message of the same subject that was there before, so that whoever listens notices a gap.
The last sequences of subjects that are said stay in the stream's memory while they are exact: a removal drops those it
hits, and limits that the next flush would apply are applied at once where they could hit one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pelton.api import ApiError, Outgoing, StreamConfig, api_error, headers, rfc3339
from pelton.subjects import Draw, Transform, TransformError, is_filter, overlaps

if TYPE_CHECKING:
    from pelton.streams.log import StreamLog

_KNOWN_LIMIT: Final = 50_000
# A message's own headers stand before ours: its block without the end, ours without its first line.
_END: Final = -len("\r\n")
_START: Final = len("NATS/1.0\r\n")


def check_mappings(config: StreamConfig) -> None:
    """Raise ApiError (10052, 10155, 10156) where a mapping of a resolved configuration cannot be."""
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
        _saying(config, _never)
    except TransformError:
        text = f"with transform from '{republish.src}' to '{republish.dest}' not valid"
        raise _invalid(text, config) from None


def _invalid(text: str, config: StreamConfig) -> ApiError:
    text = f"stream configuration for republish {text}"
    return api_error("JSStreamInvalidConfigF", stream=config.name, err=text)


def _never(below: int) -> int:
    raise AssertionError("a mapping that is only checked draws nothing")


# A NATS server takes an empty destination for none.


def _renaming(config: StreamConfig, draw: Draw) -> Transform | None:
    transform = config.subject_transform
    return Transform(transform.src, transform.dest, draw) if transform is not None and transform.dest else None


def _saying(config: StreamConfig, draw: Draw) -> Transform | None:
    republish = config.republish
    return Transform(republish.src, republish.dest, draw) if republish is not None and republish.dest else None


def mappings_of(log: StreamLog, config: StreamConfig) -> Mappings | None:
    """The compiled mappings of a stream, None when it has none."""

    def draw(below: int) -> int:
        # Asked for each time: a log is configured before it is given what it draws from.
        return log.draw(below)

    log.lasts.clear()
    renaming, saying = _renaming(config, draw), _saying(config, draw)
    return None if renaming is None and saying is None else Mappings(log, config, renaming, saying)


class Mappings:
    """What becomes of the subjects of one stream."""

    def __init__(self, log: StreamLog, config: StreamConfig, renaming: Transform | None, saying: Transform | None):
        self._log = log
        self._renaming = renaming
        self._saying = saying
        self._headers_only = config.republish is not None and config.republish.headers_only

    @property
    def is_said(self) -> bool:
        """Whether anything is republished."""
        return self._saying is not None

    def renamed(self, subject: str) -> str:
        """The name that a published message is stored under."""
        return subject if self._renaming is None else self._renaming.apply(subject) or subject

    def prepared(self, messages: Iterable[Outgoing], now: int) -> list[Outgoing]:
        """Rename messages that are stored next, one after another, and say them again."""
        if self._renaming is None:
            mapped = list(messages)
        else:
            rename = self._renaming.apply
            mapped = [(rename(subject) or subject, data, hdr) for subject, data, hdr in messages]
        if self._saying is not None:
            self.say(mapped, now)
        return mapped

    def say(self, messages: Sequence[Outgoing], now: int) -> None:
        """Say messages again that are stored next, one after another."""
        log, saying = self._log, self._saying
        if saying is None:
            return
        if not log.is_any_heard(saying.reach):
            log.lasts.clear()
            return
        if len(log.lasts) > _KNOWN_LIMIT:
            log.lasts.clear()
        lasts, outbox, only = log.lasts, log.outbox, self._headers_only
        openings: dict[str, tuple[str, str] | None] = {}
        stamp = f"\r\n{headers.TIME_STAMP}: {rfc3339(now)}\r\n{headers.LAST_SEQUENCE}: "
        for seq, (subject, data, hdr) in enumerate(messages, log.last + 1):
            try:
                opening = openings[subject]
            except KeyError:
                opening = openings[subject] = self._opening(saying, subject)
            if opening is None:
                lasts.pop(subject, None)
                continue
            last = self._last_of(subject)
            lasts[subject] = seq
            size = f"\r\n{headers.MSG_SIZE}: {len(data)}" if only else ""
            block = f"{opening[1]}{seq}{stamp}{last}{size}\r\n\r\n".encode()
            if hdr is not None:
                block = hdr[:_END] + block[_START:]
            outbox.append((opening[0], b"" if only else data, block))

    def _opening(self, saying: Transform, subject: str) -> tuple[str, str] | None:
        """The subject under which one is said, and how its headers begin; None where nobody gets it."""
        dest = saying.apply(subject)
        if dest is None or not self._log.is_heard(dest):
            return None
        stream = f"NATS/1.0\r\n{headers.STREAM}: {self._log.name}"
        return dest, f"{stream}\r\n{headers.SUBJECT}: {subject}\r\n{headers.SEQUENCE}: "

    def _last_of(self, subject: str) -> int:
        """The sequence of the subject's last message that is there, 0 for none."""
        log = self._log
        seq = log.lasts.get(subject)
        if seq is None:
            seq = log.last_seq_of(subject)
        if log.is_trimmed and seq and log.awaits_trim(seq):
            log.flush()
            seq = log.last_seq_of(subject)
        return seq
