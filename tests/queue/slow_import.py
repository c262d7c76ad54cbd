"""A job for child processes, each of which takes long to import this module."""

import os
import time
from multiprocessing import parent_process

import pelton

jobs = pelton.Jobs()
if parent_process() is not None:
    time.sleep(float(os.environ.get("SLOW_IMPORT", "0.5")))


@jobs.job(process=True, timeout=0.4, max_attempts=1)
def quick(n: int) -> int:
    if n < 0:
        time.sleep(3600)
    return n


def work(number: int) -> None: ...
