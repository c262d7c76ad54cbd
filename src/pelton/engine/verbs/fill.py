"""Filling a stream with the messages that it had in another store."""

from __future__ import annotations

from pelton.api import StreamFill, StreamFillReply
from pelton.engine.session import Session


def fill(session: Session, request: StreamFill) -> StreamFillReply:
    """Store messages under their own sequences; then let schedules run."""
    log, now = session.registry.stream(request.stream), session.now()
    for message in request.messages:
        if message.seq > log.state.last:
            log.copier.append_moved(message, now)
    if request.last_seq:
        log.copier.skip_to(request.last_seq + 1)
    for seq in request.schedules:
        log.copier.begin_schedule(seq, now)
    return StreamFillReply(last_seq=log.state.last)
