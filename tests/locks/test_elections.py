"""Elections on a file and on a real server: which candidate leads, which wait, and their notifications."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import Election, Jet, Leader, Term
from pelton.api import BucketKeyNotFoundError, ConfigError, ElectionError, StreamInfo, TermLostError
from pelton.locks.campaign import DeleteRecord, WriteRecord
from pelton.locks.candidate_runner import open_record
from tests.kit.nats_server import NatsServer, nats_server

LONG = 3600  # nothing of what these tests wait for waits for a term's end
SOON = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "server":
        return str(request.getfixturevalue("server").url)
    return str(tmp_path / "s.pelton")


@pytest.fixture
async def jet(address: str) -> AsyncIterator[Jet]:
    async with pelton.open(address) as jet:
        yield jet
        for name in await jet.bucket_names():
            await jet.delete_bucket(name)


@pytest.fixture
async def other(address: str, jet: Jet) -> AsyncIterator[Jet]:
    async with pelton.open(address) as other:
        yield other


async def test_the_first_candidate_of_a_new_election_leads_at_once(jet: Jet) -> None:
    election = jet.elect("s", name="a", ttl=LONG)
    assert (election.state, await election.leader()) == ("unknown", None)
    async with asyncio.timeout(SOON), election as term:
        assert (term.is_held, term.reason) == (True, "")
        assert (election.state, election.term) == ("leader", term)
        leader = await election.leader()
        assert leader is not None
        assert (leader.name, leader.token) == ("a", term.token)
        assert leader.since.startswith("20")
    assert (election.state, election.term, await election.leader()) == ("unknown", None, None)
    assert not term.is_held
    assert await term.lost() == "it was stopped"


async def test_since_when_somebody_leads_stays_the_same_for_the_whole_term(jet: Jet) -> None:
    election = jet.elect("s", ttl=1)
    async with asyncio.timeout(SOON), election as term:
        first = last = await leader_of(election)
        while last.revision < first.revision + 2:
            await asyncio.sleep(0.05)
            last = await leader_of(election)
        assert (last.token, last.since) == (term.token, first.since)


async def leader_of(election: Election) -> Leader:
    leader = await election.leader()
    assert leader is not None
    return leader


async def test_the_next_one_leads_when_the_leader_steps_down(jet: Jet, other: Jet) -> None:
    tokens = list[int]()

    async def lead(one: Jet) -> None:
        for _ in range(3):
            async with one.elect("s", ttl=LONG) as term:
                tokens.append(term.token)

    async with asyncio.timeout(SOON):
        await asyncio.gather(lead(jet), lead(other), lead(jet))
    assert len(tokens) == 9
    assert tokens == sorted(set(tokens))


async def test_a_key_nobody_renews_is_taken_over_and_not_before_its_term(jet: Jet) -> None:
    bucket = await jet.create_bucket("b", ttl=1)
    begin = time.monotonic()
    revision = await bucket.create("s", b"dead")
    async with asyncio.timeout(SOON), jet.elect("s", bucket="b") as term:
        assert time.monotonic() - begin >= 0.95
        assert term.token > revision


async def test_a_leader_that_blocks_its_event_loop_is_renewed(jet: Jet, address: str) -> None:
    async with asyncio.timeout(SOON * 2):
        # A machine that is too busy even for the renewal may lose a term.
        for _ in range(5):
            if await is_renewed_while_blocked(jet, address):
                return
    raise AssertionError("five terms were lost")


async def is_renewed_while_blocked(jet: Jet, address: str) -> bool:
    try:
        async with jet.elect("s", name="a", ttl=2) as term:
            with pelton.sync.open(address) as looking:
                election = looking.elect("s", name="b")
                leader = election.leader()
                while leader is not None and leader.revision == term.token:
                    threading.Event().wait(0.02)
                    leader = election.leader()
            return term.is_held and leader is not None and leader.token == term.token
    except TermLostError:
        return False


async def test_a_block_is_cancelled_when_the_term_is_lost(jet: Jet) -> None:
    election = jet.elect("s", ttl=LONG)
    terms = list[Term]()

    async def lead() -> None:
        async with asyncio.timeout(SOON), election as term:
            terms.append(term)
            await (await jet.bucket(election.bucket)).delete("s")
            await asyncio.Event().wait()

    with pytest.raises(TermLostError) as lost:
        await lead()
    term = terms[0]
    assert (lost.value.election, lost.value.token) == ("s", term.token)
    assert not term.is_held
    with pytest.raises(TermLostError):
        term.check()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_ends_after_its_term_is_told(jet: Jet) -> None:
    election = jet.elect("s", ttl=LONG)

    async def lead() -> None:
        async with asyncio.timeout(SOON), election as term:
            await (await jet.bucket(election.bucket)).put("s", b"somebody")
            try:
                await term.lost()
            except asyncio.CancelledError:
                assert "another client" in term.reason

    with pytest.raises(TermLostError):
        await lead()


async def test_what_a_block_raises_is_raised(jet: Jet) -> None:
    with pytest.raises(KeyError):
        async with asyncio.timeout(SOON), jet.elect("s", ttl=LONG):
            raise KeyError
    async with asyncio.timeout(SOON), jet.elect("s", ttl=LONG) as term:
        assert term.is_held


async def test_a_candidate_that_is_cancelled_while_it_waits_leaves_nothing(jet: Jet, other: Jet) -> None:
    async with asyncio.timeout(SOON):
        async with jet.elect("s", ttl=LONG) as term:
            waiting = other.elect("s")
            task = asyncio.create_task(waiting.__aenter__())
            while waiting.state != "candidate":
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert (task.cancelled(), waiting.state, term.is_held) == (True, "unknown", True)
        async with waiting:
            pass


async def test_a_candidate_that_runs_tells_what_happens(jet: Jet) -> None:
    said = list[object]()
    won = asyncio.Event()

    def on_won(term: Term) -> None:
        said.append(("won", election.state))
        won.set()

    async def on_lost(term: Term) -> None:
        said.append(("lost", term.reason, election.state))

    election = jet.elect("s", ttl=LONG, on_won=on_won, on_lost=on_lost, on_campaign=lambda state: said.append(state))
    async with asyncio.timeout(SOON):
        task = asyncio.create_task(election.run())
        await won.wait()
        with pytest.raises(ConfigError, match="already runs"):
            await election.run()
        election.stop()
        await task
    assert said == ["candidate", ("won", "leader"), ("lost", "it was stopped", "candidate")]
    assert election.state == "unknown"
    with pytest.raises(BucketKeyNotFoundError):
        await (await jet.bucket(election.bucket)).get("s")


async def test_stepping_down_gives_the_lead_to_another(jet: Jet, other: Jet) -> None:
    order = list[str]()
    turns = asyncio.Event()

    def candidate(one: Jet, name: str) -> pelton.Election:
        def won(term: Term) -> None:
            order.append(name)
            if len(order) == 6:
                turns.set()
            else:
                election.step_down()

        election = one.elect("s", name=name, ttl=LONG, on_won=won)
        return election

    candidates = [candidate(jet, "a"), candidate(other, "b")]
    async with asyncio.timeout(SOON):
        tasks = [asyncio.create_task(one.run()) for one in candidates]
        await turns.wait()
        for one in candidates:
            one.stop()
        await asyncio.gather(*tasks)
    assert order in (["a", "b"] * 3, ["b", "a"] * 3)


async def test_a_leader_that_came_and_went_during_a_look_is_seen(jet: Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for a key that was never written since, it would be waited for as if it might still lead: for a term."""
    mine, rival = [await open_record(jet, "b", "s", name, LONG, strict=False, make=True) for name in ("a", "b")]
    real = mine._stream.info

    async def info() -> StreamInfo:
        if (await mine.leader()) is None:
            revision = await rival.write(WriteRecord(0, "first", 0.0, 1), None, 1)
            await rival.release(DeleteRecord(revision, clean=True))
        return await real()

    monkeypatch.setattr(mine._stream, "info", info)
    seen = await mine.look()
    assert (seen.kind, seen.gave_up) == ("released", seen.revision - 1)


