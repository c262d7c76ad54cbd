"""A network between a client and a server that a test cuts and restores: every byte passes through here."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

_PART: Final = 1 << 16
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Network:
    """Forwards connections to a port of this machine. It belongs to the event loop it was started on."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._up = asyncio.Event()
        self._up.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = -1
        self.carried = 0
        """Bytes that came through, both ways."""
        self.held = 0
        """Parts that were sent into silence since it began."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._up.set()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        """Reset all connections, and every new one."""
        self._refuses = True
        self.reset()

    def silence(self) -> None:
        """Silently stop forwarding."""
        self.held = 0
        self._up.clear()

    def reset(self) -> None:
        """Reset all connections: data on its way is lost."""
        for writer in list(self._writers):
            if writer.transport.is_closing():
                continue
            # No orderly close, and no more of the written data.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()

    def mend(self) -> None:
        """Forward again; data held during the silence arrives late."""
        self._refuses = False
        self._up.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._to)
                self._writers.add(back)
                if self._refuses:
                    self.reset()
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        writing = asyncio.create_task(self._write(parts, writer))
        try:
            while part := await reader.read(_PART):
                self.held += not self._up.is_set()
                parts.put_nowait(part)
        except OSError:
            pass
        finally:
            # A close on one side closes the other; in silence it is not forwarded.
            parts.put_nowait(b"")
            await writing

    async def _write(self, parts: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await parts.get():
                await self._up.wait()
                writer.write(part)
                await writer.drain()
                self.carried += len(part)
            await self._up.wait()
        self._writers.discard(writer)
        writer.transport.abort()


@asynccontextmanager
async def network(port: int) -> AsyncIterator[Network]:
    """Run a network in front of a port for as long as the context lasts."""
    one = Network(port)
    await one.start()
    try:
        yield one
    finally:
        await one.close()
