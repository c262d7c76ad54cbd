"""What a consumer delivers, and what acks do: pull delivery, redelivery, exclusive subjects."""

from pelton.consumers.deliver import Delivery
from pelton.consumers.info import consumer_info
from pelton.consumers.interest import Interest, first_wanted
from pelton.consumers.log import NEVER, ConsumerLog, drop_rows
from pelton.consumers.rules import check_consumer, check_consumer_update
from pelton.consumers.settle import Settlement
from pelton.consumers.start import start_cursor

__all__ = [
    "NEVER",
    "ConsumerLog",
    "Delivery",
    "Interest",
    "Settlement",
    "check_consumer",
    "check_consumer_update",
    "consumer_info",
    "drop_rows",
    "first_wanted",
    "start_cursor",
]
