"""Typed arguments: checked at enqueue, passed by name."""

import enum
import functools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pelton.api import ConfigError, JobArgumentsError
from pelton.queue import JobContext, Queue
from tests.queue.helpers import drain


def _shown(value: object) -> str:
    """Return the name of a case: each process of a test run must compute the same one."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@dataclass
class Car:
    plate: str
    doors: int = 4


class Bad:
    def __init__(self) -> None:
        self.me = self


async def test_values_arrive_as_the_types_that_were_declared(queue: Queue) -> None:
    seen = list[object]()

    @queue.job
    async def job(car: Car, when: datetime, tags: set[str], raw: bytes, *, note: str | None = None) -> None:
        seen.extend([car, when, tags, raw, note])

    when = datetime(2026, 1, 2, tzinfo=UTC)
    await job.enqueue(Car("x"), when, {"a"}, b"\x00\xff", note="n")
    await drain(queue)
    assert seen == [Car("x"), when, {"a"}, b"\x00\xff", "n"]


async def test_defaults_are_those_of_the_function_that_runs(queue: Queue) -> None:
    @queue.job
    async def job(a: int, b: list[int] = [1]) -> int:  # noqa: B006 - what users write
        return a + sum(b)

    handles = [await job.enqueue(1), await job.enqueue(b=[5], a=2)]
    await drain(queue)
    assert [(await handle.outcome()).value() for handle in handles] == [2, 7]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, 2, 3), {}),
        (("x",), {}),
        ((1.5,), {}),
        ((1,), {"b": 2}),
        ((1,), {"c": 1}),
        ((1,), {"a": 1}),
        ((object(),), {}),
        ((1,), {"b": "\udcff"}),
        ((float("nan"),), {}),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_at_the_door(
    queue: Queue, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    @queue.job
    async def job(a: int, b: str = "") -> None: ...

    with pytest.raises(JobArgumentsError, match="job 'job' cannot take these arguments"):
        await job.enqueue(*args, **kwargs)
    with pytest.raises(JobArgumentsError):
        job.bind(*args, **kwargs)
    assert (await queue.counts()).unfinished == 0


@pytest.mark.parametrize("number", [nan, inf])
async def test_numbers_that_json_does_not_have_are_refused_at_the_door(queue: Queue, number: float) -> None:
    @queue.job
    async def job(a: Any, b: float | None = None) -> None: ...

    for value in (number, {"a": [None, number]}):
        with pytest.raises(JobArgumentsError, match=f"JSON has no {number}"):
            await job.enqueue(value)
        with pytest.raises(JobArgumentsError, match=f"JSON has no {number}"):
            await queue.enqueue("unknown here", a=value)
    with pytest.raises(JobArgumentsError, match=f"JSON has no {number}"):
        await job.enqueue(1, number)
    with pytest.raises(JobArgumentsError, match=f"JSON has no {number}"):
        (await queue.new_flow()).add("unknown here", a=number)
    assert (await queue.counts()).unfinished == 0
    await job.enqueue({"a": msgspec.Raw(b"null"), "b": ("null", None)})


class Paint(msgspec.Struct):
    colour: str
    when: date | None = None


class Finish(enum.StrEnum):
    MATT = "matt"


TODAY = date(2026, 1, 2)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, b"x"),
        (str, TODAY),
        (str, datetime(2026, 1, 2, tzinfo=UTC)),
        (str, timedelta(1)),
        (str, UUID(int=1)),
        (str, Decimal("1.5")),
        (str | None, b"x"),
        (int | str, TODAY),
        (bytes, "abcd"),  # would be read as base64
        (list[str], ["x", b"x"]),
        (set[str], {b"x"}),
        (tuple[int, str], (1, TODAY)),
        (dict[str, str], {"x": b"x"}),
        (dict[str, int], {1: 2}),
        (dict[str, int], {TODAY: 2}),
        (Car, Car(b"x")),  # type: ignore[arg-type]  # what a program without a type checker does
        (Car, {"plate": b"x"}),
        (list[Car], [Car("x"), Car(TODAY)]),  # type: ignore[arg-type]
        (dict[str, Paint], {"x": Paint(b"red")}),  # type: ignore[arg-type]
    ],
    ids=_shown,
)
async def test_a_value_that_would_arrive_as_another_one_is_refused(queue: Queue, kind: Any, value: Any) -> None:
    async def job(a: Any, b: int = 0) -> None: ...

    job.__annotations__["a"] = kind
    registered = queue.job(job)
    with pytest.raises(JobArgumentsError, match="job 'job' cannot take these arguments: Expected"):
        await registered.enqueue(value)
    with pytest.raises(JobArgumentsError):
        registered.bind(b=1, a=value)
    assert (await queue.counts()).unfinished == 0


@pytest.mark.parametrize(
    ("kind", "value", "arrives"),
    [
        (date, TODAY, TODAY),
        (date, "2026-01-02", TODAY),
        (timedelta, timedelta(days=2, microseconds=3), timedelta(days=2, microseconds=3)),
        (Decimal, Decimal("1.50"), Decimal("1.50")),
        (UUID, UUID(int=1), UUID(int=1)),
        (bytes, bytearray(b"x"), b"x"),
        (bytes, memoryview(b"x"), b"x"),
        (float, 1, 1.0),
        (str, Finish.MATT, "matt"),
        (Finish, "matt", Finish.MATT),
        (list[int], (1, 2), [1, 2]),
        (Car, {"plate": "x", "more": 1}, Car("x")),
        (Paint, Paint("red", TODAY), Paint("red", TODAY)),
        (dict[date, list[bytes]], {TODAY: [b"x"]}, {TODAY: [b"x"]}),
        (dict[int, str], {1: "x"}, {1: "x"}),
        (msgspec.Raw, msgspec.Raw(b"[1]"), msgspec.Raw(b"[1]")),
        (list[Any], msgspec.Raw(b"[1]"), [1]),
        (Any, {"a": (1, 2)}, {"a": [1, 2]}),
    ],
    ids=_shown,
)
async def test_a_value_of_its_type_arrives_as_it_is(queue: Queue, kind: Any, value: Any, arrives: Any) -> None:
    seen = list[object]()

    async def job(a: Any) -> None:
        seen.append(a)

    job.__annotations__["a"] = kind
    await queue.job(job).enqueue(value)
    await drain(queue)
    [found] = seen
    assert (bytes(found), bytes(arrives)) == (b"[1]",) * 2 if kind is msgspec.Raw else found == arrives  # type: ignore[call-overload]


async def test_a_recursive_argument_is_refused(queue: Queue) -> None:
    @queue.job
    async def job(a: list[Any]) -> None: ...

    value = list[Any]()
    value.append(value)
    with pytest.raises(JobArgumentsError):
        await job.enqueue(value)


@pytest.mark.parametrize("given", [5, 0, None, b"x"])
async def test_an_idempotency_key_is_a_text(queue: Queue, given: Any) -> None:
    @queue.job
    async def job() -> None: ...

    with pytest.raises(ConfigError, match="job 'job': idempotency_key is"):
        await job.enqueue(idempotency_key=given)


async def test_one_bad_call_of_many_stores_none(queue: Queue) -> None:
    @queue.job
    async def job(a: int) -> None: ...

    with pytest.raises(JobArgumentsError):
        await job.enqueue_many([(1,), ("x",)])
    for no_arguments in (["x"], [5], [b"x"]):
        with pytest.raises(JobArgumentsError, match="is not a list of arguments"):
            await job.enqueue_many(no_arguments)  # type: ignore[arg-type]  # a program without a type checker
    with pytest.raises(ConfigError, match="keys is 'ab'"):
        await job.enqueue_many([(1,), (2,)], keys="ab")
    with pytest.raises(ConfigError, match="2 argument lists, but 1 keys"):
        await job.enqueue_many([(1,), (2,)], keys=["a"])
    assert (await queue.counts()).pending == 0
    assert await job.enqueue_many([]) == []


async def test_bound_calls_of_several_jobs_go_in_together(queue: Queue) -> None:
    done = list[object]()

    @queue.job
    def first(a: int) -> None:
        done.append(a)

    @queue.job(name="2nd")
    async def second(b: str) -> None:
        done.append(b)

    handles = await queue.enqueue_many([first.bind(1), second.bind(b="x"), first.bind(2)])
    assert [handle.id for handle in handles] == ["1", "2", "3"]
    await drain(queue, concurrency=1)
    assert done == [1, "x", 2]


async def test_the_context_is_given_not_passed(queue: Queue) -> None:
    @queue.job
    async def job(a: int, context: JobContext, b: int) -> int:
        return a + b + context.attempt

    handle = await job.enqueue(1, 2)
    await drain(queue)
    assert (await handle.outcome()).value() == 4


def positional(a: int, /) -> None: ...
def starred(*a: int) -> None: ...
def double_starred(**a: int) -> None: ...
def keyed(key: str) -> None: ...
def idempotent(idempotency_key: str) -> None: ...
def two_contexts(a: JobContext, b: JobContext) -> None: ...
def unresolved(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def union_of_structs(a: Car | msgspec.Struct) -> None: ...


@pytest.mark.parametrize(
    "function",
    [positional, starred, double_starred, keyed, idempotent, two_contexts, unresolved, functools.partial(keyed, "x")],
)
def test_functions_that_cannot_be_jobs_are_refused(queue: Queue, function: Any) -> None:
    with pytest.raises(ConfigError):
        queue.job(function)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"permanent": ["ValueError"]},
        {"permanent": int},
        {"permanent": 5},
        {"backoff": 0.5},
        {"max_attempts": "3"},
        {"max_attempts": 2.5},
        {"timeout": "x"},
        {"timeout": True},
        {"name": 5},
    ],
)
def test_rules_that_cannot_be_kept_are_refused(queue: Queue, options: dict[str, Any]) -> None:
    async def job() -> None: ...

    with pytest.raises(ConfigError, match=next(iter(options))):
        queue.job(**options)(job)
    assert queue.jobs_by_name == {}


def test_a_thread_has_no_timeout(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="timeout needs an async function"):
        queue.job(timeout=1)(lambda: None)


def test_a_name_is_given_once(queue: Queue) -> None:
    queue.job(name="a")(lambda: 1)
    with pytest.raises(ConfigError, match="already"):
        queue.job(name="a")(lambda: 2)
