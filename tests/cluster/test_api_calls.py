"""Which requests are retried when no reply comes, under which names, and how leftovers are removed."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pelton.api import (
    ApiError,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerNotFoundError,
    MsgDelete,
    Request,
    ServerTimeoutError,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamInfoRequest,
    StreamPurge,
)
from pelton.cluster.api_calls import ApiCall, may_be_repeated
from pelton.cluster.connection import Answer, Interrupted, NotSent, Silent
from pelton.cluster.settings import settings_of


class _Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Servers:
    """A connection whose other end is a list: the outcome of each request in turn; all requests are recorded."""

    def __init__(self, *fates: Exception | dict[str, Any]) -> None:
        self.settings = settings_of("nats://localhost")
        self.clock = _Clock()
        self._fates = list(fates)
        self.asked: list[str] = []
        self.told: list[str] = []

    async def ask(self, subject: str, data: bytes, block: bytes | None = None, *, again: bool = False) -> Answer:
        self.asked.append(subject)
        # The last one repeats.
        fate = self._fates.pop(0) if len(self._fates) > 1 else self._fates[0]
        if isinstance(fate, Exception):
            self.clock.now += 5
            raise fate
        return Answer(None, json.dumps(fate).encode())

    async def tell(self, subject: str, data: bytes, reply: str = "", block: bytes | None = None) -> None:
        self.told.append(subject)

    async def until_connected(self, end: float) -> None: ...

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def no_answer(self) -> Exception:
        return ServerTimeoutError("nats://localhost", "no answer for 30 s")


def _names() -> Callable[[], str]:
    return iter(f"name{number}" for number in range(1, 100)).__next__


async def _call(servers: _Servers, request: Request[Any]) -> Any:
    return await ApiCall(servers, "$JS.API", request, _names()).run()  # type: ignore[arg-type]  # what it needs of one


_NOTHING = {"consumer_seq": 0, "stream_seq": 0}
_COUNTS = {"num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0}
_WHAT = {"stream_name": "S", "name": "x", "created": "2026-01-01T00:00:00Z", "config": {"name": "x"}}
_MADE = {**_WHAT, **_COUNTS, "delivered": _NOTHING, "ack_floor": _NOTHING}
_OFFLINE = {"error": {"code": 500, "err_code": 10119, "description": "consumer is offline"}}
_GONE = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
_NAMELESS = ConsumerCreate(stream_name="S", config=ConsumerConfig())


async def test_a_consumer_without_a_name_gets_another_one_each_time_nobody_answers() -> None:
    servers = _Servers(Silent(), NotSent(), _OFFLINE, _MADE)
    info = await _call(servers, _NAMELESS)
    create, delete = "$JS.API.CONSUMER.CREATE.S.", "$JS.API.CONSUMER.DELETE.S."
    # What was not sent was not made.
    assert servers.asked == [create + name for name in ("name1", "name2", "name2", "name3")]
    assert servers.told == [delete + name for name in ("name1", "name2")]
    assert (info.name, info.config.name) == ("x", "")


@pytest.mark.parametrize("field", ["name", "durable_name"])
async def test_a_consumer_with_a_name_keeps_it(field: str) -> None:
    servers = _Servers(Silent(), _OFFLINE, _MADE)
    await _call(servers, ConsumerCreate(stream_name="S", config=ConsumerConfig(**{field: "mine"})))
    assert servers.asked == ["$JS.API.CONSUMER.CREATE.S.mine"] * 3
    assert servers.told == []


async def test_a_consumer_that_is_gone_when_it_is_removed_again_was_removed() -> None:
    request = ConsumerDelete(stream="S", name="c")
    assert (await _call(_Servers(Silent(), _GONE), request)).success
    with pytest.raises(ConsumerNotFoundError):
        await _call(_Servers(NotSent(), _GONE), request)


async def test_a_message_that_is_gone_when_it_is_removed_again_was_removed() -> None:
    request = MsgDelete(stream="S", seq=1)
    missing = {"error": {"code": 500, "err_code": 10057, "description": "no message found"}}
    denied = {"error": {"code": 500, "err_code": 10057, "description": "message delete not permitted"}}
    gap = {"error": {"code": 400, "err_code": 10043, "description": "sequence 1 not found"}}
    for answer in (missing, gap):
        assert (await _call(_Servers(Silent(), answer), request)).success
    for fates in ([missing], [Silent(), denied]):
        with pytest.raises(ApiError):
            await _call(_Servers(*fates), request)


async def test_patience_ends() -> None:
    servers = _Servers(Silent())
    with pytest.raises(ServerTimeoutError):
        await _call(servers, _NAMELESS)
    assert 5 < len(servers.asked) < 10
    assert len(servers.told) == len(servers.asked)


@pytest.mark.parametrize(
    ("request_", "again"),
    [
        (StreamInfoRequest(name="S"), True),
        (StreamCreate(config=StreamConfig(name="S")), True),
        (_NAMELESS, True),
        # The second reply would be that it exists.
        (ConsumerCreate(stream_name="S", config=ConsumerConfig(name="c"), action="create"), False),
        (StreamPurge(name="S"), False),
        (StreamDelete(name="S"), False),
    ],
)
async def test_what_does_no_harm_a_second_time_is_asked_again(request_: Request[Any], again: bool) -> None:
    assert may_be_repeated(request_) is again
    if not again:
        servers = _Servers(Interrupted())
        with pytest.raises(ServerTimeoutError):
            await _call(servers, request_)
        assert len(servers.asked) == 1
