"""Collects what callers submit for the shared transaction.

Publishes of one round of the event loop join one piece of work, acks and settlements another, until the transaction
that runs them begins. Work of a single caller runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pelton.api import AckOp, Delivered, Outgoing
from pelton.engine.faults import public_error
from pelton.engine.session import Session
from pelton.engine.transactions.settlements import ConsumerKey, SettleWork, Settling
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.transactions.works import CallWork, Future, Publishing, PublishWork
from pelton.runtime import running_loop
from pelton.storage import Committer, Fault


class Submissions:
    """The work of one engine's callers. ``check`` raises an error if the store cannot be used."""

    def __init__(
        self, session: Session, committer: Committer, transactions: Transactions, check: Callable[[], None]
    ) -> None:
        self._session = session
        self._committer = committer
        self._check = check
        self._transactions = transactions
        self._check_outside = transactions.check_outside
        self._loop = asyncio.get_running_loop()
        self._publishing: PublishWork | None = None
        self._settling: SettleWork | None = None

    def part(self) -> None:
        """Let later submissions start new work: the submitted work runs now, or failed before it ran."""
        self._publishing = self._settling = None

    def publish_one(self, message: Outgoing, future: Future) -> None:
        """Submit a message."""
        work = self._publishing
        if work is not None and running_loop() is self._loop and not self._transactions.entered:
            # Whatever else would refuse it refuses all of this work.
            work.add_one(message, future)
            return
        self._check()
        self._check_outside()
        if work is None:
            work = PublishWork(self._session, self._session.now)
            work.add_one(message, future)
            self._begin(work)
        else:
            work.add_one(message, future)

    def publish(self, entry: Publishing) -> None:
        """Submit messages."""
        self._check()
        self._check_outside()
        work = self._publishing
        if work is None:
            work = PublishWork(self._session, self._session.now)
            work.add(entry)
            self._begin(work)
        else:
            work.add(entry)

    def _begin(self, work: PublishWork) -> None:
        if not self._committer.run_now(work):
            self._publishing = work

    def settle(self, consumer: ConsumerKey, entry: Settling, *, at_once: bool = True) -> None:
        """Submit acks of deliveries of a consumer."""
        work = self._settling
        if work is not None and running_loop() is self._loop and not self._transactions.entered:
            work.add(consumer, entry)
            return
        self._check()
        self._check_outside()
        if work is None:
            work = SettleWork(self._session, self._session.now)
            work.add(consumer, entry)
            if not at_once:
                self._committer.stage(work)
            if not (at_once and self._committer.run_now(work)):
                self._settling = work
        else:
            work.add(consumer, entry)

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]:
        """Submit a function; return the future of its result."""
        self._check_outside()
        future: asyncio.Future[Any] = self._loop.create_future()
        work = CallWork(future, call, durable=durable)
        try:
            if at_once:
                self._committer.run_now(work)
            else:
                self._committer.stage(work)
        except Fault as fault:
            raise public_error(fault) from None
        return future

    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None:
        """Nak what was delivered to a pull that was cancelled at the same moment."""
        acks = [AckOp(kind="nak", seq=one.seq, consumer_seq=one.consumer_seq, token=one.token) for one in delivered]
        if acks:
            future = self._loop.create_future()
            # Ignore errors: a message that cannot be given back is redelivered after its ack wait.
            future.add_done_callback(lambda done: done.exception())
            self.settle((stream, consumer), Settling(acks, future))
