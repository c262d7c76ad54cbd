"""A command on a terminal of its own, of 80 columns and 24 lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import Final, Self

_LIMIT_S: Final = 30
_STYLES: Final = re.compile(r"\x1b\[[0-9;]*[mHJ]|\r")


class Terminal:
    """A command that runs on it: what it shows can be waited for, and keys pressed."""

    def __init__(self, *words: object, columns: int = 80, lines: int = 24) -> None:
        self._screen, keyboard = pty.openpty()
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pelton", *map(str, words)],
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
            env=environment | {"TERM": "xterm"},
        )
        os.close(keyboard)
        self._shown = ""

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> str:
        """Return what was shown since the last call, up to and with a text, without styles."""
        while text not in self._shown and self._read():
            pass
        assert text in self._shown, (text, self._shown)
        before, _, self._shown = self._shown.partition(text)
        return _STYLES.sub("", before + text)

    def end(self) -> tuple[int, list[str]]:
        """Wait for the end; return the status, and the lines that were shown, without their styles."""
        with self:
            while self._read():
                pass
            return self._process.wait(_LIMIT_S), _STYLES.sub("", self._shown).splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_LIMIT_S)
        with suppress(OSError):
            os.close(self._screen)

    def _read(self) -> bool:
        """Read more; False at the end, or if nothing comes."""
        part = b""
        # At the end of the command there is nothing more to be read.
        with suppress(OSError):
            if select.select([self._screen], [], [], _LIMIT_S)[0]:
                part = os.read(self._screen, 65_536)
        self._shown += part.decode(errors="replace")
        return bool(part)
