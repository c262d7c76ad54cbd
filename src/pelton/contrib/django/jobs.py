"""The job that runs Django's tasks: ``manage.py pelton_worker``, or ``pelton work pelton.contrib.django.jobs:jobs``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from django.db import close_old_connections
from django.utils import timezone

from pelton.contrib.django.backend import JOB, TaskRecord, base, result_of, root, signals, task_of
from pelton.queue import JobContext, JobInfo, Jobs

jobs: Jobs = Jobs()


@jobs.around_run
def _fresh_connections(context: JobContext) -> Iterator[None]:
    """Close connections to databases that have gone away, as Django does around a request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


# A task that raises has failed, as in Django; one whose worker dies is run again.
@jobs.job(name=JOB, max_attempts=5, permanent=(Exception,))
def run_task(
    context: JobContext, task: str, args: list[Any], kwargs: dict[str, Any], result_id: str, backend: str
) -> Any:
    """Run a task, async or not, with its signals."""
    record = TaskRecord(task, args, kwargs, context.queue, context.id)
    running = JobInfo(
        id=context.id,
        job=context.job,
        state="running",
        key=context.key,
        attempt=context.attempt,
        enqueued_at=context.enqueued_at,
    )
    result = result_of(record, result_id, backend, running)
    now = timezone.now()
    _set(result, started_at=now, last_attempted_at=now, worker_ids=[context.worker])
    sender = type(root.task_backends[backend])
    signals.task_started.send(sender, task_result=result)
    states = base.TaskResultStatus
    try:
        found = task_of(task)
        first = (base.TaskContext(task_result=result),) if found.takes_context else ()
        value = found.call(*first, *args, **kwargs)
    except Exception:
        _set(result, status=states.FAILED, finished_at=timezone.now())
        signals.task_finished.send(sender, task_result=result)
        raise
    _set(result, status=states.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    signals.task_finished.send(sender, task_result=result)
    return value


def _set(result: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(result, name, value)
