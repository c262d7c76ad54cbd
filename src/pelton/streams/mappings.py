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

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pelton.api import ApiError, Outgoing, StreamConfig, api_error, headers, rfc3339
from pelton.subjects import Draw, Transform, TransformError, is_filter, overlaps

if TYPE_CHECKING:
    from pelton.streams.log import StreamLog

_KNOWN_LIMIT: Final = 50_000
_OPENING: Final = b"NATS/1.0\r\n"
_END: Final = b"\r\n"


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
        self._stamp = (-1, "")

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
            for seq, (subject, data, hdr) in enumerate(mapped, self._log.last + 1):
                self.say(subject, hdr, data, seq, now)
        return mapped

    def say(self, subject: str, hdr: bytes | None, data: bytes, seq: int, now: int) -> None:
        """Say a message again that is stored next, as ``seq``."""
        log = self._log
        dest = self._saying.apply(subject) if self._saying is not None else None
        if dest is None or not log.is_heard(dest):
            log.lasts.pop(subject, None)
            return
        last = self._last_of(subject)
        if len(log.lasts) >= _KNOWN_LIMIT:
            log.lasts.clear()
        log.lasts[subject] = seq
        size = len(data) if self._headers_only else None
        block = self._block(subject, seq, now, last, size)
        block = _OPENING + block if hdr is None else hdr[: -len(_END)] + block
        log.outbox.append((dest, b"" if self._headers_only else data, block))

    def _block(self, subject: str, seq: int, now: int, last: int, size: int | None) -> bytes:
        """The headers that a republished message gets, without the opening line."""
        if self._stamp[0] != now:
            self._stamp = (now, rfc3339(now))
        only = "" if size is None else f"{headers.MSG_SIZE}: {size}\r\n"
        return (
            f"{headers.STREAM}: {self._log.name}\r\n{headers.SUBJECT}: {subject}\r\n{headers.SEQUENCE}: {seq}\r\n"
            f"{headers.TIME_STAMP}: {self._stamp[1]}\r\n{headers.LAST_SEQUENCE}: {last}\r\n{only}\r\n"
        ).encode()

    def _last_of(self, subject: str) -> int:
        """The sequence of the subject's last message that is there, 0 for none."""
        log = self._log
        seq = log.lasts.get(subject)
        if seq is None:
            seq = log.last_seq_of(subject)
        if seq and log.awaits_trim(seq):
            log.flush()
            seq = log.last_seq_of(subject)
        return seq
