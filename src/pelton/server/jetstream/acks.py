"""Acks of clients: those of one round of the event loop in one group for each consumer (ADR-15).

A server answers every ack when it is durable, also one that comes too late, as NATS does: what it has settled then is
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pelton.api import AckOp, ApiError, PeltonError
from pelton.api.acks import ack_target, ack_verdict
from pelton.api.pulling import NextRequest
from pelton.server.jetstream.link import StoreLink
from pelton.server.ports import Published
from pelton.wire import status_block

_Key = tuple[str, str]


class ClientAcks:
    """The acks of one account's clients.

    ``long_prefix`` is how the longer form of their subjects begins, and ``pull`` makes the pull that an ack with
    ``+NXT`` asks for.
    """

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        pull: Callable[[str, str, NextRequest, str], None],
        long_prefix: str,
    ) -> None:
        self._link = link
        self._serving = link.serving
        self._answer = answer
        self._pull = pull
        self._long_prefix = long_prefix
        self._waiting: dict[_Key, list[tuple[AckOp, str]]] = {}

    def take(self, message: Published) -> bool:
        """Take an ack; False if no consumer does."""
        target = ack_target(message.subject, self._long_prefix)
        if target is None:
            return False
        config = self._serving.consumer(target.stream, target.consumer)
        if config is None or config.ack_policy in ("none", "flow_control"):
            return False
        reply = message.reply
        try:
            verdict = ack_verdict(message.data)
        except ApiError as error:
            self._answer(reply, status_block(error.code, error.description), b"")
            return True
        ack = verdict.of(target)
        if ack is None:
            self._answer(reply, None, b"")
            return True
        following = verdict.following
        self._add((target.stream, target.consumer), ack, "" if following is not None else reply)
        if following is not None and reply:
            self._flush()
            self._pull(target.stream, target.consumer, following, reply)
        return True

    def _add(self, key: _Key, ack: AckOp, reply: str) -> None:
        if not self._waiting:
            self._serving.soon(self._flush)
        self._waiting.setdefault(key, []).append((ack, reply))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (stream, consumer), acks in waiting.items():
            replies = [reply for _, reply in acks if reply]
            try:
                done = self._serving.ack(stream, consumer, [ack for ack, _ in acks])
            except PeltonError:
                # The store is closed, or has failed: what is not answered is redelivered.
                continue
            self._link.answers_after(done)
            done.add_done_callback(lambda done, replies=replies: self._settled(done, replies))  # type: ignore[misc]  # a default argument

    def _settled(self, done: asyncio.Future[list[PeltonError | None]], replies: list[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for reply in replies:
            self._answer(reply, None, b"")
