"""A store that holds 5 million messages (200,000 with --quick)."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import LimitAsk, RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import pelton

FULL = "Pelton, full store"
EMPTY = "Pelton, empty store"
_TARGET = "big:measure"

CASE = Case(
    name="big-store",
    title="A store that holds 5 M messages",
    how=(
        "1,000 subjects, filled by `publish_batch` (200,000 messages with `--quick`). A fresh process opens "
        "the store and its stream, publishes 1,000 (peak resident memory is read here), then publishes in "
        "three ways."
    ),
    metrics=(
        Metric("open", "ms", 1),
        Metric("memory", "MB", 1),
        Metric("each", "msgs/s"),
        Metric("in flight", "msgs/s"),
        Metric("batches", "msgs/s"),
    ),
    contenders=(
        replace(pelton(_TARGET, FULL), options={"sync": "commit", "full": True}),
        replace(pelton(_TARGET, EMPTY), options={"sync": "commit", "full": False}),
    ),
    asks=(
        LimitAsk(FULL, 300, "open", "ms"),
        LimitAsk(FULL, 200, "memory", "MB"),
        RatioAsk(FULL, (EMPTY,), 0.8, "each"),
        RatioAsk(FULL, (EMPTY,), 0.8, "in flight"),
        RatioAsk(FULL, (EMPTY,), 0.8, "batches"),
    ),
    prepare="ours.big:build",
)
