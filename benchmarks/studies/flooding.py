"""Clients that flood a server, each in its own way: ``python -m benchmarks.studies.flooding WAY PORT HTTP_PORT``.

One prepares, writes "ready", and begins when it reads a line. It goes on until it is killed.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

MANY: Final = 400_000
_AT_ONCE: Final = 200
_API: Final = "$JS.API."
_STREAM: Final = {"name": "S", "subjects": ["s.>"], "storage": "memory", "max_msgs": 10_000}
# Requests that are wrong, long, or ask for much.
_ODD: Final[tuple[tuple[str, bytes], ...]] = (
    ("STREAM.CREATE.odd", b"{" * 2000),
    ("STREAM.CREATE.odd", b'{"name":"odd","subjects":[%b]}' % b",".join(b'"a.%d.*"' % n for n in range(3000))),
    ("STREAM.UPDATE.S", json.dumps(_STREAM | {"subjects": [">", "s.>", "*"]}).encode()),
    ("STREAM.NAMES", b'{"offset":-5,"subject":"a b"}'),
    ("STREAM.LIST", b"[]"),
    ("STREAM.INFO.S", b'{"deleted_details":true,"subjects_filter":">"}'),
    ("STREAM.MSG.GET.S", b'{"seq":18446744073709551615}'),
    ("STREAM.PURGE.S", b'{"filter":"s.>","seq":5,"keep":7}'),
    ("CONSUMER.CREATE.S.odd", b'{"stream_name":"S","config":{"filter_subjects":[%b]}}' % b",".join([b'"s.*"'] * 3000)),
    ("CONSUMER.INFO.S.nobody", b""),
    ("CONSUMER.MSG.NEXT.S.nobody", b'{"batch":1000000,"expires":1}'),
    ("DIRECT.GET.S", b'{"multi_last":[">"],"batch":100000}'),
    ("META.LEADER.STEPDOWN", b"{}"),
    ("NOTHING.LIKE.THIS", b"\0" * 100),
    ("INFO", b"x" * 5000),
)


class Flooder:
    """The client; ``ready`` ends its preparations."""

    def __init__(self, port: int, http_port: int) -> None:
        self._port = port
        self._http_port = http_port

    def connect(self, *, user: str = "f", reads: bool = True, echo: bool = True) -> socket.socket:
        """Return a connection; what it gets is read and dropped if it ``reads``."""
        made = socket.create_connection(("127.0.0.1", self._port))
        made.sendall(
            b"CONNECT %b\r\n" % json.dumps({"user": user, "pass": "p", "verbose": False, "echo": echo}).encode()
        )
        if reads:
            threading.Thread(target=_drain, args=(made,), daemon=True).start()
        return made

    def subscribed(self, lines: Iterator[bytes], **options: Any) -> socket.socket:
        """Return a connection with very many subscriptions, of which the server knows."""
        made = self.connect(reads=False, **options)
        for some in batched(itertools.islice(lines, MANY)):
            made.sendall(some)
        made.sendall(b"PING\r\n")
        received = b""
        while not received.endswith(b"PONG\r\n"):
            received = (received + made.recv(65536))[-100:]
        threading.Thread(target=_drain, args=(made,), daemon=True).start()
        return made

    def ready(self) -> None:
        """Say so, and wait for the beginning."""
        print("ready", flush=True)
        sys.stdin.readline()

    def get(self, path: str) -> None:
        """Ask for a report."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/{path}") as answer:
            answer.read()

    def flood(self, lines: Iterator[bytes], *, at_once: int = _AT_ONCE, **options: Any) -> None:
        """Send lines without end."""
        made = self.connect(**options)
        self.ready()
        for some in batched(lines, at_once):
            made.sendall(some)


def batched(lines: Iterator[bytes], at_once: int = _AT_ONCE) -> Iterator[bytes]:
    """Join lines."""
    while some := b"".join(itertools.islice(lines, at_once)):
        yield some


def each(text: str) -> Iterator[bytes]:
    """Lines with ever new numbers."""
    return (text.replace("#", str(number)).encode() + b"\r\n" for number in itertools.count())


def publishes(size: int, subject: str = "nobody") -> Iterator[bytes]:
    """One message again and again."""
    return itertools.repeat(f"PUB {subject} {size}\r\n".encode() + bytes(size) + b"\r\n")


def _drain(made: socket.socket) -> None:
    try:
        while data := made.recv(1 << 20):
            if b"PING\r\n" in data:
                made.sendall(b"PONG\r\n")
    except OSError:
        return


def _request(subject: str, body: bytes) -> bytes:
    return f"PUB {subject} in {len(body)}\r\n".encode() + body + b"\r\n"


def _subscriber(flooder: Flooder, size: int, at_once: int) -> None:
    flooder.connect().sendall(b"SUB x 1\r\n")
    flooder.flood(publishes(size, "x"), at_once=at_once)


