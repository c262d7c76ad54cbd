"""The dashboard beside the demo, in a process of its own, if its extra is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_NEEDS: Final = ("starlette", "uvicorn", "jinja2", "prometheus_client")
_STOP_S: Final = 5.0


@contextmanager
def live_page(store: Path) -> Iterator[str]:
    """Serve the dashboard of a store file, and yield its address; empty if it can't be served."""
    if not all(map(find_spec, _NEEDS)):
        yield ""
        return
    # The interactive interrupt is the demo's, which ends the page as well.
    command = [sys.executable, "-m", "pelton", "dashboard", str(store), "--port", "0"]
    page = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert page.stdout is not None
        yield page.stdout.readline().rpartition(" ")[2].strip()
    finally:
        page.terminate()
        try:
            page.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
        if page.stdout is not None:
            page.stdout.close()
