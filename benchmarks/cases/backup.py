"""Copying a store that is in use, beside copying a file."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric
from benchmarks.roster import PELTON, pelton

ENCRYPTED = "Pelton, encrypted"
CP = "cp and a sync"

CASE = Case(
    name="backup",
    title="A backup of a million messages",
    how="`jet.backup` of an open store, folded and synced; beside it a plain copy of such a file, synced.",
    metrics=(Metric("rate", "MiB/s"),),
    contenders=(
        replace(pelton("vault:backup"), options={"sync": "commit", "key": False}),
        replace(pelton("vault:backup", ENCRYPTED), options={"sync": "commit", "key": True}),
        Contender(CP, "ours.vault:copy_and_sync", FSYNCED + "; a yardstick"),
    ),
    asks=(RatioAsk(PELTON, (CP,), 0.5), RatioAsk(ENCRYPTED, (CP,), None)),
)
