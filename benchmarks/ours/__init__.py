"""How Pelton does the work of a case, with its public API only."""

from typing import Literal

Sync = Literal["commit", "interval", "off"]
