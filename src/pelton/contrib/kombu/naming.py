"""What kombu's queues and exchanges are called in the store. Pure."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from pelton.contrib.tokens import token

_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
EXCHANGES: Final = "kombu_exchanges"
"""The bucket of the exchanges' bindings."""
# Pelton has four priorities, AMQP ten; both begin with the higher ones.
_RANKS: Final = (0, 0, 0, 1, 1, 2, 2, 2, 3, 3)
_JOB: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def queue_name(queue: str) -> str:
    """Return the name of the Pelton queue behind kombu's: the same, if it may be called so."""
    if _QUEUE.fullmatch(queue):
        return queue
    return f"{_UNFIT.sub('_', queue)[:55]}-{crc32(queue.encode()):08x}"


def exchange_subject(exchange: str) -> str:
    """Return the subject of what is published to an exchange, for queues that live with their consumer."""
    return f"kombu.exchange.{token(exchange)}"


def queue_subject(queue: str) -> str:
    """Return the subject of what is sent to a queue that lives with its consumer."""
    return f"kombu.queue.{token(queue)}"


def rank(priority: object) -> int:
    """Return Pelton's priority for kombu's, from 0 to 9; whatever else it is counts as 0."""
    return _RANKS[min(max(priority, 0), 9)] if isinstance(priority, int) else 0


def job_name(headers: object) -> str:
    """Return what a message's job is called: Celery's name of the task, if it has one."""
    task = headers.get("task") if isinstance(headers, dict) else None
    return task if isinstance(task, str) and _JOB.fullmatch(task) else "message"
