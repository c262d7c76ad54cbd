"""Whether other openers of a store are still there."""

from __future__ import annotations

from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.table import case


@case
async def an_opening_that_was_closed_is_gone(jet: Jet) -> None:
    here, other = jet.backend, jet.backend.clone()
    name = await other.presence()
    assert name != await here.presence()
    assert name == await other.presence()
    # Servers of a cluster share their subscriptions.
    await eventually(lambda: here.is_gone(name), False)
    assert not await other.is_gone(name)
    await other.close()
    await eventually(lambda: here.is_gone(name), True)
    assert not await here.is_gone(await here.presence())
