"""A live page on a store or a cluster, as an ASGI app. Needs ``pelton[dashboard]``."""

from pelton.dashboard.access import AccessToken
from pelton.dashboard.app import app

__all__ = ["AccessToken", "app"]
