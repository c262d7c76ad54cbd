"""A Celery application whose broker and results are one file; a process of its worker is killed, and nothing is lost.

Install ``pelton[celery]``. Its worker: ``celery -A celery_shop worker``; its beat: ``celery -A celery_shop beat``.

Run as a program, it starts a worker, kills one of its two processes in the middle of a task, and waits for the results.
Prints::

    killed in the middle of order 1
    ['order 1 is paid', 'order 2 is paid', 'order 3 is paid']
    order 1 was begun 2 times
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery, group

import pelton.contrib.kombu  # noqa: F401  # makes pelton:// known

app = Celery("celery_shop", broker="pelton://shop.pelton", backend="pelton://shop.pelton")
app.conf.update(
    task_acks_late=True,  # a task whose process dies is run again
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
)
BEGUN = Path("begun")
GO = Path("go")


@app.task  # type: ignore[untyped-decorator]
def pay(order: int) -> str:
    with BEGUN.open("a") as begun:
        print(order, os.getpid(), file=begun)
    while order == 1 and not GO.exists():
        time.sleep(0.02)
    return f"order {order} is paid"


def begun(order: int) -> list[int]:
    """Return the processes in which an order was begun."""
    lines = [line.split() for line in BEGUN.read_text().splitlines()] if BEGUN.exists() else []
    return [int(pid) for number, pid in lines if int(number) == order]


def main() -> None:
    command = [sys.executable, "-m", "celery", "-A", "celery_shop", "--workdir", ".", "worker", "-c", "2"]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    worker = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        paid = group(pay.s(order) for order in (1, 2, 3)).delay()
        while not begun(1):
            time.sleep(0.02)
        os.kill(begun(1)[0], signal.SIGKILL)
        print("killed in the middle of order 1")
        GO.touch()
        print(paid.get(timeout=60))
        print(f"order 1 was begun {len(begun(1))} times")
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
