"""Three servers for all Spark tests: started once, restored before each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import pelton
from tests.kit.nats_server import NatsCluster, nats_cluster

_ALL = 200


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with nats_cluster(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture
def three_servers(_cluster: NatsCluster) -> NatsCluster:
    """Return a cluster without streams, whose servers all run."""
    for server in _cluster.servers:
        if not server.is_running:
            server.start()
    with pelton.sync.open(_cluster.url) as jet:
        for name in jet.stream_names():
            jet.delete_stream(name)
    return _cluster


@pytest.fixture(scope="session")
def all_kills(pytestconfig: pytest.Config) -> None:
    """For what only ``make crash`` runs: minutes of drivers, executors and servers that die."""
    if int(pytestconfig.getoption("kills")) < _ALL:
        pytest.skip("make crash plays it")


@pytest.fixture(params=["path", "servers"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """A store file, and three servers."""
    if request.param == "path":
        return {"path": str(tmp_path / "s.pelton")}
    return {"servers": request.getfixturevalue("three_servers").url}
