"""Pelton as a broker of kombu, and so of Celery: ``broker_url = "pelton:///shop.pelton"``.

Importing this makes the name ``pelton`` known to kombu, which finds transports by a table of its own. A program that is
configured without imports (Django's settings) names the class instead: ``broker_transport =
"pelton.contrib.kombu:Transport"``.
"""

from kombu.transport import TRANSPORT_ALIASES

from pelton.contrib.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES.setdefault("pelton", "pelton.contrib.kombu:Transport")
