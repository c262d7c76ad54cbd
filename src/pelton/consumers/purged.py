"""The effect of a purge on the consumers of a stream: they pass the purged messages at once."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.consumers.log import ConsumerLog
from pelton.streams import StreamLog
from pelton.subjects import is_subset


def follow_purge(consumer: ConsumerLog, purged: str) -> None:
    """Move a consumer to the first message that a purge of filter ``purged`` (empty: of all) may have left."""
    first = _first_left(consumer, purged)
    if first is not None:
        consumer.pass_to(first - 1)


def follow_roll_ups(log: StreamLog, consumers: Iterable[ConsumerLog]) -> None:
    """Let consumers pass what was rolled up in their stream, as after a purge."""
    for consumer in consumers:
        for subject in log.state.effects.rolled_up:
            follow_purge(consumer, subject)
    log.state.effects.rolled_up.clear()


def _first_left(consumer: ConsumerLog, purged: str) -> int | None:
    """Return where the consumer continues; None if the purge does not affect it."""
    log, mine = consumer.log, consumer.filters
    if purged in ("", ">"):
        return log.state.first
    if mine and all(is_subset(text, purged) for text in mine):
        left = log.reader.next_row_of(log.state.first, purged)
        return log.state.last + 1 if left is None else left.seq
    wide = not mine or any(is_subset(purged, text) for text in mine)
    return log.state.first if wide else None
