"""A job for child processes, none of which can import this module."""

import os
from multiprocessing import parent_process

import pelton

jobs = pelton.Jobs()
if parent_process() is not None:
    if os.environ.get("NO_IMPORT") == "exit":
        os._exit(3)
    raise ImportError("not in a child")


@jobs.job(process=True, max_attempts=2, backoff=[0.01])
def never() -> None: ...
