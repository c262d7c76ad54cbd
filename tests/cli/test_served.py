"""The commands through ``pelton serve``, on a store with an exclusive queue: views create and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import pelton
from pelton.cli.main import main
from tests.kit.served import ServedStore

VIEWS = [
    "queue ls", "queue info S garage", "queue tenants S garage", "limits ls", "limits ls S garage", "cron ls",
    "cron ls S garage", "jobs ls S garage", "jobs ls S garage --state failed", "jobs ls S garage --key c",
    "jobs keys S garage", "jobs show S garage 4", "dead ls S garage", "dead show S garage 3", "flow ls S garage",
    "workers", "top", "metrics S --once", "info", "stream ls", "consumer ls", "locks", "elections",
]  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A served store with an exclusive queue, of which job 3 is a dead letter and job 4 waits, and one more queue."""
    path = tmp_path_factory.mktemp("served") / "a.pelton"
    with pelton.sync.open(path) as jet:
        garage = jet.queue("garage", exclusive=True)

        @garage.job(max_attempts=1)
        def repair(car: str) -> str:
            if car == "wreck":
                raise ValueError("nothing left")
            return car

        for car in ("a", "b", "wreck"):
            repair.enqueue(car, key=car)
        garage.work(until_empty=True, concurrency=1, handle_signals=False)
        repair.enqueue("c", key="c")
        jet.queue("shop").enqueue("pay", amount=1)
        # A stream that has a name and a subject of queues, and is none.
        jet.create_stream("JOBS_alien", subjects=["$JOBS.alien.free"])
    store = ServedStore(path)
    store.start()
    yield store.url
    store.stop()


def _consumers(url: str) -> dict[str, object]:
    with pelton.sync.open(url) as jet:
        found = {}
        for name in jet.stream_names():
            stream = jet.stream(name)
            found[name] = (stream.info().config, {one: stream.consumer(one).config for one in stream.consumer_names()})
        return found


@pytest.mark.parametrize("line", VIEWS)
def test_every_view_works_and_changes_nothing(served: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = _consumers(served)
    words = line.replace("S ", f"{served} ").split() if "S " in line else [*line.split(), served]
    assert main(words) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown
    assert main([*words, "--json"]) == 0
    assert _consumers(served) == before


def test_a_queue_that_cannot_be_looked_at_is_a_row_and_hides_no_other(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "ls", served]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"alien", "garage", "shop"} <= set(rows)
    assert "is not part of a queue" in rows["alien"]
    assert main(["queue", "ls", served, "--json"]) == 0
    found = {one["name"]: one["error"] for one in json.loads(capsys.readouterr().out)}
    assert found["garage"] == found["shop"] == ""
    assert "is not part of a queue" in found["alien"]
    for words in (["top", served], ["workers", served], ["limits", "ls", served], ["cron", "ls", served]):
        assert main(words) == 0, words
    assert main(["metrics", served, "--once"]) == 0
    assert 'queue="garage"' in capsys.readouterr().out


def test_an_exclusive_queue_is_steered_through_the_server(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "jobs add S garage repair --key c", "queue pause S garage", "queue resume S garage",
        "dead redrive S garage 3", "jobs cancel S garage 5",
        "limits set S garage --concurrency 2", "limits rm S garage",
    ):  # fmt: skip
        assert main(line.replace("S", served).split()) == 0, capsys.readouterr().err


def test_a_worker_is_told_that_it_works_on_the_file(served: str) -> None:
    with pelton.sync.open(served) as jet, pytest.raises(pelton.ConfigError, match="on the file"):
        jet.queue("garage").work(until_empty=True, handle_signals=False)
