"""Eight processes on one file at once: nothing is lost and nothing done twice."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pelton
from pelton.engine.salvage import recount
from tests.crash.roles import STREAM, WORK, make_store, publisher, stored, worker
from tests.storage.processes import Child

_EACH = 400


async def test_eight_processes_publish_and_work(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await make_store(path)
    with ExitStack() as stack:
        workers = [stack.enter_context(Child(worker, path, n)) for n in range(4)]
        publishers = [stack.enter_context(Child(publisher, path, f"p{n}", 100 + n, _EACH)) for n in range(4)]
        published = [said for child in publishers for said in child.hear_all() if said != "open"]
        for child in publishers:
            child.join()
        wanted = {name for subject, name, _ in published if subject.startswith(WORK)}
        done = _until_all_done(workers, len(wanted))
    assert len(published) == 4 * _EACH
    assert len(done) == len(set(done)), "a message was done twice"
    assert set(done) == wanted
    async with pelton.open(path) as jet:
        assert await stored(jet, WORK) == {}
        kept = {name: seq for subject, name, seq in published if subject.startswith(STREAM)}
        assert await stored(jet, STREAM) == kept
    assert recount(str(path)) == []


def _until_all_done(workers: list[Child], expected: int) -> list[str]:
    """The workers' results, after they have drained the queue."""
    done: list[str] = []
    for child in workers:
        child.say("stop when empty")
    for child in workers:
        for said in child.hear_all():
            assert said[0] != "late"
            if said[0] == "done":
                done.append(said[2])
        child.join()
    assert len(done) <= expected
    return done
