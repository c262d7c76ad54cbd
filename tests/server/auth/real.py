"""A client of the bare protocol, to see what a real server answers."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from typing import Any


class BareClient:
    """A connection; ``fields`` are those of CONNECT, or a function of the server's nonce that returns them."""

    def __init__(self, port: int, fields: dict[str, Any] | Callable[[str], dict[str, Any]]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self.info = json.loads(self._file.readline()[len("INFO ") :])
        said = fields(self.info.get("nonce", "")) if callable(fields) else fields
        common = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self.send(f"CONNECT {json.dumps(common | said)}")
        self.errors: list[str] = []
        self.received: list[str] = []
        self.first: list[str] = []

    def send(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\r\n")

    def ask(self, *lines: str) -> bool:
        """Send lines; return whether the server accepted them all. What it said is in ``errors`` and ``received``."""
        self.errors, self.received = [], []
        try:
            for line in (*lines, "PING"):
                self.send(line)
            while (line := self._file.readline().decode().strip()) != "PONG":
                if line.startswith("-ERR"):
                    self.errors.append(line[len("-ERR '") : -1])
                elif line.startswith(("MSG", "HMSG")):
                    self.received.append(line.split(" ")[1])
                    self._file.read(int(line.rsplit(" ", 1)[1]) + 2)
                elif line == "PING":
                    self.send("PONG")
                elif not line:
                    self.errors.append("")
                    break
        except OSError as error:
            self.errors.append(str(error))
        return not self.errors

    def request(self, subject: str, data: str = "") -> str:
        """Return the next message after a request: its answer, if nothing else was asked for."""
        self.send("SUB answer answer")
        self.send(f"PUB {subject} answer {len(data)}\r\n{data}")
        answer = self.next_message()
        self.send("UNSUB answer")
        return answer

    def next_message(self) -> str:
        """Wait for the next message, and return all of it but its first line."""
        while not (line := self._file.readline().decode()).startswith(("MSG", "HMSG")):
            if line.startswith("PING"):
                self.send("PONG")
            assert line, "the server has closed the connection"
        self.first = line.split()
        return str(self._file.read(int(self.first[-1]) + 2).decode().strip())

    def next_reply(self) -> str:
        """Wait for the next message, a request, and return where its answer goes."""
        self.next_message()
        return self.first[3]

    @property
    def is_answered(self) -> bool:
        """Whether anything waits to be read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        self._file.close()
        self._socket.close()