def _slow_reader(flooder: Flooder) -> None:
    sender = flooder.connect()
    flooder.ready()
    while True:
        reader = flooder.connect(reads=False)
        reader.sendall(b"SUB x 1\r\n")
        for some in itertools.islice(batched(publishes(1024, "x")), 500):
            sender.sendall(some)
        reader.close()


def _leaves(flooder: Flooder, line: str) -> None:
    made = flooder.subscribed(each(line))
    flooder.ready()
    made.shutdown(socket.SHUT_RDWR)
    time.sleep(3600)


def _stays(flooder: Flooder, then: Callable[[socket.socket], None], line: str = "SUB many.# #", **options: Any) -> None:
    made = flooder.subscribed(each(line), **options)
    flooder.ready()
    then(made)
    time.sleep(3600)


def _one_to_many(made: socket.socket) -> None:
    for number in itertools.count():
        made.sendall(b"SUB other.%d o%d\r\nPUB x 1\r\nx\r\n" % (number, number))
        time.sleep(0.02)


def _reports(flooder: Flooder, path: str) -> None:
    def ask(made: socket.socket) -> None:
        while True:
            flooder.get(path)

    _stays(flooder, ask)


def _api(flooder: Flooder, requests: Iterable[tuple[str, bytes]]) -> None:
    made = flooder.connect()
    made.sendall(b"SUB in 1\r\n" + _request(f"{_API}STREAM.CREATE.S", json.dumps(_STREAM).encode()))
    flooder.ready()
    for some in batched((_request(subject, body) for subject, body in requests), 50):
        made.sendall(some)


def _calls(*calls: tuple[str, bytes]) -> Iterator[tuple[str, bytes]]:
    return itertools.cycle([(f"{_API}{verb}", body) for verb, body in calls])


def _passwords(flooder: Flooder) -> None:
    flooder.ready()
    while True:
        made = [flooder.connect(user="g", reads=False) for _ in range(20)]
        for one in made:
            try:
                while one.recv(65536):
                    pass
            except OSError:
                pass
            one.close()


def _connections(flooder: Flooder) -> None:
    flooder.ready()
    while True:
        for one in [flooder.connect(reads=False) for _ in range(20)]:
            one.close()


WAYS: Final[dict[str, Callable[[Flooder], None]]] = {
    "128 bytes to nobody": lambda one: one.flood(publishes(128)),
    "128 bytes to a subscriber": lambda one: _subscriber(one, 128, 200),
    "1 MB to nobody": lambda one: one.flood(publishes(1 << 20), at_once=1),
    "1 MB to a subscriber": lambda one: _subscriber(one, 1 << 20, 1),
    "to ever new subjects": lambda one: one.flood(each("PUB new.# 1\r\nx")),
    "to a subscriber that reads nothing": _slow_reader,
    "subscribes to ever new subjects": lambda one: one.flood(each("SUB new.# #")),
    "in ever new queue groups": lambda one: one.flood(each("SUB new.# group# #")),
    "in 500 groups, and leaves them": lambda one: one.flood(
        itertools.cycle(itertools.islice(each("SUB new.# group# #\r\nUNSUB #"), 500))
    ),
    "to ever new wildcards, and publishes": lambda one: one.flood(each("SUB *.#.*.> #\r\nPUB a.#.b.c 1\r\nx")),
    "subscribes and unsubscribes": lambda one: one.flood(each("SUB new.# #\r\nUNSUB #")),
    "leaves with 400,000 subjects": lambda one: _leaves(one, "SUB many.# #"),
    "leaves with 400,000 on one subject": lambda one: _leaves(one, "SUB x #"),
    "400,000 end after one message": lambda one: _stays(
        one, lambda made: made.sendall(b"PUB x 1\r\nx\r\n"), "SUB x #\r\nUNSUB # 1"
    ),
    "400,000 on one subject, new ones, echo off": lambda one: _stays(one, _one_to_many, "SUB x #", echo=False),
    "loses the right to 400,000": lambda one: _stays(one, lambda made: None),
    "/connz?subs=1 of 400,000": lambda one: _reports(one, "connz?subs=1"),
    "/subsz?subs=1 of 400,000": lambda one: _reports(one, "subsz?subs=1&limit=1000000"),
    "STREAM.INFO": lambda one: _api(one, _calls(("STREAM.INFO.S", b""))),
    "odd requests to $JS.API": lambda one: _api(one, _calls(*_ODD)),
    "to a stream": lambda one: _api(one, ((f"s.{number}", bytes(128)) for number in itertools.count())),
    "wrong passwords (bcrypt)": _passwords,
    "connections": _connections,
}


def main() -> None:
    """Flood in the way that is asked for."""
    way, port, http_port = sys.argv[1:]
    try:
        WAYS[way](Flooder(int(port), int(http_port)))
    except OSError:
        # It was cut: that may be the server's way to end it.
        time.sleep(3600)


if __name__ == "__main__":
    main()
