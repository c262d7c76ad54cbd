"""Removing messages before anybody works on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pelton.api import ApiError, MsgWithdraw, MsgWithdrawReply
from pelton.consumers import ConsumerLog
from pelton.engine.faults import UndoneError
from pelton.engine.session import Session
from pelton.engine.transactions.works import append_all
from pelton.engine.verbs.streams import fresh
from pelton.storage import integer, text
from pelton.streams import StreamLog


def withdraw(session: Session, request: MsgWithdraw) -> MsgWithdrawReply:
    """Remove messages for which no consumer waits, and store others, in one transaction."""
    log, now, wanted = fresh(session, request.stream), session.now(), request.messages.keys()
    held: set[int] = set()
    given_back: list[tuple[ConsumerLog, int, str | None]] = []
    for consumer, seq, subject, is_held in _deliveries(session, log, wanted, now):
        if is_held:
            held.add(seq)
        else:
            given_back.append((consumer, seq, subject))
    free = sorted(row.seq for row in log.reader.get_many([seq for seq in wanted if seq not in held]))
    try:
        acks = append_all(session, [message for seq in free for message in request.messages[seq]], now)
    except ApiError as refused:
        raise UndoneError(refused) from refused
    log.remover.remove(free)
    removed = set(free)
    for consumer, seq, subject in given_back:
        if seq in removed:
            # Nobody redelivers it, and a late ack of an earlier delivery is refused.
            consumer.forget_missing(seq, subject)
    return MsgWithdrawReply(withdrawn=tuple(free), held=tuple(sorted(held)), stored=tuple([ack.seq for ack in acks]))


def _deliveries(
    session: Session, log: StreamLog, wanted: Collection[int], now: int
) -> Iterator[tuple[ConsumerLog, int, str | None, bool]]:
    """Iterate over the deliveries of these messages that are not settled, each with whether its ack is waited for."""
    sequences = f"[{','.join(map(str, wanted))}]"
    sql = "SELECT seq, due, waits, subject FROM pending WHERE consumer=? AND seq IN (SELECT value FROM json_each(?))"
    for listed in session.registry.consumers_of(log):
        consumer = session.registry.use_consumer(listed)
        for seq, due, waits, subject in consumer.db.execute(sql, (consumer.id, sequences)).fetchall():
            yield consumer, integer(seq), None if subject is None else text(subject), not waits and integer(due) > now
