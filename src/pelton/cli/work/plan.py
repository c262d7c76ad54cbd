"""What a process works on, and how its jobs are found."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from pelton.api import ConfigError
from pelton.api.keys import Key, KeyFile
from pelton.queue import Jobs

_FORM: Final = "give MODULE:ATTRIBUTE, for example shop.jobs:jobs"


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of one process: ``jobs`` as module:attribute, ``grace`` in seconds."""

    jobs: tuple[str, ...]
    store: str
    queues: tuple[str, ...]
    concurrency: int = 8
    grace: float = 30.0
    max_jobs: int | None = None
    key_file: str | None = None
    json_logs: bool = False
    otel: bool = False

    def key(self, variable: str | None) -> Key | None:
        """Return the store's key: from its file, or the one that the environment has."""
        return KeyFile(self.key_file) if self.key_file is not None else variable or None


def found_jobs(name: str) -> Jobs:
    """Import the jobs of ``module:attribute``, where the current directory counts. Raises ConfigError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.endswith(".py"):
        raise ConfigError(f"{name!r} names no jobs: {_FORM}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module!r} can't be imported from {here}: {error}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Jobs):
        what = f"is {type(found).__name__}" if found is not None else "is not there"
        raise ConfigError(f"{name!r} {what}: {_FORM}, where the attribute is a pelton.Jobs()")
    return found
