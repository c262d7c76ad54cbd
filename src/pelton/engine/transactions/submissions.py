"""Collects what callers submit for the shared transaction.

Publishes of one round of the event loop join one piece of work, acks and settlements another, until the transaction
that runs them begins. Work of a single caller runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pelton.api import AckOp, Delivered
from pelton.engine.faults import public_error
from pelton.engine.session import Session
from pelton.engine.transactions.settlements import SettleWork, Settling
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.transactions.works import CallWork, Publishing, PublishWork
from pelton.storage import Committer, Fault


class Submissions:
    """The work of one engine's callers. ``check`` raises an error if the store cannot be used."""

    def __init__(
        self, session: Session, committer: Committer, transactions: Transactions, check: Callable[[], None]
    ) -> None:
        self._session = session
        self._committer = committer
        self._check = check
        self._check_outside = transactions.check_outside
        self._loop = asyncio.get_running_loop()
        self._publishing: PublishWork | None = None
        self._settling: SettleWork | None = None

    def part(self) -> None:
        """Let later submissions start new work: the submitted work runs now, or failed before it ran."""
        self._publishing = self._settling = None

    def publish(self, entry: Publishing) -> None:
        """Submit messages."""
        self._check()
        self._check_outside()
        if self._publishing is None:
            work = PublishWork(self._session, self._session.now)
            work.entries.append(entry)
            if not self._committer.run_now(work):
                self._publishing = work
        else:
            self._publishing.entries.append(entry)

    def settle(self, entry: Settling, *, at_once: bool = True) -> None:
        """Submit acks."""
        self._check()
        self._check_outside()
        if self._settling is None:
            work = SettleWork(self._session, self._session.now)
            work.entries.append(entry)
            if not at_once:
                self._committer.stage(work)
            if not (at_once and self._committer.run_now(work)):
                self._settling = work
        else:
            self._settling.entries.append(entry)

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
            self.settle(Settling(stream, consumer, acks, None, future))
