"""Traces and metrics for OpenTelemetry, by its conventions for messaging. Needs ``pelton[otel]``.

``pelton.otel.instrument(jet)`` traces what a program does with an open store or cluster, and counts it;
``pelton.otel.observe(jet)`` exports how the store itself goes.
"""

from pelton.otel.gauges import instrument, observe, process, uninstrument

__all__ = ["instrument", "observe", "process", "uninstrument"]
