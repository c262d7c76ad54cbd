"""The commit log of a cluster's batches, and whose clock gives an entry's age."""

from pathlib import Path

import pytest

import pelton
from pelton.spark.options import LateReplayError
from pelton.spark.write.staging import BatchId, CommitLog
from pelton.testing import manual_runtime
from tests.kit.nats_server import nats_server

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("hours", [-24, 24])
async def test_the_age_of_a_note_is_told_by_the_server_and_not_by_the_clock_of_a_task(
    tmp_path: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = BatchId("query", 7)
    with nats_server(tmp_path) as server:
        async with pelton.open(server.url) as jet:
            commit_log = CommitLog(jet, "orders")
            await commit_log.prepare()
            assert await commit_log.begin(batch, "run", first=True, window_ns=1, late=False)
            real = jet.runtime.clock.now
            monkeypatch.setattr(type(jet.runtime.clock), "now", lambda self: real() + hours * HOUR_NS)
            with pytest.raises(LateReplayError):
                await commit_log.begin(batch, "another run", first=True, window_ns=1, late=False)
            assert await commit_log.begin(batch, "another run", first=True, window_ns=HOUR_NS, late=False)
            assert await commit_log.begin(batch, "another run", first=True, window_ns=1, late=True)


async def test_a_note_from_the_future_tells_no_age(tmp_path: Path) -> None:
    runtime = manual_runtime()
    async with pelton.open(tmp_path / "store.pelton", runtime=runtime) as jet:
        batch, commit_log = BatchId("query", 7), CommitLog(jet, "orders")
        await commit_log.prepare()
        assert await commit_log.begin(batch, "run", first=True, window_ns=HOUR_NS, late=False)
        runtime.clock.advance(7200)
        runtime.clock.set_wall(runtime.clock.now() - 24 * HOUR_NS)
        await jet.publish("$SPARK.commits.orders.other", b"{}")
        with pytest.raises(LateReplayError):
            await commit_log.begin(batch, "another run", first=True, window_ns=HOUR_NS, late=False)
