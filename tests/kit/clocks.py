"""Clocks that are not right, and clocks that tests move."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from pelton.cli import main as cli
from pelton.runtime import Clock, Ids, Random, Runtime, SystemClock, runtime, system_runtime


class ClockBehind(SystemClock):
    """The system's clock, with a wall clock that is ``seconds`` behind."""

    def __init__(self, seconds: float) -> None:
        self._behind_ns = round(seconds * 1e9)

    def now(self) -> int:
        return super().now() - self._behind_ns


def runtime_behind(seconds: float) -> Runtime:
    """Return a runtime whose wall clock is that much behind."""
    return replace(system_runtime(), clock=ClockBehind(seconds))


def runtime_with(clock: Clock) -> Runtime:
    """Return a runtime with another clock, whose numbers and ids are drawn anew."""
    entropy = Random()
    return Runtime(clock=clock, random=entropy, ids=Ids(entropy))


class SharedClock(SystemClock):
    """The machine's clocks, with a wall clock that is ahead by what the file ``path`` says.

    All processes that use the file see it jump at once, as all of a machine do; the time since boot is true.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        self._ahead_ns = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("q")
        os.close(descriptor)

    def now(self) -> int:
        return super().now() + self._ahead_ns[0]

    def jump_to(self, ahead_ns: int) -> None:
        """Let it be ahead by that much."""
        self._ahead_ns[0] = ahead_ns


class PassingClock(SystemClock):
    """The machine's clocks, and the time that a test lets pass on them; timers do not notice."""

    def __init__(self) -> None:
        self._passed_ns = 0

    def now(self) -> int:
        return super().now() + self._passed_ns

    def boottime(self) -> float:
        return super().boottime() + self._passed_ns / 1e9

    def let_pass(self, seconds: float) -> None:
        """Let time pass."""
        self._passed_ns += round(seconds * 1e9)


# --- the wall clock of a server that was not written in Python

CAN_STEP: Final = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether :class:`GoClock` works here."""
# Calls the kernel's clock_gettime, and adds what stands behind it to the seconds of CLOCK_REALTIME.
_BEFORE: Final = bytes.fromhex("57 56 48 83 ec 08 48 b8")
_AFTER: Final = bytes.fromhex("ff d0 48 83 c4 08 5e 5f 85 ff 75 0a 48 8b 0d 04 00 00 00 48 01 0e c3")
_ROOM: Final = 64


class _Mapping(NamedTuple):
    start: int
    end: int
    rights: str
    name: str


class GoClock:
    """The wall clock of a process of a Go program, which may be stepped; its time since boot is true.

    Such a program asks the kernel's clock_gettime, by a pointer that it looks up as it starts: the pointer is changed
    in its memory. Not for a process that was started anew.
    """

    def __init__(self, pid: int) -> None:
        self._memory = f"/proc/{pid}/mem"
        mappings = _mappings(str(pid))
        kernel, program = _named(mappings, "[vdso]"), os.readlink(f"/proc/{pid}/exe")
        asked = kernel.start + _clock_offset()
        text = next(one for one in mappings if one.name == program and "x" in one.rights)
        code, pointers = text.end - _ROOM, list[int]()
        if any(self._read(code, _ROOM)):
            raise AssertionError("there is no room in its memory")
        for one in mappings:
            if one.rights.startswith("rw") and one.name in ("", program):
                data, wanted = self._read(one.start, min(one.end - one.start, 1 << 26)), struct.pack("<Q", asked)
                pointers += [one.start + found.start() for found in re.finditer(re.escape(wanted), data)]
        (pointer,) = pointers
        written = _BEFORE + struct.pack("<Q", asked) + _AFTER
        self._ahead = code + len(written)
        self._write(code, written)
        self._write(pointer, struct.pack("<Q", code))

    def jump_to(self, ahead_s: int) -> None:
        """Let it be ahead by so many seconds."""
        self._write(self._ahead, struct.pack("<q", ahead_s))

    def _read(self, place: int, size: int) -> bytes:
        with open(self._memory, "rb", buffering=0) as memory:
            memory.seek(place)
            return memory.read(size)

    def _write(self, place: int, data: bytes) -> None:
        with open(self._memory, "r+b", buffering=0) as memory:
            memory.seek(place)
            memory.write(data)


def _mappings(process: str) -> list[_Mapping]:
    """Return what a process has in its memory."""
    lines = re.findall(r"^(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)$", Path(f"/proc/{process}/maps").read_text(), re.M)
    return [_Mapping(int(start, 16), int(end, 16), rights, name) for start, end, rights, name in lines]


def _named(mappings: list[_Mapping], name: str) -> _Mapping:
    return next(one for one in mappings if one.name == name)


def _clock_offset() -> int:
    """Return where clock_gettime is in what the kernel maps into every process."""
    function = ctypes.CDLL("linux-vdso.so.1").__vdso_clock_gettime
    place = ctypes.cast(function, ctypes.c_void_p).value
    assert place is not None
    return place - _named(_mappings("self"), "[vdso]").start


def main(path: str, *command: str) -> int:
    """Run a command of `pelton` under the :class:`SharedClock` of a file."""
    vars(runtime).update(SystemClock=lambda: SharedClock(Path(path)))
    sys.argv = ["pelton", *command]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
