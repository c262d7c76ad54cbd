"""Redis and PostgreSQL for the queues that need one: each on a Unix socket of its own, for one measurement.

Both answer after an fsync. A server that is not installed ends the measurement, which the report calls skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

_LIMIT = 20.0
_DEBIAN = Path("/usr/lib/postgresql")


class SkippedError(Exception):
    """A server is not installed."""


class ServerDiedError(Exception):
    """A server ended, or stayed silent; the text is its log."""


@contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis that appends each write to a file, and syncs it before it answers."""
    program = _program("redis-server")
    # The path of a socket may have 107 bytes, and directories of measurements are deep.
    with TemporaryDirectory(prefix="bench") as name:
        home = Path(name)
        options = {"port": "0", "unixsocket": str(home / "s"), "dir": name, "appendonly": "yes", "save": ""}
        command = [program, *(part for key, value in options.items() for part in (f"--{key}", value))]
        with _running([*command, "--appendfsync", "always"], home, (home / "s").exists):
            yield f"unix://{home / 's'}"


@contextmanager
def postgres() -> Iterator[str]:
    """The connection string of a PostgreSQL with its own settings, which sync each commit."""
    initdb, program = _program("initdb"), _program("postgres")
    with TemporaryDirectory(prefix="bench") as name:
        home = Path(name)
        # It refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(home, user)
        command = [initdb, "-D", str(home / "data"), "-U", "bench", "-A", "trust", "-E", "UTF8"]
        subprocess.run(command, user=user, cwd=home, check=True, stdout=subprocess.DEVNULL)
        command = [program, "-D", str(home / "data"), "-k", name, "-c", "listen_addresses="]
        with _running(command, home, lambda: _is_ready(home / "data" / "postmaster.pid"), user):
            yield f"host={name} dbname=postgres user=bench"


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        # Debian keeps the programs of each version apart.
        versions = sorted(_DEBIAN.glob(f"*/bin/{name}"))
        found = str(versions[-1]) if versions else None
    if found is None:
        raise SkippedError(f"skipped: {name} is not installed")
    return found


def _is_ready(file: Path) -> bool:
    return file.exists() and "ready" in file.read_text()


@contextmanager
def _running(command: list[str], home: Path, is_ready: Callable[[], bool], user: str | None = None) -> Iterator[None]:
    log = home / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, user=user, cwd=home)
    try:
        deadline = monotonic() + _LIMIT
        while not is_ready():
            if server.poll() is not None or monotonic() > deadline:
                raise ServerDiedError(log.read_text())
            sleep(0.02)
        yield
    finally:
        server.kill()
        server.wait()
