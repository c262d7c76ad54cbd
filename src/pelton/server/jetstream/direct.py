"""Direct gets of clients (ADR-31)."""

from __future__ import annotations

from collections.abc import Callable

from pelton.api import ApiError, DirectGet, DirectGetDisabledError, PeltonError, StreamNotFoundError
from pelton.api.direct_frames import direct_frames, direct_refusal, direct_request
from pelton.runtime import Runtime
from pelton.server.jetstream.link import StoreLink
from pelton.server.ports import Published
from pelton.wire import status_block


class DirectGetService:
    """Answers direct gets."""

    def __init__(self, link: StoreLink, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime) -> None:
        self._link = link
        self._answer = answer
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
        self._runtime.spawn(self._get(stream, request, message), "pelton answers a direct get")
        return True

    async def _get(self, stream: str, request: DirectGet, message: Published) -> None:
        reply, subject = message.reply, message.subject
        try:
            await self._link.storing.up_to_here()
            found = await self._link.engine.direct_get(stream, request)
        except (StreamNotFoundError, DirectGetDisabledError):
            self._answer(reply, status_block(503, Nats_Subject=subject), b"")
            return
        except PeltonError as error:
            self._refuse(reply, error)
            return
        for frame in direct_frames(stream, request, found):
            self._answer(reply, frame.block, frame.data)

    def _refuse(self, reply: str, error: PeltonError) -> None:
        frame = direct_refusal(error)
        self._answer(reply, frame.block, frame.data)
