"""Drivers that are separate programs, so that they can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.spark.session import ROOT

Driver = subprocess.Popen[bytes]
_PATIENCE_S = 600
_PAUSE_S = 0.05


def start(module: str, *arguments: object) -> Driver:
    """Start a module as a driver, in a process group of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True)


@contextmanager
def killing(module: str, *arguments: object) -> Iterator[Driver]:
    """Start a driver; at the end it is killed, with its JVM. Executors' processes end by themselves a little later."""
    driver = start(module, *arguments)
    try:
        yield driver
    finally:
        kill(driver)


def kill(driver: Driver) -> None:
    """Kill a driver with its JVM. Idempotent."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def wait_until(condition: Callable[[], object], driver: Driver) -> None:
    """Wait for a driver's progress. AssertionError if it ends, or takes far too long."""
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert driver.poll() is None, "the driver ended"
        assert time.monotonic() < end, "in vain"
        time.sleep(_PAUSE_S)
