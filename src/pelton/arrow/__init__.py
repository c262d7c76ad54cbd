"""Streams and queues for Polars, DuckDB, pandas, Delta and Parquet. Needs the extra: ``pip install 'pelton[arrow]'``.

``pelton.arrow.open("shop.pelton").stream("orders")`` is a ``pyarrow.RecordBatchReader``.
"""

from __future__ import annotations

try:
    from pelton.arrow.arrow_store import ArrowStore, open
except ModuleNotFoundError as _missing:
    if _missing.name is None or _missing.name.partition(".")[0] not in ("pyarrow", "numpy"):
        raise
    raise ImportError(
        f"pelton.arrow needs {_missing.name}, which is not installed: pip install 'pelton[arrow]'", name=_missing.name
    ) from None

__all__ = ["ArrowStore", "open"]
