"""SIGHUP: users and limits change while the server runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.kit.served import ServedStore, served_store
from tests.server.auth.real import BareClient

BEFORE = """
max_payload: 100
accounts {
  A { users: [{user: stays, password: p}, {user: goes, password: p}, {user: changes, password: p},
              {user: narrows, password: p, permissions: {sub: ["a", "b"]}}] }
}
"""
AFTER = """
max_payload: 10
accounts {
  A { limits { max_conn: 3 }
      users: [{user: stays, password: p}, {user: changes, password: other}, {user: comes, password: p},
              {user: narrows, password: p, permissions: {sub: ["a"], pub: {deny: "no"}}}] }
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedStore]:
    (tmp_path / "pelton.conf").write_text(BEFORE)
    with served_store(None, ("-c", str(tmp_path / "pelton.conf"))) as running:
        yield running


def reload(server: ServedStore, folder: Path, text: str, expected: str) -> None:
    (folder / "pelton.conf").write_text(text)
    server.signal(signal.SIGHUP)
    while expected not in server.log:
        server.pid  # noqa: B018  # fails if the server has ended
    assert "Traceback" not in server.log


def test_users_and_limits_are_read_again(server: ServedStore, tmp_path: Path) -> None:
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(closing(BareClient(server.port, {"user": name, "pass": "p"})))
            for name in ("stays", "goes", "changes", "narrows")
        }
        for client in clients.values():
            assert client.ask("SUB a 1", "SUB b 2")
        reload(server, tmp_path, AFTER, "Reloaded server configuration")
        assert clients["stays"].ask("PUB a 0\r\n")
        assert not clients["goes"].ask()
        assert clients["goes"].errors[0] == "Authorization Violation"
        assert not clients["changes"].ask()
        assert not clients["narrows"].ask()
        assert clients["narrows"].errors == ['Permissions Violation for Subscription to "b"']
        assert clients["narrows"].received == ["a"]
        assert not clients["narrows"].ask("PUB no 0\r\n")
        assert clients["stays"].ask("PUB a 0\r\n", "PUB b 0\r\n")
        clients["narrows"].ask()
        assert clients["narrows"].received == ["a"]
        # Two are connected, three may be.
        new = stack.enter_context(closing(BareClient(server.port, {"user": "comes", "pass": "p"})))
        assert new.ask()
        assert new.info["max_payload"] == 10
        refused = stack.enter_context(closing(BareClient(server.port, {"user": "changes", "pass": "other"})))
        assert not refused.ask()
        assert refused.errors[0] == "maximum account active connections exceeded"


def test_a_mistake_changes_nothing(server: ServedStore, tmp_path: Path) -> None:
    with closing(BareClient(server.port, {"user": "goes", "pass": "p"})) as client:
        assert client.ask()
        reload(server, tmp_path, "max_payload: x", "max_payload must be an integer")
        reload(server, tmp_path, "accounts { B {} }", "restart it")
        assert client.ask()
    with closing(BareClient(server.port, {"user": "goes", "pass": "p"})) as client:
        assert client.ask()
