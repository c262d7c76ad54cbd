"""What ``nats stream backup`` and ``restore`` do, with requests of nats-py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from pelton.server.archive import FrameReader


class Backup:
    """A stream's backup: the answer to the request, and the archive."""

    def __init__(self, about: dict[str, Any], data: bytes, end: dict[str, str] | None) -> None:
        self.about = about
        self.data = data
        self.end = end

    @property
    def content(self) -> bytes:
        """The archive, decompressed."""
        return b"".join(FrameReader().feed(self.data))


async def asked(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.request(subject, json.dumps(body).encode(), timeout=60)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def backup(client: Client, stream: str, **options: Any) -> Backup:
    """Take a backup."""
    parts: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = client.new_inbox()
    told = await client.subscribe(inbox, cb=parts.put)
    await client.flush()
    about = await asked(client, f"$JS.API.STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox} | options)
    data = b""
    while True:
        part = await asyncio.wait_for(parts.get(), 60)
        if part.reply:
            await client.publish(part.reply, b"")
        data += part.data
        if not part.data:
            break
    await told.unsubscribe()
    return Backup(about, data, dict(part.headers or {}))


async def restore(
    client: Client, taken: Backup, *, size: int = 50_000, data: bytes | None = None, **config: Any
) -> dict[str, Any]:
    """Restore a backup; return the answer to the last chunk, or the refusal."""
    wanted = taken.about["config"] | config
    whole = taken.data if data is None else data
    begun = await asked(
        client, f"$JS.API.STREAM.RESTORE.{wanted['name']}", {"config": wanted, "state": taken.about["state"]}
    )
    if "error" in begun:
        return begun
    into = begun["deliver_subject"]
    for at in range(0, len(whole), size):
        answer = await client.request(into, whole[at : at + size], timeout=60)
        assert not answer.data
    last: dict[str, Any] = json.loads((await client.request(into, b"", timeout=20)).data)
    return last
