"""Which pull of a priority group is served (ADR-42). Pure: a decision from what is known of the other pulls.

============= ==================================================================================================
policy        a pull is served
============= ==================================================================================================
overflow      at once if it has no conditions; else while no pull without conditions waits, and
              ``min_pending`` messages are pending, or ``min_ack_pending`` await acks, or no nearer client (one
              without conditions, or with shorter ``failover``) has pulled for ``failover``: any of them is enough
prioritized   while no pull with a lower priority number waits; those with the same number share the messages
pinned_client if it carries the id of the pin; without an id, if the pin is free: it then gets the pin. A client
              with another id has lost the pin; so has its holder after ``priority_timeout`` without a pull
              (or a wait in one)
============= ==================================================================================================

nats-server 2.15 ignores ``failover``, and lets a pin expire while its holder waits in a pull. Pulls of NATS
clients (``stands``) are decided as it does: those without conditions do not come first, and a pin that was taken is
free at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pelton.api import ConsumerConfig, PullRequest

NEVER: Final = (1 << 63) - 1


class Waiting(NamedTuple):
    """A waiting pull, of any process."""

    id: str
    priority: int
    conditional: bool
    failover_ns: int


class Pin(NamedTuple):
    """The pin of a group: its id, and when its holder was last active.

    An empty id: no client was pinned since it was taken away; the next is pinned at ``free_at``.
    """

    id: str
    seen: int
    free_at: int


class Known(NamedTuple):
    """What a decision is based on; times are wall nanoseconds.

    ``pending`` counts messages never delivered, ``due`` those to be redelivered, ``ack_pending`` those that await an
    ack; ``nearest`` is when each failover distance (0: none) last pulled. ``stands``: a NATS client asks.
    """

    now: int
    created: int
    pending: int
    due: int
    ack_pending: int
    others: Sequence[Waiting]
    nearest: dict[int, int]
    pin: Pin | None
    stands: bool


class GroupDecision(NamedTuple):
    """Whether a pull is served, with how many messages, and if not, when to retry; ``lost`` if its pin was lost."""

    served: bool
    batch: int = 0
    again_at: int = NEVER
    lost: bool = False


def judge(config: ConsumerConfig, request: PullRequest, known: Known) -> GroupDecision:
    """Decide one pull of a group."""
    if config.priority_policy == "overflow":
        return _overflow(request, known)
    if config.priority_policy == "prioritized":
        return _prioritized(request, known)
    return _pinned(config, request, known)


def is_conditional(request: PullRequest) -> bool:
    """Whether a pull of policy ``overflow`` has to meet a condition."""
    return bool(request.min_pending or request.min_ack_pending or request.failover_ns)


def _overflow(request: PullRequest, known: Known) -> GroupDecision:
    if not is_conditional(request):
        return GroupDecision(True, request.batch)
    if not known.stands and any(not other.conditional for other in known.others):
        return GroupDecision(False)
    if 0 < request.min_ack_pending <= known.ack_pending:
        return GroupDecision(True, request.batch)
    if 0 < request.min_pending <= known.pending:
        # As on nats-server, each message needs as many.
        return GroupDecision(True, min(request.batch, known.pending - request.min_pending + 1))
    if not request.failover_ns:
        return GroupDecision(False)
    if any(other.failover_ns < request.failover_ns for other in known.others if other.failover_ns):
        return GroupDecision(False)
    nearer = [seen for distance, seen in known.nearest.items() if distance < request.failover_ns]
    again_at = max(nearer, default=known.created) + request.failover_ns
    return GroupDecision(again_at <= known.now, request.batch, again_at)


def _prioritized(request: PullRequest, known: Known) -> GroupDecision:
    if any(other.priority < request.priority for other in known.others):
        return GroupDecision(False)
    equals = 1 + sum(other.priority == request.priority for other in known.others)
    return GroupDecision(True, max(1, min(request.batch, -(-(known.pending + known.due) // equals))))


def _pinned(config: ConsumerConfig, request: PullRequest, known: Known) -> GroupDecision:
    pin = known.pin
    held = pin is not None and pin.id != "" and known.now < pin.seen + config.priority_timeout.ns
    if request.pin_id:
        mine = held and pin is not None and pin.id == request.pin_id
        return GroupDecision(mine, request.batch, lost=not mine)
    if held and pin is not None:
        return GroupDecision(False, again_at=pin.seen + config.priority_timeout.ns)
    if pin is not None and known.now < pin.free_at and not known.stands:
        return GroupDecision(False, again_at=pin.free_at)
    return GroupDecision(True, request.batch)
