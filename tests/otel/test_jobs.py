"""Traces of jobs, joined from enqueue to run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import pelton
import pelton.otel
from tests.otel.recording import Recording, identity, links_of, parent_of
from tests.otel.worker import jobs

ROOT = Path(__file__).parents[2]


async def test_a_job_is_one_trace_across_processes(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        repaired = await jet.create_stream("repaired", subjects=["repaired.>"])
        queue = await jet.queue("garage", jobs=jobs)
        with recording.tracer.start_as_current_span("request") as request:
            handle = await queue.options(key="car 1").enqueue("repair", car="a secret")
        command = [sys.executable, "-m", "tests.otel.worker", address]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=True)
        emitted = await repaired.get_last_message("repaired.car")

    spans = json.loads(done.stdout)
    enqueued = recording.span("enqueue garage/repair")
    assert enqueued.kind is SpanKind.PRODUCER
    assert parent_of(enqueued) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert dict(enqueued.attributes or {}) == {
        "messaging.system": "nats" if "://" in address else "pelton",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "garage",
        "messaging.message.id": handle.id,
        "pelton.job.name": "repair",
    }
    first, second = [one for one in spans if one["name"] == "run garage/repair"]
    for number, attempt in enumerate((first, second), 1):
        assert attempt["parent"] == list(identity(enqueued))
        assert attempt["links"] == [list(identity(enqueued))]
        assert attempt["attributes"]["pelton.job.attempt"] == number
        assert attempt["attributes"]["messaging.message.id"] == handle.id
        assert attempt["attributes"]["pelton.job.key"] == "car 1"
    assert (first["error"], first["attributes"]["error.type"], second["error"]) == (True, "ValueError", False)
    # The step was done once, by the first attempt.
    [step] = [one for one in spans if one["name"] == "step look"]
    assert step["parent"] == first["id"]
    assert f"{second['id'][1]:016x}" in emitted.headers["traceparent"]
    assert "secret" not in done.stdout


async def test_what_a_job_enqueues_belongs_to_its_trace(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage")

        @queue.job
        def wash(car: str) -> None:
            trace.get_current_span().set_attribute("on_thread", car)

        @queue.job
        async def repair(car: str) -> None:
            await wash.enqueue(car)

        await repair.enqueue("a")
        await queue.work(until_empty=True, handle_signals=False)
    run, wash_run = recording.span("run garage/repair"), recording.span("run garage/wash")
    assert parent_of(recording.span("enqueue garage/wash")) == identity(run)
    assert wash_run.context.trace_id == recording.span("enqueue garage/repair").context.trace_id
    assert (wash_run.attributes or {})["on_thread"] == "a"
    points = recording.points()
    assert sum(count for _, count in points["messaging.client.sent.messages"]) == 2
    assert sum(count for _, count in points["messaging.process.duration"]) == 2
    assert {labels["pelton.job.name"] for labels, _ in points["messaging.process.duration"]} == {"repair", "wash"}


async def test_many_jobs_and_those_of_a_transaction(tmp_path: Path, recording: Recording) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage")

        @queue.job
        async def repair(car: str) -> None: ...

        @queue.job
        async def wash(car: str) -> None: ...

        await queue.enqueue_many([repair.bind("a"), wash.bind("b"), repair.bind("c")])
        async with jet.transaction() as tx:
            await tx.enqueue(repair, "d")
        await queue.work(until_empty=True, handle_signals=False)
    many, one = recording.span("enqueue garage"), recording.span("enqueue garage/repair")
    assert (many.attributes or {})["messaging.batch.message_count"] == 3
    runs = [span for span in recording.spans if span.name.startswith("run ")]
    assert sorted(map(parent_of, runs)) == sorted([identity(many)] * 3 + [identity(one)])


async def test_decisions_are_no_errors_and_timeouts_are(tmp_path: Path, recording: Recording) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage")

        @queue.job
        async def cancel() -> None:
            raise pelton.Cancel("nobody wants it")

        @queue.job(timeout=0.01, max_attempts=1)
        async def hang() -> None:
            await asyncio.Event().wait()

        await queue.enqueue_many([cancel.bind(), hang.bind()])
        await queue.work(until_empty=True, handle_signals=False)
    assert recording.span("run garage/cancel").status.status_code is StatusCode.UNSET
    hung = recording.span("run garage/hang")
    assert hung.status.status_code is StatusCode.ERROR
    assert (hung.attributes or {})["error.type"] == "JobTimeoutError"


async def test_a_context_of_the_programs_own_is_kept_and_redriven(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage")
        seen: list[str] = []

        @queue.job(max_attempts=1)
        async def repair(context: pelton.JobContext) -> None:
            seen.append(context.meta["traceparent"])
            if len(seen) == 1:
                raise ValueError("once")

        own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await queue.enqueue_many([repair.bind().with_meta(traceparent=own)])
        await queue.work(until_empty=True, handle_signals=False)
        await queue.redrive_all()
        await queue.work(until_empty=True, handle_signals=False)
    assert seen == [own, own]
    runs = [span for span in recording.spans if span.name == "run garage/repair"]
    assert [links_of(run) for run in runs] == [[(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)]] * 2


async def test_a_job_without_a_trace_begins_one(tmp_path: Path, recording: Recording) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        queue = await jet.queue("garage", jobs=jobs)
        await queue.enqueue("repair", car="a")
        recording.instrument(jet)
        await queue.work(until_empty=True, handle_signals=False)
    runs = [span for span in recording.spans if span.name == "run garage/repair"]
    assert [parent_of(run) for run in runs] == [None, None]


async def test_the_log_of_a_failed_attempt_has_its_trace(
    tmp_path: Path, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async with pelton.open(tmp_path / "shop.pelton") as jet:
        recording.instrument(jet)
        await jet.create_stream("repaired", subjects=["repaired.>"])
        queue = await jet.queue("garage", jobs=jobs)
        with recording.tracer.start_as_current_span("request") as request:
            await queue.enqueue("repair", car="a")
        await queue.work(until_empty=True, handle_signals=False)
    traces = [vars(record)["trace_id"] for record in caplog.records if record.name == "pelton.queue"]
    assert traces == [f"{request.get_span_context().trace_id:032x}"]


async def test_a_flow_is_one_trace(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage")

        @queue.job
        async def add(one: int, other: int) -> int:
            return one + other

        flow = await queue.new_flow("sum")
        flow.add(add, flow.add(add, 1, 2).result, 3)
        with recording.tracer.start_as_current_span("request") as request:
            handle = await flow.enqueue()
        await queue.work(until_empty=True, handle_signals=False)
        assert await handle.value(timeout=60) == 6
    enqueued = recording.span("enqueue garage/add")
    assert parent_of(enqueued) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert (enqueued.attributes or {})["messaging.message.id"] == flow.id
    assert (enqueued.attributes or {})["messaging.batch.message_count"] == 2
    runs = [span for span in recording.spans if span.name == "run garage/add"]
    assert [parent_of(run) for run in runs] == [identity(enqueued)] * 2


async def test_claimed_jobs_belong_to_the_trace_of_who_enqueued_them(address: str, recording: Recording) -> None:
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        done = await jet.create_stream("done", subjects=["done"])
        queue = await jet.queue("garage")
        first, _ = [await queue.enqueue("repair", car=car) for car in "ab"]
        async with queue.claims(pelton.JobRules()) as claims:
            jobs = await claims.take(2, timeout=20)
            with pelton.otel.process(jobs[0]):
                jobs[0].emit("done", b"yes")
                jobs[0].complete()
            with pytest.raises(ValueError, match="no"), pelton.otel.process(jobs[1]):
                raise ValueError("no")
            jobs[1].fail(ValueError("no"))
            assert not await claims.settle(jobs)
        emitted = await done.get_last_message("done")
    enqueued = [identity(span) for span in recording.spans if span.name == "enqueue garage/repair"]
    runs = [span for span in recording.spans if span.name == "run garage/repair"]
    assert [parent_of(run) for run in runs] == enqueued
    assert (runs[0].attributes or {})["messaging.message.id"] == first.id
    assert [run.status.is_ok for run in runs] == [True, False]
    for name in ("receive garage", "settle garage"):
        span = recording.span(name)
        assert links_of(span) == enqueued
        assert (span.attributes or {})["messaging.batch.message_count"] == 2
        assert (span.attributes or {})["messaging.client.id"] == claims.worker
    assert f"{identity(runs[0])[1]:016x}" in emitted.headers["traceparent"]
