"""What the options of jobs cost, and what a queue does at its limits."""

from __future__ import annotations

from benchmarks.asks import FloorAsk, LimitAsk, RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric
from benchmarks.roster import PELTON, pelton

UNIQUE = "Pelton, unique"
DELAYED = "Pelton, delayed"
KEYED = "Pelton, with a key"
SHORT = "Pelton, a short queue"
LONG = "Pelton, a long queue"
NO_SCHEDULES = "Pelton, no schedules"
SCHEDULES = "Pelton, 1,000 schedules"


def _with(name: str, target: str, **options: object) -> Contender:
    return Contender(name, f"ours.job_options:{target}", FSYNCED, {"sync": "commit", **options})


ENQUEUE = Case(
    name="queue-enqueue",
    title="Jobs enqueued many at once, by their options",
    how="One call of `enqueue_many` with all jobs, each with an argument of its own.",
    metrics=(Metric("rate", "jobs/s"),),
    contenders=(
        _with(PELTON, "enqueued", options={}),
        _with(KEYED, "enqueued", options={"key": "k"}),
        _with(UNIQUE, "enqueued", options={"unique": "arguments"}),
        _with(DELAYED, "enqueued", options={"delay": 3600}),
    ),
    asks=(
        FloorAsk(PELTON, 200_000, "rate", " jobs/s"),
        RatioAsk(UNIQUE, (PELTON,), 0.4),
        RatioAsk(DELAYED, (PELTON,), 0.2),
    ),
)
BACKLOG = Case(
    name="queue-backlog",
    title="Jobs claimed from a long queue with many keys",
    how=(
        "An exclusive queue of 5 million waiting jobs and 100,000 keys (`--quick`: 200,000 and 4,000), beside one "
        "that holds little more than what is claimed: taken 256 at a time, completed, settled."
    ),
    metrics=(Metric("rate", "jobs/s"),),
    contenders=(_with(SHORT, "claimed_beside", share=0.0), _with(LONG, "claimed_beside", share=1.0)),
    asks=(RatioAsk(LONG, (SHORT,), 0.7),),
)
IDLE = Case(
    name="queue-idle",
    title="An idle worker beside schedules that are not due",
    how="CPU time that a worker with nothing to do takes in a second.",
    metrics=(Metric("cpu", "ms/s", 2),),
    contenders=(
        _with(NO_SCHEDULES, "idle_with_schedules", schedules=0),
        _with(SCHEDULES, "idle_with_schedules", schedules=1_000),
    ),
    asks=(LimitAsk(SCHEDULES, 5, "cpu", "ms/s"),),
)
ACROSS = Case(
    name="queue-pickup-across",
    title="Idle worker picks a job up, another process",
    how="A job every 10 ms to a worker of another process; from the call of enqueue to the start of the job.",
    metrics=(Metric("p50", "ms", 3), Metric("p99", "ms", 3)),
    contenders=(pelton("job_options:pick_up_across"),),
    asks=(LimitAsk(PELTON, 2, "p50", "ms"),),
)
ALL = (ENQUEUE, BACKLOG, IDLE, ACROSS)
