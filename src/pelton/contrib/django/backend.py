"""A backend for Django's tasks.

In the settings: ``TASKS = {"default": {"BACKEND": "pelton.contrib.django.backend.PeltonBackend", "OPTIONS": {"store":
"tasks.pelton"}}}``.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import django
import msgspec
from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

import pelton
from pelton.contrib.process_store import process_store
from pelton.queue import JobInfo, Outcome

__all__ = ["PeltonBackend"]


def _load(module: str) -> Any:
    room = "django.tasks" if django.VERSION >= (6, 0) and find_spec("django.tasks") else "django_tasks"
    return import_module(f"{room}{module}")


root: Any = _load("")
base: Any = _load(".base")
backends: Any = _load(".backends.base")
exceptions: Any = _load(".exceptions")
signals: Any = _load(".signals")


# --- what is kept of each Django task beside its job, and the results made from both

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


JOB: Final = "django_task"
_BUCKET: Final = "django_tasks"
_KEPT_S: Final = 7 * 86_400


def rank_of(priority: int) -> int:
    """Return the priority of a job, 0 to 3, from a task's, -100 to 100: below 0, 0, up to 50, above."""
    return (priority >= 0) + (priority > 0) + (priority > 50)


if TYPE_CHECKING:

    class BaseTaskBackend:
        """What type checkers take for Django's class, which has no type information."""

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def check(self, **_options: Any) -> Any:
            """Check the settings."""

        def __getattr__(self, name: str) -> Any: ...

else:
    BaseTaskBackend = backends.BaseTaskBackend


class PeltonBackend(BaseTaskBackend):
    """Enqueues Django's tasks in Pelton's queues of the same names.

    ``OPTIONS``: ``store``, a file or ``nats://host:4222``. Results are kept for a week. Priorities, -100 to 100, have
    four ranks: below 0, 0, up to 50, and above. Django constructs it, from the ``alias`` and the ``params`` of TASKS.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        store = self.options.get("store", "")
        self.store: str = os.fspath(store) if isinstance(store, str | Path) else ""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task into its queue; returns when it is durable.

        Raises TypeError or ValueError for arguments that JSON can't hold, and pelton.PeltonError.
        """
        self.validate_task(task)
        result_id = get_random_string(32)
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        jet = process_store(self.store).blocking
        record = TaskRecord(task.module_path, list(args), dict(kwargs), task.queue_name, "", task.priority)
        # As it is stored: a worker may begin it at once.
        ready = JobInfo(id="", job=JOB, state="pending", key="", attempt=0, enqueued_at=jet.runtime.clock.now())
        # This refuses arguments, so before the job is stored.
        result = result_of(record, result_id, self.alias, ready)
        named = {"task": task.module_path, "args": list(result.args), "kwargs": dict(result.kwargs)}
        queue = jet.queue(task.queue_name).options(at=at, priority=rank_of(task.priority))
        handle = queue.enqueue(JOB, **named, result_id=result_id, backend=self.alias)
        record = TaskRecord(**named, queue=task.queue_name, job=handle.id, priority=task.priority)
        self._records(jet).put(result_id, msgspec.json.encode(record))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return a task's result. Raises TaskResultDoesNotExist."""
        jet = process_store(self.store).blocking
        try:
            record = msgspec.json.decode(self._records(jet).get(result_id).value, type=TaskRecord)
            info = jet.queue(record.queue).get(record.job)
        except (pelton.BucketKeyNotFoundError, pelton.JobNotFoundError, pelton.ConfigError):
            raise exceptions.TaskResultDoesNotExist(result_id) from None
        return result_of(record, result_id, self.alias, info)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings."""
        yield from super().check(**kwargs)
        if not self.store:
            yield checks.Error(f"TASKS[{self.alias!r}]: OPTIONS needs 'store', a file or nats://host", id="pelton.E001")

    def _records(self, jet: Any) -> Any:
        try:
            return jet.bucket(_BUCKET)
        except pelton.BucketNotFoundError:
            return jet.create_bucket(_BUCKET, ttl=_KEPT_S)
