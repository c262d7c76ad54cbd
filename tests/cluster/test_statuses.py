"""How the last word of a pull without messages is judged."""

from __future__ import annotations

from typing import Any

import pytest

from pelton.api import (
    ApiError,
    BadRequestError,
    ConsumerNotFoundError,
    PinLostError,
    PullRefusedError,
    PullRequest,
)
from pelton.cluster.client import Status
from pelton.cluster.pull import Pull
from pelton.testing import ManualClock


class _Connection:
    def __init__(self) -> None:
        self.clock = ManualClock()


def _is_over(status: int, text: str, **request: Any) -> bool:
    connection: Any = _Connection()
    pull = Pull(connection, "$JS.API.CONSUMER.MSG.NEXT.S.c", PullRequest(**request), ("S", "c"))
    return pull._is_over(Status(status, text))


@pytest.mark.parametrize(("status", "text"), [(404, "No Messages"), (408, "Request Timeout")])
def test_nothing_there_ends_a_pull_that_does_not_wait(status: int, text: str) -> None:
    assert _is_over(status, text, no_wait=True)
    assert _is_over(status, text, expires_ns=0)
    assert not _is_over(status, text, expires_ns=10**9)
    assert not _is_over(status, text)


def test_one_that_waits_goes_on_where_others_wait_too() -> None:
    assert not _is_over(408, "Requests Pending", expires_ns=10**9)


@pytest.mark.parametrize("text", ["Leadership Change", "Server Shutdown"])
def test_what_passes_is_asked_again(text: str) -> None:
    assert not _is_over(409, text)
    assert not _is_over(409, text, no_wait=True)


def test_a_message_too_large_ends_it() -> None:
    assert _is_over(409, "Message Size Exceeds MaxBytes")


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (409, "Consumer Deleted", ConsumerNotFoundError),
        (503, "", ConsumerNotFoundError),
        (409, "Exceeded MaxWaiting", PullRefusedError),
        (409, "Exceeded MaxRequestBatch of 2", PullRefusedError),
        (409, "Consumer is push based", BadRequestError),
        (400, "Bad Request - Invalid Priority Group", BadRequestError),
        (423, "Nats-Pin-Id mismatch", PinLostError),
    ],
)
def test_the_rest_is_told(status: int, text: str, kind: type[ApiError]) -> None:
    with pytest.raises(kind) as told:
        _is_over(status, text)
    assert (told.value.stream, told.value.consumer) == ("S", "c")
