"""Servers of tests/server."""

from tests.server.conftest import started

__all__ = ["started"]
