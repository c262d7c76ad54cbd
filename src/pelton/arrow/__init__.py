"""Streams and queues for Polars, DuckDB, pandas, Delta and Parquet. Needs the extra: ``pip install 'pelton[arrow]'``.

``pelton.arrow.open("shop.pelton").stream("orders")`` is a ``pyarrow.RecordBatchReader``.
"""

from __future__ import annotations

try:
    from pelton.arrow.store import ArrowStore, open
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("pyarrow", "numpy"):
        raise
    raise ImportError(
        f"pelton.arrow needs {error.name}, which is not installed: pip install 'pelton[arrow]'", name=error.name
    ) from None

__all__ = ["ArrowStore", "open"]
