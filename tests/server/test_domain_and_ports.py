"""A server with a domain, reports and a file with its ports: on both servers the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import nats
import pytest

from tests.kit.nats_server import nats_server
from tests.kit.served import served_store
from tests.server.raw import raw_client


class Running(NamedTuple):
    port: int
    ports: dict[str, list[str]]


@pytest.fixture(scope="module", params=["nats", "pelton"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home: Path = tmp_path_factory.mktemp("domain")
    folder = home / "ports"
    folder.mkdir()
    text = (
        f'http: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
        'websocket { listen: "127.0.0.1:-1", no_tls: true }\nserver_name: pelton\n'
    )
    if request.param == "nats":
        with nats_server(home, domain="hub", extra=text.replace("server_name: pelton\n", "")) as theirs:
            yield Running(theirs.port, _only(folder, theirs.pid))
        return
    (home / "pelton.conf").write_text(f'{text}jetstream {{ store_dir: "{home}/stores", domain: hub }}\n')
    with served_store(None, ("-c", str(home / "pelton.conf"))) as ours:
        yield Running(ours.port, _only(folder, ours.pid))


def _only(folder: Path, pid: int) -> dict[str, list[str]]:
    file = folder / f"nats-server_{pid}.ports"
    while not (file.exists() and file.read_text()):
        # Written when it listens already.
        threading.Event().wait(0.005)
    assert [*folder.iterdir()] == [file]
    found: dict[str, list[str]] = json.loads(file.read_text())
    return found


def test_the_file_with_the_ports(running: Running) -> None:
    assert running.ports.keys() == {"nats", "monitoring", "websocket"}
    assert running.ports["nats"] == [f"nats://127.0.0.1:{running.port}"]
    assert [url.rpartition(":")[0] for name in ("monitoring", "websocket") for url in running.ports[name]] == [
        "http://127.0.0.1",
        "ws://127.0.0.1",
    ]


async def test_a_publisher_is_told_the_domain(running: Running) -> None:
    client = await nats.connect(f"nats://127.0.0.1:{running.port}")
    await client.jetstream().add_stream(name="S", subjects=["s"])
    answer = json.loads((await client.request("s", b"x")).data)
    assert answer == {"stream": "S", "seq": 1, "domain": "hub"}
    assert json.loads((await client.request("$JS.API.INFO", b"")).data)["domain"] == "hub"
    await client.close()


async def test_what_a_client_sent_and_received_is_counted(running: Running) -> None:
    def figures() -> Any:
        with urlopen(f"{running.ports['monitoring'][0]}/connz") as answer:
            found = json.load(answer)["connections"]
        (mine,) = [one for one in found if one.get("name") == "counted"]
        return [mine[name] for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "subscriptions")]

    async with raw_client(running.port, '{"verbose":false,"name":"counted"}') as client:
        client.sub("a", "1")
        for data in ("x", "yy"):
            client.pub("a", data)
        client.send("UNSUB 1")
        client.pub("a", "gone")
        client.sub("b", "2")
        client.send("UNSUB 2 1")
        for data in ("x", "gone"):
            client.pub("b", data)
        await client.settle()
        assert await asyncio.to_thread(figures) == [5, 12, 3, 4, 0]
