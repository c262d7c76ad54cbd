"""Django's tasks: those of Django 6, or of the package ``django-tasks`` for older ones."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import django


def _room() -> str:
    return "django.tasks" if django.VERSION >= (6, 0) and find_spec("django.tasks") else "django_tasks"


def _load(module: str) -> Any:
    return import_module(f"{_room()}{module}")


root: Any = _load("")
base: Any = _load(".base")
backends: Any = _load(".backends.base")
exceptions: Any = _load(".exceptions")
signals: Any = _load(".signals")
