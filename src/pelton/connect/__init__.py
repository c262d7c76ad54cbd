"""Where the two towers meet: an address becomes a backend, and a backend an open store."""

from pelton.connect.opening import ClusterOptions, Opening, open
from pelton.connect.store import Jet

__all__ = ["ClusterOptions", "Jet", "Opening", "open"]
