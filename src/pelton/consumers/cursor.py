"""Where a new consumer begins: the sequence it has passed already, and the earlier messages it still delivers.

A purge lets the consumers of a stream pass the purged messages at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from pelton.api import ConsumerConfig, parse_rfc3339
from pelton.consumers.log import ConsumerLog
from pelton.streams import StreamLog
from pelton.subjects import is_subset


def start_cursor(config: ConsumerConfig, log: StreamLog, filters: tuple[str, ...]) -> int:
    """Return the last sequence that the consumer does not deliver (0: it delivers all)."""
    log.appender.flush()
    policy = config.deliver_policy
    if policy == "new" or _is_of_lasts(config, log):
        return log.state.last
    if policy == "last":
        last = max((log.reader.last_seq_of(text) for text in filters), default=log.state.last)
        return max(last, log.state.first) - 1
    if policy == "by_start_sequence":
        return max(config.opt_start_seq, log.state.first) - 1
    if policy == "by_start_time":
        return log.reader.first_at(parse_rfc3339(config.opt_start_time)) - 1
    return log.state.first - 1


def begin(consumer: ConsumerLog) -> None:
    """Complete the state of a new consumer: what it replays, and the last message of each subject."""
    config, log = consumer.config, consumer.log
    consumer.dirty = True
    if config.replay_policy == "original":
        consumer.replay_upto = log.state.last
    if _is_of_lasts(config, log):
        _offer_lasts(consumer)


def _is_of_lasts(config: ConsumerConfig, log: StreamLog) -> bool:
    # If no subject has more than one message, each is its last, and no search is needed.
    return config.deliver_policy == "last_per_subject" and log.config.max_msgs_per_subject != 1


def _offer_lasts(consumer: ConsumerLog) -> None:
    """Make the last message of every subject ready, as if each had waited behind others of its subject."""
    log = consumer.log
    rows = log.reader.last_rows(consumer.condition)
    lasts = [
        (consumer.id, row.seq, consumer.claim_of(row.subject), consumer.rank_of(row.subject), turn)
        for turn, row in enumerate(rows, 1)
    ]
    consumer.db.executemany("INSERT INTO ready VALUES(?, ?, ?, ?, ?)", lasts)
    consumer.claims.turns = len(lasts)
    if consumer.per_subject:
        claims = [(consumer.id, subject, seq, rank) for _, seq, subject, rank, _ in lasts]
        consumer.db.executemany("INSERT INTO claims VALUES(?, ?, ?, 1, ?)", claims)
    consumer.waiting = len(lasts)
    consumer.delivered = min((row.seq for row in rows), default=max(log.state.last, log.state.first)) - 1


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
