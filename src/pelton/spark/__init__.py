"""Streams as Spark DataFrames, through PySpark's data source API. Needs the extra: ``pip install 'pelton[spark]'``.

Spark finds ``format("pelton")`` by itself if Pelton is installed; call :func:`register` if it isn't (code that is
shipped with the job).
"""

from __future__ import annotations

import sys

try:
    from pelton.spark.options import DataLossError, LateReplayError
    from pelton.spark.read.ranges import lag
    from pelton.spark.source import PeltonSource, register
    from pelton.spark.store_handle import choose_for_this_process
    from pelton.spark.work.executors import Worked, enqueue_from, work
    from pelton.spark.work.job_rows import MissingRowError, RowError
except ModuleNotFoundError as _missing:
    if _missing.name is None or _missing.name.partition(".")[0] not in (
        "pyspark",
        "py4j",
        "pyarrow",
        "numpy",
        "pandas",
    ):
        raise
    raise ImportError(
        f"pelton.spark needs {_missing.name}, which is not installed: pip install 'pelton[spark]'", name=_missing.name
    ) from None

choose_for_this_process(sys.executable)

__all__ = [
    "DataLossError",
    "LateReplayError",
    "MissingRowError",
    "PeltonSource",
    "RowError",
    "Worked",
    "enqueue_from",
    "lag",
    "register",
    "work",
]
