"""``manage.py pelton_worker``: runs Django's tasks; ``pelton work`` with the store and the queues of the settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from pelton.cli.main import main
from pelton.contrib.django.backend import PeltonBackend, root

if TYPE_CHECKING:

    class BaseCommand:
        """What type checkers take for Django's class, which has no type information."""

        def __getattr__(self, name: str) -> Any: ...

else:
    from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """The command."""

    help = "Run the tasks of a Pelton backend; SIGTERM and SIGINT end it in order."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that ``pelton work`` has."""
        parser.add_argument("--backend", default="default", help="of the setting TASKS (default: default)")
        parser.add_argument("--queue", action="append", dest="queues", help="repeatable (default: all of the backend)")
        for option in ("--concurrency", "--processes", "--max-jobs", "--grace"):
            parser.add_argument(option)
        parser.add_argument("--reload", action="store_true")
        parser.add_argument("--json-logs", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        """Work until stopped."""
        backend = root.task_backends[options["backend"]]
        if not isinstance(backend, PeltonBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is no backend of Pelton")
        words = ["work", "pelton.contrib.django.jobs:jobs", "--store", backend.store]
        for queue in options["queues"] or sorted(backend.queues) or ["default"]:
            words += ["--queue", queue]
        for name in ("concurrency", "processes", "max_jobs", "grace"):
            if options[name] is not None:
                words += [f"--{name.replace('_', '-')}", options[name]]
        words += [f"--{name.replace('_', '-')}" for name in ("reload", "json_logs") if options[name]]
        if status := main(words):
            sys.exit(status)
