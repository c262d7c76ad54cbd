"""Who did what: actions of the command line and of the page, as messages that nobody deletes by the way."""

from __future__ import annotations

import logging

import pytest

import pelton
from pelton import observe
from pelton.observe import AuditEntry, audit_entries, record_action


def entry(action: str) -> AuditEntry:
    return AuditEntry(who="ann", source="command", origin="host", action=action, target="shop", result="done")


async def test_the_newest_actions_come_first_and_in_pages(jet: pelton.Jet) -> None:
    assert await audit_entries(jet) == []
    for number in range(5):
        await record_action(jet, entry(f"{number}"))
    newest = await audit_entries(jet, limit=2)
    assert [(seq, one.action) for seq, one in newest] == [(5, "4"), (4, "3")]
    assert all(one.at and one.who == "ann" and one.target == "shop" for _, one in newest)
    rest = await audit_entries(jet, before=4)
    assert [one.action for _, one in rest] == ["2", "1", "0"]
    assert await audit_entries(jet, before=1) == []


async def test_it_is_no_stream_of_the_users(jet: pelton.Jet) -> None:
    await jet.create_stream("orders", subjects=["orders"])
    await record_action(jet, entry("x"))
    assert [one.name for one in await observe.stream_summaries(jet)] == ["orders"]
    audit = await jet.stream("PELTON_AUDIT")
    with pytest.raises(pelton.PeltonError):
        await audit.delete_message(1)
    await jet.publish("$PELTON.AUDIT.page", b"no action")
    assert "no action" in (await audit_entries(jet))[0][1].action


async def test_an_action_is_done_even_if_it_cannot_be_told(jet: pelton.Jet, caplog: pytest.LogCaptureFixture) -> None:
    await jet.create_stream("all", subjects=["$PELTON.>"])
    with caplog.at_level(logging.WARNING, "pelton.observe"):
        await record_action(jet, entry("queue purge"))
    assert "'queue purge' by ann could not be written to PELTON_AUDIT" in caplog.text
