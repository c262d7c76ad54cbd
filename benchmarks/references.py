"""Figures that cannot be measured here: published with the project's targets, on two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A fixed figure, its unit, and the setting in which it was measured."""

    name: str
    figure: float
    unit: str
    setting: str


GO_PUBLISH = Reference("Go client publish", 175_000, "msgs/s", "nats.go, 500 in flight, not fsynced")
GO_FETCH = Reference("Go client fetch", 204_000, "msgs/s", "nats.go, fetch(500), not fsynced")
GOALPOST_PUSH = Reference("goalpost push", 4_000, "jobs/s", "Go, bbolt, fsynced")
GOALPOST_DRAIN = Reference("goalpost drain", 1_900, "jobs/s", "Go, bbolt, fsynced")
GOALPOST_PICKUP = Reference("goalpost pick-up", 270, "ms", "idle worker, polling")

ALL = (GO_PUBLISH, GO_FETCH, GOALPOST_PUSH, GOALPOST_DRAIN, GOALPOST_PICKUP)
