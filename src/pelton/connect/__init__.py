"""Opens stores: turns an address into a backend, and a backend into an open store."""

from pelton.connect.opening import ClusterOptions, Opening, open
from pelton.connect.store import Jet

__all__ = ["ClusterOptions", "Jet", "Opening", "open"]
