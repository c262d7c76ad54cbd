"""Arguments and results with the codec of the program."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

import pelton
from pelton import ConfigError, Jet, JobArgumentsError, JobResultError
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import drain, working


@dataclass
class Car:
    name: str
    wheels: set[int]


class Pickled:
    """Any object; its type must be the declared class, if one is declared."""

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def decode(self, data: bytes, kind: Any) -> Any:
        value = pickle.loads(data)
        if kind is not Any and isinstance(kind, type) and not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value


jobs = pelton.Jobs(codec=Pickled())


@jobs.job(max_attempts=1)
async def repair(car: Car, times: complex = 2j) -> Car:
    return Car(car.name + "!", {*car.wheels, int(times.imag)})


@jobs.job(max_attempts=1)
async def odd(which: Any) -> Any:
    return None if which == "none" else (n for n in ())


@ON_BOTH
async def test_a_codec_carries_what_json_cannot(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    first = await queue.enqueue(repair, Car("a", {1}))
    second = await queue.options(key="k").enqueue(repair, car=Car("b", set()), times=7j)
    await drain(queue)
    assert await first.value() == Car("a!", {1, 2})
    assert await second.value() == Car("b!", {7})
    # The message is JSON all the same.
    assert isinstance((await first.outcome()).value(), str)


async def test_what_a_codec_refuses_is_told_before_anything_is_stored(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    for wrong in ("no car", lambda: None):
        with pytest.raises(JobArgumentsError):
            await queue.enqueue(repair, wrong)  # type: ignore[arg-type]
    with pytest.raises(JobArgumentsError, match="missing"):
        await queue.enqueue(repair)  # type: ignore[call-arg]
    assert (await queue.counts()).pending == 0


async def test_results_that_cannot_be_encoded_fail_the_job(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    none, bad = await queue.enqueue(odd, "none"), await queue.enqueue(odd, "bad")
    await drain(queue)
    assert await none.value() is None
    assert (await bad.outcome()).error.startswith("JobResultError")


async def test_jobs_that_were_stored_otherwise_wait_with_a_reason(jet: Jet) -> None:
    plain = await jet.queue("garage")
    handles = [await plain.enqueue("repair", **named) for named in ({"car": 1}, {}, {"car": "", "colour": 2})]
    queue = await jet.queue("garage", jobs=jobs)
    async with working(queue), asyncio.timeout(20):
        while not all([(await handle.info()).last_error.startswith("JobArgumentsError") for handle in handles]):
            await asyncio.sleep(0.01)
    assert bytes(repair.results.encode(None)) == b"null"
    with pytest.raises(JobResultError):
        repair.results.decode(b'"!"')


def test_a_codec_is_checked() -> None:
    with pytest.raises(ConfigError, match="encode"):
        pelton.Jobs(codec=pickle)  # type: ignore[arg-type]

    class Text(Pickled):
        def encode(self, value: Any) -> Any:
            return "text"

    text = pelton.Jobs(codec=Text())
    job = text.job(repair.function)
    with pytest.raises(JobArgumentsError, match="not to bytes"):
        job.bind(Car("a", set()))


def test_a_child_process_reads_json() -> None:
    with pytest.raises(ConfigError, match="a child reads JSON"):
        jobs.job(process=True)(len)