async def test_the_work_of_a_leader_ends_with_its_term(jet: Jet) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(term: Term) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    election = jet.elect("s", ttl=LONG, on_won=work)
    async with asyncio.timeout(SOON):
        task = asyncio.create_task(election.run())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
    assert ended.is_set()
    assert (task.cancelled(), await election.leader()) == (True, None)


async def test_a_candidate_that_is_cancelled_again_leads_until_its_work_has_ended(jet: Jet, other: Jet) -> None:
    begun, cleaning, cleaned, lost = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    async def work(term: Term) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await cleaned.wait()

    election = jet.elect("s", name="a", ttl=LONG, on_won=work, on_lost=lambda term: lost.append(term.reason))
    async with asyncio.timeout(SOON):
        task = asyncio.create_task(election.run())
        await begun.wait()
        task.cancel()
        await cleaning.wait()
        for _ in range(3):
            task.cancel()
            leader = await other.elect("s", name="b", ttl=LONG).leader()
            assert leader is not None, "its work still cleans up"
            assert (leader.name, task.done(), lost) == ("a", False, [])
        cleaned.set()
        await asyncio.wait([task])
        assert (task.cancelled(), lost, await election.leader()) == (True, ["it was stopped"], None)


async def test_the_work_of_a_leader_that_raises_ends_the_candidate(jet: Jet) -> None:
    lost = list[str]()

    async def work(term: Term) -> None:
        raise KeyError("broken")

    election = jet.elect("s", ttl=LONG, on_won=work, on_lost=lambda term: lost.append(term.reason))
    with pytest.raises(KeyError, match="broken"):
        await asyncio.wait_for(election.run(), SOON)
    assert (lost, await election.leader()) == (["it was stopped"], None)


