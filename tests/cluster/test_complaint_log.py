"""What is logged of a connection that does not come back."""

from __future__ import annotations

import logging

import pytest

from pelton.cluster.connection import ComplaintLog
from pelton.testing import ManualClock


def test_the_same_error_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pelton.cluster")
    clock = ManualClock()
    log = ComplaintLog("nats://a", clock)

    def logged(*errors: str) -> int:
        caplog.clear()
        for error in errors:
            log.add(OSError(error))
        return len(caplog.records)

    assert logged("refused", "reset", "refused", "reset", "refused") == 2
    clock.advance(59)
    assert logged("refused") == 0
    clock.advance(2)
    assert logged("refused", "refused") == 1
    log.forget()
    assert logged("refused", "refused") == 1
