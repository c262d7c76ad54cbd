"""Many subjects beside one, and many keys of an exclusive queue, which are subjects too, beside few."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric


def _case(name: str, title: str, how: str, what: tuple[str, str, str], numbers: tuple[int, ...], bound: float) -> Case:
    target, noun, unit = what
    contenders = tuple(
        Contender(f"{number:,} {noun}", f"ours.many_subjects:{target}", FSYNCED, {noun: number}) for number in numbers
    )
    *fewer, many = (contender.name for contender in contenders)
    return Case(
        name=name,
        title=title,
        how=f"{how} `cpu` is that of the process for each of them.",
        metrics=(Metric("rate", f"{unit}/s"), Metric("cpu", "us", 1)),
        contenders=contenders,
        asks=(RatioAsk(many, tuple(fewer), bound, label="the best with fewer"),),
    )


_HOW = "Every subject has a message before the timing; they are used in turn, in an order without locality."
_ALIKE = (1, 1_000, 100_000)

BATCHES = _case(
    "subjects-batch",
    "Many subjects: batches of 1,000",
    f"`publish_batch` of 1,000, each batch awaited. {_HOW}",
    ("publish_batch", "subjects", "msgs"),
    _ALIKE,
    0.6,
)
FLIGHT = _case(
    "subjects-in-flight",
    "Many subjects: 1,000 publishes in flight",
    f"1,000 awaited publishes at every moment. {_HOW}",
    ("publish_in_flight", "subjects", "msgs"),
    _ALIKE,
    0.85,
)
JOBS = _case(
    "keys-exclusive",
    "Many keys: jobs of an exclusive queue",
    "102,400 no-op jobs, enqueued beforehand, that one worker of concurrency 64 drains.",
    ("exclusive_jobs", "keys", "jobs"),
    (256, 4_000, 100_000),
    0.8,
)

ALL = (BATCHES, FLIGHT, JOBS)
