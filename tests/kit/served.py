"""``pelton serve`` as a process of its own, on a free port; for tests against the real thing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pelton.server.settings.grammar import ReadFile
from pelton.server.settings.load import CommandLine, LoadedConfig, config_of_command

_START_S: Final = 30.0
_LISTENING: Final = re.compile(rb"Listening for client connections on (\S+):(\d+)")
_READY: Final = b"Server is ready"


def config_of(
    text: str, *, file: str = "config", read: ReadFile, environment: Mapping[str, str] | None = None
) -> LoadedConfig:
    """Return the settings of a configuration; ``read`` returns the text of another file."""
    line = CommandLine(("a.pelton",), {"config": file}, ())
    return config_of_command(line, read=lambda path: text if path == file else read(path), environment=environment)


class ServedStoreError(Exception):
    """The server ended, or did not start in time; the text is its log."""


class ServedStore:
    """A server that can be killed and started again on the same port and file; ``flags`` are added to its command.

    Without a store, the flags say what is served. ``module`` is run instead of pelton, with the arguments ``given``
    before its command.
    """

    def __init__(
        self, store: Path | None, flags: Sequence[str] = (), *, module: str = "pelton", given: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._flags = flags
        self._program = ["-m", module, *given]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: list[bytes] = []
        self.port = -1

    @property
    def url(self) -> str:
        """The address it listens on."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has written to its standard error, lately."""
        return b"".join(self._log).decode(errors="replace")

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it accepts connections. Raises ServedStoreError."""
        # Of its own: who reads the log of the last one may not have seen its end.
        ready = threading.Event()
        self._log.clear()
        store = [] if self._store is None else [str(self._store)]
        command = [sys.executable, *self._program, "serve", *store, "-p", str(self.port), *self._flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        threading.Thread(target=self._read, args=(self._process, ready), daemon=True).start()
        if not ready.wait(_START_S) or self._process.poll() is not None:
            self.kill()
            raise ServedStoreError(self.log)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once; its file stays. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> int:
        """Shut it down gracefully; return its exit status. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        return process.wait(_START_S)

    def wait(self) -> int:
        """Wait until it has ended by itself; return its exit status."""
        assert self._process is not None
        return self._process.wait(_START_S)

    def _read(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        """Read its log, so that the pipe never fills."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self._log = [*self._log[-200:], line]
                if found := _LISTENING.search(line):
                    self.port = int(found[2])
                if _READY in line:
                    ready.set()
        # It has ended: wake those that wait for it.
        ready.set()


@contextmanager
def served_store(store: Path | None, flags: Sequence[str] = ()) -> Iterator[ServedStore]:
    """Serve a store for as long as the context lasts."""
    server = ServedStore(store, flags)
    server.start()
    try:
        yield server
    finally:
        server.kill()
