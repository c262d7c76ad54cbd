"""Replies of all cases are validated against NATS's schemas: that this is done at all, or why not."""

import pytest

import pelton
from pelton.api import StreamCreate, StreamInfoRequest, requests
from tests.api.schemas import needs_nats
from tests.conformance.wire import validated


@needs_nats
async def test_a_reply_that_its_schema_does_not_allow_is_noticed() -> None:
    async with pelton.open("memory:") as jet:
        validated(jet)
        created = await jet.backend.call(StreamCreate(config=pelton.StreamConfig(name="S", subjects=("s",))))

        async def broken(request: requests.Request[object]) -> object:
            created.config = pelton.StreamConfig(name="S", retention="forever")  # type: ignore[arg-type]  # no such thing
            return created

        jet.backend.call = broken  # type: ignore[method-assign, assignment]  # of this one store
        validated(jet)
        with pytest.raises(AssertionError, match=r"STREAM\.INFO"):
            await jet.backend.call(StreamInfoRequest(name="S"))
