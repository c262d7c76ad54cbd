"""The checks of a publish before it is stored: its headers, in NATS's order, and the stream's capacity."""

from pelton.streams.publish_checks.capacity import check_capacity
from pelton.streams.publish_checks.options import (
    PURGE,
    StorageOptions,
    expiry,
    lifted,
    schedule_of,
    seconds_of,
)
from pelton.streams.publish_checks.order import Checked, check_headers, expectations, is_bare, last_expected_of
from pelton.streams.publish_checks.rollup import rollup_of
from pelton.streams.publish_checks.target import AtomicBatch, Target
from pelton.streams.publish_checks.usual_forms import UsualForm, usual_form

__all__ = [
    "PURGE",
    "AtomicBatch",
    "Checked",
    "StorageOptions",
    "Target",
    "UsualForm",
    "check_capacity",
    "check_headers",
    "expectations",
    "expiry",
    "is_bare",
    "last_expected_of",
    "lifted",
    "rollup_of",
    "schedule_of",
    "seconds_of",
    "usual_form",
]
