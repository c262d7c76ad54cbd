"""Cases that run in turn, so that a busy machine slows all of them alike."""

import time
from collections.abc import Callable
from typing import NamedTuple

Case = Callable[[], object]


class Result(NamedTuple):
    """The best of a case's rounds, in seconds, and what that is in rows a second."""

    name: str
    seconds: float
    rate: float

    def __str__(self) -> str:
        return f"{self.name:44} {self.seconds:8.3f} s {self.rate / 1e6:7.2f} M rows/s"


def best_of(cases: dict[str, Case], rows: int, rounds: int) -> dict[str, Result]:
    """Play the cases one after another, ``rounds`` times and once before to warm up; return the best of each."""
    seconds = dict.fromkeys(cases, float("inf"))
    for round_ in range(rounds + 1):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            if round_:
                seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: Result(name, best, rows / best) for name, best in seconds.items()}


def peak_memory(folder: str = "/proc") -> int:
    """Return the largest resident memory, in MiB, that a Python process of Spark's has had so far."""
    import glob
    import os

    peaks = [0]
    for status in glob.glob(f"{folder}/[0-9]*/status"):
        try:
            with open(os.path.join(os.path.dirname(status), "cmdline"), "rb") as command:
                if (
                    b"pyspark" not in command.read()
                    or b"java" in os.readlink(f"{os.path.dirname(status)}/exe").encode()
                ):
                    continue
            with open(status) as facts:
                peaks += [int(line.split()[1]) // 1024 for line in facts if line.startswith("VmHWM")]
        except OSError:
            continue  # it has ended
    return max(peaks)
