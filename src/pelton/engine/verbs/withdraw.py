"""Removing a message before anybody works on it."""

from __future__ import annotations

from pelton.api import MsgWithdraw, MsgWithdrawReply
from pelton.consumers import ConsumerLog
from pelton.engine.session import Session
from pelton.engine.transactions.works import append_all
from pelton.engine.verbs.streams import fresh


def withdraw(session: Session, request: MsgWithdraw) -> MsgWithdrawReply:
    """Remove a message for which no consumer waits, and store others, in one transaction."""
    log, now = fresh(session, request.stream), session.now()
    given_back: list[tuple[ConsumerLog, str | None]] = []
    for listed in session.registry.consumers_of(log):
        consumer = session.registry.use_consumer(listed)
        sql = "SELECT due, waits, subject FROM pending WHERE consumer=? AND seq=?"
        row = consumer.db.execute(sql, (consumer.id, request.seq)).fetchone()
        if row is None:
            continue
        due, waits, subject = row
        if not waits and due > now:
            return MsgWithdrawReply(state="held")
        given_back.append((consumer, subject))
    if request.seq > log.state.last or log.reader.get(request.seq) is None:
        return MsgWithdrawReply(state="missing")
    # First, because it can be refused: then nothing has changed.
    acks = append_all(session, request.publish, now)
    log.remover.remove([request.seq])
    for consumer, subject in given_back:
        # Nobody redelivers it, and a late ack of an earlier delivery is refused.
        consumer.forget_missing(request.seq, subject)
    return MsgWithdrawReply(state="withdrawn", stored=tuple([ack.seq for ack in acks]))
