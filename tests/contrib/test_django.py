"""Django's tasks on Pelton, in a project of its own: each program is a process, as settings are global."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pelton

pytest.importorskip("django_tasks")

SETTINGS = """
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = ["django_tasks", "pelton.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
TASKS = {
    "default": {
        "BACKEND": "pelton.contrib.django.backend.PeltonBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"store": "tasks.pelton"},
    }
}
"""
TASKS = """
from django.db import connection
from django_tasks import task

@task
def add(a, b=1):
    with connection.cursor() as cursor:
        return cursor.execute("SELECT %s + %s", [a, b]).fetchone()[0]

@task(queue_name="mail")
async def send(to):
    return {"to": to}

@task
def fail():
    from django.core.exceptions import PermissionDenied
    raise PermissionDenied("no")

@task(takes_context=True)
def about(context):
    return [context.task_result.id, str(context.task_result.status)]
"""
BEGIN = """
import asyncio, os, time
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
import tasks
from django_tasks import default_task_backend
from django_tasks.exceptions import TaskResultDoesNotExist

def ended(result):
    while not result.is_finished:
        result.refresh()
        time.sleep(0.02)
    return result
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "manage.py").write_text(
        "import os, sys\n"
        'os.environ["DJANGO_SETTINGS_MODULE"] = "settings"\n'
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(sys.argv)\n"
    )
    return tmp_path


def run(project: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=project, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAM = """
from datetime import timedelta
from django.utils import timezone

first = tasks.add.enqueue(1, b=2)
assert str(first.status) == "READY", first
other = asyncio.run(tasks.send.aenqueue("Ada"))
later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
failed = tasks.fail.enqueue()
about = tasks.about.enqueue()
print(ended(first).return_value, ended(other).return_value, ended(about).return_value == [about.id, "RUNNING"])
assert str(tasks.add.get_result(later.id).status) == "READY"
[error] = ended(failed).errors
print(str(failed.status), error.exception_class.__name__, "PermissionDenied: no" in error.traceback)
print(first.args, first.kwargs, first.started_at >= first.enqueued_at, first.finished_at >= first.started_at)
try:
    default_task_backend.get_result("unknown")
except TaskResultDoesNotExist:
    print("unknown")
"""


@pytest.mark.parametrize("arguments", [[], ["--processes", "1", "--queue", "default", "--queue", "mail"]])
def test_tasks_are_enqueued_run_and_looked_up(project: Path, arguments: list[str]) -> None:
    command = [sys.executable, "manage.py", "pelton_worker", "--concurrency", "2", *arguments]
    worker = subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL)
    try:
        assert run(project, PROGRAM).splitlines() == [
            "3 {'to': 'Ada'} True",
            "FAILED PermissionDenied True",
            "[1] {'b': 2} True True",
            "unknown",
        ]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()


PRIORITIES = """
from pelton.contrib.django.backend import rank_of

given = [-100, -1, 0, 1, 50, 51, 100]
print([rank_of(priority) for priority in given])
results = [tasks.add.using(priority=priority).enqueue(priority) for priority in given]
try:
    tasks.add.enqueue(object())
except TypeError:
    print("refused")
"""


def test_priorities_have_four_ranks(project: Path) -> None:
    assert run(project, PRIORITIES).splitlines() == ["[0, 0, 1, 2, 2, 3, 3]", "refused"]
    # What is refused leaves nothing.
    with pelton.sync.open(project / "tasks.pelton") as jet:
        assert [job.priority for job in jet.queue("default").jobs()] == [0, 0, 1, 2, 2, 3, 3]


def test_settings_are_checked(project: Path) -> None:
    (project / "settings.py").write_text(SETTINGS.replace('"store": "tasks.pelton"', ""))
    done = subprocess.run([sys.executable, "manage.py", "check"], cwd=project, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pelton.E001" in done.stderr
