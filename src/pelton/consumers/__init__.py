"""Consumers: delivery, redelivery, acks, exclusive subjects, priority groups."""

from pelton.consumers.deliver import Delivery
from pelton.consumers.interest import Interest, begin, first_wanted, follow_purge, follow_roll_ups, start_cursor
from pelton.consumers.log import NEVER, ConsumerLog, consumer_info, drop_rows, is_pending
from pelton.consumers.rules import check_consumer, check_consumer_update, check_pull, too_many_waiting
from pelton.consumers.settle import Settlement
from pelton.consumers.turns import (
    GroupDecision,
    Puller,
    Turn,
    is_conditional,
    next_refresh,
    say_unpinned,
    unpin,
    waiting_pulls,
)

__all__ = [
    "NEVER",
    "ConsumerLog",
    "Delivery",
    "GroupDecision",
    "Interest",
    "Puller",
    "Settlement",
    "Turn",
    "begin",
    "check_consumer",
    "check_consumer_update",
    "check_pull",
    "consumer_info",
    "drop_rows",
    "first_wanted",
    "follow_purge",
    "follow_roll_ups",
    "is_conditional",
    "is_pending",
    "next_refresh",
    "say_unpinned",
    "start_cursor",
    "too_many_waiting",
    "unpin",
    "waiting_pulls",
]
