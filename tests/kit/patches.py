"""Sets names of modules for a while, where there is no test whose end would set them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(module: Any, **values: Any) -> Iterator[None]:
    """Set names of a module for as long as the context lasts."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
