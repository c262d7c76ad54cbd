"""Which changes of a configuration are allowed: only the decision."""

from typing import Any

import pytest

from pelton import api
from pelton.streams import changed_stream, check_consumers


def config(**fields: Any) -> api.StreamConfig:
    return api.resolved_stream(api.stream_config("s", **fields))


@pytest.mark.parametrize("field", ["sealed", "deny_delete", "deny_purge"])
def test_what_is_switched_on_stays_on(field: str) -> None:
    assert getattr(changed_stream(config(), config(**{field: True})), field)
    with pytest.raises(api.ApiError, match="can not") as caught:
        changed_stream(config(**{field: True}), config())
    assert caught.value.err_code == 10052


def test_sealing_is_judged_before_it_denies() -> None:
    old = changed_stream(config(deny_delete=True), config(deny_delete=True, sealed=True))
    assert (old.discard, old.deny_purge) == ("new", True)
    with pytest.raises(api.ApiError, match="can not cancel deny purge"):
        changed_stream(old, config(sealed=True, deny_delete=True))


def test_only_limits_of_consumers_that_changed_are_checked() -> None:
    consumer = api.resolved_consumer(api.consumer_config(durable_name="c", max_ack_pending=9, inactive_threshold=9))
    narrow = config(consumer_limits={"max_ack_pending": 5})
    check_consumers(narrow, narrow, [consumer])
    check_consumers(config(), config(consumer_limits={"max_ack_pending": 9}), [consumer])
    for limits in ({"max_ack_pending": 8}, {"inactive_threshold": 8}):
        with pytest.raises(api.ApiError, match="violates consumers: c"):
            check_consumers(config(), config(consumer_limits=limits), [consumer])
