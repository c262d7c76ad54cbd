"""Speculative execution, and executors' Python killed in the middle of a task: every row, exactly once."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from deltalake import DeltaTable

import pelton
from pelton.spark.pipelines.session import no_java
from tests.spark.hosts.role import ANSWER
from tests.spark.session import ROOT
from tests.spark.work.test_executors import history, make

ROWS = 200
_PATIENCE_S = 600
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def hosts(all_kills: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Return the driver that runs scenes on a Spark cluster of two hosts."""
    if reason := no_java():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.spark.hosts.role", str(tmp_path_factory.mktemp("hosts"))]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    driver = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdin is not None
    assert driver.stdout is not None

    def play(scene: str, home: Path, place: dict[str, str]) -> Any:
        driver.stdin.write(json.dumps({"scene": scene, "home": str(home), "place": place}) + "\n")
        driver.stdin.flush()
        answer = reader.submit(lambda: next(line for line in driver.stdout if line.startswith(ANSWER)))
        told = json.loads(answer.result(_PATIENCE_S).removeprefix(ANSWER))
        assert "error" not in told, told["error"]
        return told["value"]

    with driver, ThreadPoolExecutor(1) as reader:
        try:
            yield play
        finally:
            os.killpg(driver.pid, signal.SIGKILL)


def fill(place: dict[str, str], words: int = 1000) -> list[tuple[str, bytes]]:
    """Store rows, too large for pipes to buffer, in ``orders``; make ``copies``; return the expected rows."""
    [address] = place.values()
    replicas = {"num_replicas": 3} if "servers" in place else {}
    messages = [(f"orders.{n % 7}", b"%d " % n * words) for n in range(ROWS)]
    with pelton.sync.open(address) as jet:
        for name in ("orders", "copies"):
            jet.create_stream(name, subjects=[f"{name}.>"], allow_direct=True, **replicas)
        jet.publish_batch(messages)
    return [(subject.replace("orders", "copies"), data) for subject, data in messages]


def rows(place: dict[str, str], stream: str) -> list[tuple[str, bytes]]:
    [address] = place.values()
    with pelton.sync.open(address) as jet:
        handle, found = jet.stream(stream), []
        while batch := handle.get_messages(64, seq=found[-1].seq + 1 if found else 1):
            found += batch
    return [(message.subject, message.data) for message in found]


def tries(home: Path) -> set[str]:
    return {path.name for path in home.iterdir() if path.name[0] in "01"}


def check_copies(place: dict[str, str], wanted: list[tuple[str, bytes]]) -> None:
    """Each row once; in a file in order, with nothing left staged."""
    found = rows(place, "copies")
    if "path" in place:
        assert found == wanted
        assert not Path(f"{place['path']}-spark").exists()
    else:
        assert sorted(found) == sorted(wanted)


def test_a_speculative_try_is_stored_and_the_one_that_hangs_is_not(
    hosts: Play, place: dict[str, str], tmp_path: Path
) -> None:
    wanted = fill(place)
    hosts("copy_beside_a_hanging_try", tmp_path, place)
    assert {"1-0", "1-1"} <= tries(tmp_path)
    check_copies(place, wanted)


def test_of_two_tries_one_is_archived(hosts: Play, tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "s.pelton")}
    wanted = fill(place)
    hosts("archive_beside_a_hanging_try", tmp_path, place)
    assert {"1-0", "1-1"} <= tries(tmp_path)
    table = DeltaTable(str(tmp_path / "lake"))
    archived = table.to_pyarrow_table(columns=["sequence", "subject", "data"]).sort_by("sequence").to_pylist()
    assert [row["sequence"] for row in archived] == list(range(1, ROWS + 1))
    assert [(row["subject"].replace("orders", "copies"), row["data"]) for row in archived] == wanted
    # The loser's files are in the folder, but not in the table.
    assert len(table.file_uris()) == 2
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) >= 3


def test_processes_that_are_killed_while_they_read_and_write(
    hosts: Play, place: dict[str, str], tmp_path: Path
) -> None:
    wanted = fill(place)
    hosts("copy_beside_a_killer", tmp_path, place)
    assert len((tmp_path / "killed").read_text().split()) >= 2
    assert {"0-0", "1-0", "1-1"} <= tries(tmp_path)
    check_copies(place, wanted)


def test_a_process_that_is_killed_while_it_reads(hosts: Play, tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "s.pelton")}
    # So many that the reader has not passed on all of them when it is killed.
    fill(place, words=40_000)
    found = hosts("read_beside_a_killer", tmp_path, place)
    assert (tmp_path / "killed").read_text()
    assert {"1-0", "1-1"} <= tries(tmp_path)
    wanted = [[n, subject, crc32(data)] for n, (subject, data) in enumerate(rows(place, "orders"), 1)]
    assert sorted(found) == wanted


def test_jobs_of_a_killed_process_come_back_by_lease(hosts: Play, place: dict[str, str], tmp_path: Path) -> None:
    make(place, 100, lease=1.0, **({"num_replicas": 3} if "servers" in place else {}))
    hosts("work_until_killed", tmp_path, place)
    assert (tmp_path / "killed").exists()
    outcomes = history(place)
    assert sorted(one.value()["n"] for one in outcomes) == list(range(100))
    assert Counter(one.state for one in outcomes) == {"completed": 100}
    assert Counter(one.attempt for one in outcomes)[2] >= 20
