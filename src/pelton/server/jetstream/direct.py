"""Direct gets of clients (ADR-31).

A batch is read and sent in pages, as the client keeps up: all of it may be larger than what may wait for a client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from pelton.api import ApiError, DirectGetDisabledError, DirectReply, PeltonError, StreamNotFoundError
from pelton.api.direct import MAX_BYTES
from pelton.api.direct_frames import WireGet, direct_frames, direct_refusal, direct_request
from pelton.runtime import Runtime
from pelton.server.jetstream.link import StoreLink
from pelton.server.ports import Published
from pelton.wire import status_block

_PAGE: Final = 1 << 20
_PAUSE_S: Final = 0.005


class DirectGetService:
    """Answers direct gets."""

    def __init__(
        self,
        link: StoreLink,
        answer: Callable[[str, bytes | None, bytes], None],
        receives: Callable[[str], bool],
        has_room: Callable[[str], bool],
        runtime: Runtime,
    ) -> None:
        self._link = link
        self._answer = answer
        self._receives = receives
        self._has_room = has_room
        self._runtime = runtime

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; ``path`` is the stream, and the subject whose last message is wanted."""
        stream, _, subject = path.partition(".")
        if not message.reply:
            return True
        try:
            request = direct_request(subject, message.data)
        except ApiError as error:
            self._refuse(message.reply, error)
            return True
        self._link.spawn(message.client, self._get(stream, request, message), "pelton answers a direct get")
        return True

    async def _get(self, stream: str, request: WireGet, message: Published) -> None:
        reply, subject = message.reply, message.subject
        try:
            await self._link.storing.up_to_here()
            # A mirror of it may answer: this is told, and is no request to the mirror itself.
            name = self._link.serving.answering_directly(stream)
            if request.batch > 0 or request.multi_last:
                await self._get_pages(stream, name, request, reply)
            else:
                self._send(reply, name, request, await self._link.engine.direct_get(stream, request))
        except (StreamNotFoundError, DirectGetDisabledError):
            self._answer(reply, status_block(503, Nats_Subject=subject), b"")
        except PeltonError as error:
            self._refuse(reply, error, request)

    async def _get_pages(self, stream: str, name: str, request: WireGet, reply: str) -> None:
        """Read and send a batch, page by page; it ends where a single reply would have."""
        left, last = request.max_bytes or MAX_BYTES, 0
        while True:
            page = replace(request, max_bytes=min(left, _PAGE))
            found = await self._link.engine.direct_get(stream, page)
            left -= sum(len(one.subject.encode()) + len(one.hdrs) + len(one.data) for one in found.messages)
            batch = request.batch - len(found.messages) if request.batch else 0
            is_over = left <= 0 or not found.num_pending or (request.batch > 0 and batch <= 0) or not found.messages
            self._send(reply, name, request, found, after=last, is_over=is_over)
            if is_over:
                return
            last = found.last_seq
            up_to = found.up_to_seq if request.multi_last else 0
            following = replace(request, seq=last + 1, batch=batch, start_time="")
            request = replace(following, up_to_seq=up_to, up_to_time="") if request.multi_last else following
            await self._room(reply)

    async def _room(self, reply: str) -> None:
        """Wait until the client has read most of what it was sent; if it is gone, nothing more is sent anyway."""
        while self._receives(reply) and not self._has_room(reply):
            await self._runtime.clock.sleep(_PAUSE_S)

    def _send(
        self,
        reply: str,
        stream: str,
        request: WireGet,
        found: DirectReply,
        *,
        after: int = 0,
        is_over: bool = True,
    ) -> None:
        for frame in direct_frames(stream, request, found, after=after, is_over=is_over):
            self._answer(reply, frame.block or None, frame.data)

    def _refuse(self, reply: str, error: PeltonError, request: WireGet | None = None) -> None:
        frame = direct_refusal(error, request)
        self._answer(reply, frame.block, frame.data)
