"""A queue opens though servers have not agreed on it yet."""

import asyncio
from typing import Any

import pytest

import pelton
from pelton import Jet, Stream
from pelton.api.errors import api_error
from pelton.testing import manual_runtime


async def test_a_queue_that_servers_have_not_agreed_on_yet_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes that make a queue at once, one hears that it exists, and then for a moment that it does not."""
    async with pelton.open("memory:", runtime=(runtime := manual_runtime())) as jet:
        find, make, unknown = type(jet).stream, type(jet).create_stream, 2

        async def made_by_another(self: Jet, name: str, **config: Any) -> Stream:
            await make(self, name, **config)
            raise api_error("JSStreamNameExistErr", stream=name)

        async def found_later(self: Jet, name: str) -> Stream:
            nonlocal unknown
            if name == "JOBS_garage" and unknown and name in await self.stream_names():
                unknown -= 1
                raise api_error("JSStreamNotFoundErr", stream=name)
            return await find(self, name)

        monkeypatch.setattr(type(jet), "create_stream", made_by_another)
        monkeypatch.setattr(type(jet), "stream", found_later)
        opening = asyncio.create_task(jet.queue("garage"))
        while not opening.done():
            await asyncio.sleep(0)
            runtime.clock.advance(0.1)
        assert (await opening).name == "garage"
        assert unknown == 0
