"""Opens stores: turns an address into a backend, and a backend into an open store."""

from pelton.connect.opening import ClusterOptions as ClusterOptions
from pelton.connect.opening import Leaf as Leaf
from pelton.connect.opening import Opening as Opening
from pelton.connect.opening import open as open
from pelton.connect.store import Jet as Jet
