"""Where a new consumer begins: the sequence it has passed already."""

from __future__ import annotations

from pelton.api import ConsumerConfig, parse_rfc3339
from pelton.streams import StreamLog


def start_cursor(config: ConsumerConfig, log: StreamLog, filters: tuple[str, ...]) -> int:
    """Return the last sequence that the consumer does not deliver (0: it delivers all)."""
    log.flush()
    policy = config.deliver_policy
    if policy == "new":
        return log.last
    if policy == "last":
        last = max((log.last_seq_of(text) for text in filters), default=log.last)
        return max(last - 1, 0)
    if policy == "by_start_sequence":
        return max(config.opt_start_seq, log.first) - 1
    if policy == "by_start_time":
        return _first_at(log, parse_rfc3339(config.opt_start_time)) - 1
    return log.first - 1


def _first_at(log: StreamLog, time: int) -> int:
    """Return the first sequence stored at or after ``time``, by bisection: times grow with sequences."""
    low, high = log.first, log.last + 1
    while low < high:
        middle = (low + high) // 2
        seq = log.table.next_seq(middle)
        if seq is None or seq >= high:
            high = middle
            continue
        stored = log.table.time_of(seq)
        if stored is not None and stored < time:
            low = seq + 1
        else:
            high = middle
    return low
