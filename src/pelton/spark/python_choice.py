"""Which Python Spark's workers run: this one, unless the program or its cluster decides.

Spark starts ``python3`` from the path. A program that an environment's Python runs without activation would get
another one there, without Pelton, and the error is that there is no format of this name.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import MutableMapping
from typing import Final

from pyspark import SparkContext

_DECIDED: Final = (
    # The user decides.
    "PYSPARK_PYTHON",
    # spark-submit has started the JVM, which decides; a worker does not start workers.
    "PYSPARK_GATEWAY_PORT",
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
)


def choose_python(environ: MutableMapping[str, str], executable: str, running: str | None) -> str | None:
    """Set the workers' Python for a session that starts later; return a warning if one runs that started another.

    ``running`` is the Python that the workers of a running session have, None without a session.
    """
    if not executable or any(name in environ for name in _DECIDED):
        return None
    if running is None:
        environ["PYSPARK_PYTHON"] = executable
        environ.setdefault("PYSPARK_DRIVER_PYTHON", executable)
        return None
    if os.path.abspath(running) == os.path.abspath(executable):
        return None
    return (
        f"Spark's workers run {running}, not {executable}: without Pelton there, format('pelton') is not found; "
        "import pelton.spark before you start the session, or set PYSPARK_PYTHON"
    )


def python_of_session() -> str | None:
    """Return the Python that the running session's workers have; None without a session."""
    context = SparkContext._active_spark_context
    if context is None:
        return None
    return shutil.which(context.pythonExec) or context.pythonExec


def choose_for_this_process(executable: str) -> None:
    """Choose, and warn."""
    warning = choose_python(os.environ, executable, python_of_session())
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=3)
