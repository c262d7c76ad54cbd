"""Durable streams and exclusive work, embedded in a Python program.

async with pelton.open("garage.pelton") as jet:
    await jet.create_stream("orders", subjects=["orders.>"])
    await jet.publish("orders.eu.1", b"...")
"""

from pelton.api import *  # noqa: F403  # the vocabulary is public as a whole; api.__all__ says what it is
from pelton.api import __all__ as _vocabulary
from pelton.connect import open
from pelton.jet import Consumer, Jet, Message, Metadata, Stream

__version__ = "0.1.0"

__all__ = [*_vocabulary, "Consumer", "Jet", "Message", "Metadata", "Stream", "open"]  # names
