"""What the figures were measured on: cores, disk, and the versions of all contenders."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from time import perf_counter

from benchmarks.stats import percentile

_PACKAGES = (
    "pelton",
    "apsw-sqlite3mc",
    "nats-py",
    "natsio",
    "huey",
    "persist-queue",
    "litequeue",
    "rq",
    "dramatiq",
    "saq",
    "procrastinate",
    "dbos",
)

Facts = dict[str, str | float | int]


def machine_facts(place: Path) -> Facts:
    """Return facts about the machine and the disk under `place`."""
    facts: Facts = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count() or 0,
        "load_at_start": round(os.getloadavg()[0], 2),
        "file_system": file_system(place),
        "fsync_us": round(fsync_latency(place) * 1e6, 1),
        "python": platform.python_version(),
        "interpreter": interpreter(),
        "loop_ms": round(loop_seconds() * 1000, 1),
        "sqlite_of_peers": sqlite3.sqlite_version,
        "sqlite_of_pelton": _apsw_sqlite(),
        "nats_server": nats_server_version(),
    }
    return facts | {name: package_version(name) for name in _PACKAGES}


def interpreter() -> str:
    """Return how the interpreter was built: without profile-guided optimization, loops take 1.4x as long."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    built = "with" if "--enable-optimizations" in options else "without"
    return f"{platform.python_implementation()}, built {built} profile-guided optimization"


def loop_seconds(times: int = 7) -> float:
    """Return the median seconds of a loop of a million additions: compare it before you compare two machines."""
    seconds = []
    for _ in range(times):
        start, total = perf_counter(), 0
        for number in range(1_000_000):
            total += number
        seconds.append(perf_counter() - start)
    return percentile(seconds, 0.5)


def fsync_latency(place: Path, times: int = 200) -> float:
    """Return the median seconds to append 4 KiB to a file under `place` and fsync it."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "fsync-probe"
    seconds = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            start = perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            seconds.append(perf_counter() - start)
    path.unlink()
    return percentile(seconds, 0.5)


def file_system(place: Path) -> str:
    """Return the type of the file system of `place`, "unknown" if it cannot be determined."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    best = ("", "unknown")
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split()
        if place.resolve().is_relative_to(point) and len(point) > len(best[0]):
            best = (point, kind)
    return best[1]


def package_version(name: str) -> str:
    """Return the version of an installed package, or "absent"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent" if name != "pelton" else "source tree"


def nats_server_version() -> str:
    """Return the version that the server's binary reports, or "absent"."""
    from benchmarks.peers.nats_server import binary

    try:
        said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True)
    except (metadata.PackageNotFoundError, OSError):
        return "absent"
    return said.stdout.split()[-1]


def _apsw_sqlite() -> str:
    import apsw

    return str(apsw.sqlite_lib_version())
