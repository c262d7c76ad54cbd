"""Celery's results in a bucket: ``result_backend = "pelton:///shop.pelton"``.

The broker is ``pelton.contrib.kombu``; importing this makes it known to kombu, too.
"""

from pelton.contrib.celery.backend import PeltonResultBackend
from pelton.contrib.kombu import Transport

__all__ = ["PeltonResultBackend", "Transport"]