@pytest.mark.parametrize("kind", ["on_won", "work", "on_lost", "on_campaign"])
async def test_an_error_of_a_callback_is_logged_also_if_nobody_looks_at_the_task(
    jet: Jet, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise KeyError("broken")

    async def work(_: Term) -> None:
        raise KeyError("broken")

    callbacks: dict[str, Any] = {"on_won": work} if kind == "work" else {kind: fails}
    election = jet.elect("s", ttl=LONG, **callbacks)
    running = asyncio.create_task(election.run())
    if kind == "on_lost":
        while election.term is None:
            await asyncio.sleep(0)
        election.stop()
    async with asyncio.timeout(SOON):
        await asyncio.wait([running])
    assert isinstance(running.exception(), KeyError)
    (record,) = [one for one in caplog.records if one.name == "pelton.locks" and one.levelname == "ERROR"]
    assert record.exc_info is not None
    what = "on_won" if kind == "work" else kind
    assert record.getMessage() == f"election 's': {what} of candidate {election.name!r} raised: it ends"


async def test_an_error_of_a_leaders_work_as_it_is_cancelled_is_logged(
    jet: Jet, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def work(_: Term) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("cleaning up")

    election = jet.elect("s", ttl=LONG, on_won=work)
    running = asyncio.create_task(election.run())
    async with asyncio.timeout(SOON):
        await begun.wait()
        election.stop()
        await running
    assert "on_won of candidate" in caplog.text
    assert "cleaning up" in caplog.text


async def test_a_block_is_told_when_it_is_stopped_from_elsewhere(jet: Jet) -> None:
    election = jet.elect("s", ttl=LONG)

    async def lead() -> None:
        async with asyncio.timeout(SOON), election:
            election.stop()
            await asyncio.Event().wait()

    with pytest.raises(ElectionError, match="stopped by another caller"):
        await lead()


async def test_terms_that_cannot_be(jet: Jet) -> None:
    for ttl, strict in ((0.5, False), (3601, False), (29, True)):
        with pytest.raises(ConfigError, match="TTL"):
            await jet.elect("s", ttl=ttl, strict=strict).run()
    await jet.create_bucket("b", ttl=30)
    with pytest.raises(ConfigError, match="has a TTL of 30 s"):
        await jet.elect("s", bucket="b", ttl=20).run()
    await jet.create_bucket("plain")
    with pytest.raises(ConfigError, match="TTL of 0 s"):
        await jet.elect("s", bucket="plain").run()
    with pytest.raises(ConfigError, match="needs a name"):
        jet.elect("s", name="")
    with pytest.raises(ConfigError, match="cannot name a bucket"):
        await jet.elect("a b").run()


async def test_other_elections_and_keys_do_not_matter(jet: Jet) -> None:
    bucket = await jet.create_bucket("b", ttl=LONG)
    async with asyncio.timeout(SOON), jet.elect("one", bucket="b") as one:
        await bucket.put("else", b"1")
        async with jet.elect("two") as two:
            assert (one.is_held, two.is_held) == (True, True)


async def test_an_election_in_memory() -> None:
    async with asyncio.timeout(SOON), pelton.open("memory:") as jet, jet.elect("s", ttl=LONG) as term:
        assert term.token > 0


def test_an_election_without_await(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        election = jet.elect("s", name="a", ttl=LONG)
        with election as term:
            assert (term.is_held, election.leader().name) == (True, "a")

        def lead() -> None:
            with election as term:
                jet.bucket(election.bucket).delete("s")
                term.lost()

        with pytest.raises(TermLostError):
            lead()


async def test_a_candidate_that_is_cancelled_at_any_moment_leaves_nothing(jet: Jet) -> None:
    async with asyncio.timeout(SOON):
        for turns in (0, 1, 2, 5, 20, 100, 400):
            task = asyncio.create_task(jet.elect("s", ttl=LONG).run())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        async with jet.elect("s") as term:
            assert term.is_held
