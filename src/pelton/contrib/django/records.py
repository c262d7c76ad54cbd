"""What is kept of each Django task beside its job, and the results made from both."""

from __future__ import annotations

import builtins
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.utils.module_loading import import_string

from pelton.contrib.django.tasks_api import base
from pelton.queue import JobInfo, Outcome

_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


class TaskRecord(msgspec.Struct, frozen=True):
    """A task as it was enqueued: its path, its arguments, and its job."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    job: str
    priority: int = 0


def task_of(path: str) -> Any:
    """Return the task of a module path. Raises ImportError."""
    found = import_string(path)
    # A task that was enqueued by its function's path is what the decorator left there.
    return found if isinstance(found, base.Task) else base.Task(func=found)


def result_of(record: TaskRecord, result_id: str, backend: str, info: JobInfo) -> Any:
    """Return a task's result, as its job is now."""
    outcome = info.outcome
    result = base.TaskResult(
        task=task_of(record.task),
        id=result_id,
        status=_status(info),
        enqueued_at=_time(info.enqueued_at),
        started_at=None if outcome is None else _time(outcome.started_at),
        last_attempted_at=None if outcome is None else _time(outcome.started_at),
        finished_at=None if outcome is None else _time(outcome.finished_at),
        args=record.args,
        kwargs=record.kwargs,
        backend=backend,
        errors=[] if outcome is None or outcome.state == "completed" else [_error(outcome)],
        worker_ids=[] if outcome is None or not outcome.worker else [outcome.worker],
    )
    if outcome is not None and outcome.state == "completed":
        object.__setattr__(result, "_return_value", outcome.value())
    return result


def _status(info: JobInfo) -> Any:
    states = base.TaskResultStatus
    known = {"running": states.RUNNING, "completed": states.SUCCESSFUL}
    ended = states.READY if info.outcome is None else states.FAILED
    return known.get(info.state, ended)


def _error(outcome: Outcome) -> Any:
    """Return an error with the import path of its class, which a traceback's last lines begin with."""
    name = "builtins.RuntimeError"
    for line in reversed(outcome.traceback.splitlines()):
        if found := _RAISED.match(line):
            name = found[1] if "." in found[1] else f"builtins.{found[1]}"
            break
    else:
        kind = outcome.error.partition(":")[0]
        if isinstance(getattr(builtins, kind, None), type):
            name = f"builtins.{kind}"
    return base.TaskError(exception_class_path=name, traceback=outcome.traceback or outcome.error)


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None
