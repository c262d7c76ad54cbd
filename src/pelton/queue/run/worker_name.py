"""The name of a worker, as outcomes record it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pelton.runtime import Ids


def worker_name(ids: Ids) -> str:
    """Return a name for a worker of this process."""
    return f"{os.getpid()}-{ids.new()[-6:]}"
