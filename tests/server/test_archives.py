"""Backups of streams go both ways between a served store and nats-server."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from crc32c import crc32c
from nats.aio.client import Client
from nats.js.errors import NotFoundError

import pelton
from pelton.api import AccountLimits
from pelton.engine.archives import StreamArchives
from pelton.server import Server, StoreSettings
from pelton.server.archive import END, MAGIC, ArchiveEntry, FrameWriter, encode_entry
from tests.kit.nats_server import NatsServer, nats_server
from tests.server.archives import Backup, asked, backup, restore
from tests.server.conftest import Connected, Started


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def there(real: NatsServer) -> AsyncIterator[Client]:
    """A client of nats-server, on which there are no streams."""
    client = await nats.connect(real.url)
    for info in await client.jetstream().streams_info():
        await client.jetstream().delete_stream(info.config.name)
    yield client
    await client.close()


@pytest.fixture
async def here(connected: Connected) -> Client:
    return await connected()


async def fill(client: Client, **config: Any) -> None:
    """Make a stream with gaps, headers, redelivered and settled messages, and consumers of several kinds."""
    js = client.jetstream()
    wanted = {"name": "S", "subjects": ["s.>"], "first_seq": 5, "allow_msg_ttl": True, "allow_direct": True} | config
    await asked(client, "$JS.API.STREAM.CREATE.S", wanted)
    for number in range(40):
        headers = {"Nats-Msg-Id": f"m{number}", "A": "ä"} if number % 3 == 0 else None
        body = os.urandom(700) if number % 2 else f"text {number} ".encode() * 60
        await js.publish(f"s.{number % 7}", body, headers=headers)
    await js.publish("s.life", b"short", headers={"Nats-TTL": "1h"})
    for seq in (5, 9, 10, 45):
        await js.delete_msg("S", seq)
    await asked(client, "$JS.API.CONSUMER.CREATE.S.w", {"stream_name": "S", "config": explicit("w")})
    messages = await (await js.pull_subscribe_bind("w", "S")).fetch(6, timeout=5)
    await messages[0].ack_sync()
    await messages[2].ack_sync()
    await messages[3].nak()
    again = await js.pull_subscribe_bind("w", "S")
    while (await again.fetch(1, timeout=60))[0].metadata.num_delivered == 1:
        await client.flush()
    await asked(client, "$JS.API.CONSUMER.CREATE.S.filtered", filtered())
    await (await js.pull_subscribe_bind("filtered", "S")).fetch(2, timeout=5)


def explicit(name: str) -> dict[str, Any]:
    # Long: nothing falls due while a test runs.
    return {"durable_name": name, "ack_policy": "explicit", "ack_wait": 600 * 10**9, "max_deliver": 7}


def filtered() -> dict[str, Any]:
    config = explicit("filtered") | {"ack_policy": "all", "filter_subject": "s.3"}
    return {"stream_name": "S", "config": config}


async def seen(client: Client) -> dict[str, Any]:
    """Return everything that a client can see of the stream and its consumers."""
    info = await asked(client, "$JS.API.STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
    last = info["state"]["last_seq"]
    messages = []
    for seq in range(info["state"]["first_seq"], last + 1):
        got = await asked(client, "$JS.API.STREAM.MSG.GET.S", {"seq": seq})
        messages.append(got.get("message", got.get("error")))
    consumers = {}
    for name in ("w", "filtered"):
        found = await asked(client, f"$JS.API.CONSUMER.INFO.S.{name}", {})
        fields = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
        consumers[name] = {field: without_times(found[field]) for field in fields}
        # Where no message is, each server has its own idea of the floor.
        del consumers[name]["ack_floor"]["stream_seq"]
    # The last message was deleted, and its time is in no archive.
    del info["state"]["last_ts"]
    return {"state": info["state"], "messages": messages, "consumers": consumers}


def without_times(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != "last_active"} if isinstance(value, dict) else value


async def settle_all(client: Client) -> list[tuple[int, int]]:
    """Take what is left of the consumer, and return sequences and delivery counts."""
    pull = await client.jetstream().pull_subscribe_bind("w", "S")
    taken = []
    for message in await pull.fetch(60, timeout=2):
        await message.ack_sync()
        taken.append((message.metadata.sequence.stream, message.metadata.num_delivered))
    return taken


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("way", ["to pelton", "to nats-server", "within pelton"])
async def test_a_backup_is_restored_with_all_that_it_held(way: str, storage: str, here: Client, there: Client) -> None:
    origin, target = {"to pelton": (there, here), "to nats-server": (here, there)}.get(way, (here, here))
    await fill(origin, storage=storage)
    expected = await seen(origin)
    taken = await backup(origin, "S", chunk_size=4096)
    assert taken.end is not None
    assert list(taken.end.values()) == ["204"]
    await origin.jetstream().delete_stream("S")
    done = await restore(target, taken, size=3000)
    assert "error" not in done, done
    assert done["state"]["messages"] == 37
    found = await seen(target)
    assert found == expected
    # It goes on: new messages, known ids (which nats-server forgets), and what is due.
    js = target.jetstream()
    if target is here:
        ack = await js.publish("s.0", b"again", headers={"Nats-Msg-Id": "m39"})
        assert (ack.seq, ack.duplicate) == (44, True)
    assert (await js.publish("s.0", b"new")).seq == 46
    assert len(await settle_all(target)) == expected["consumers"]["w"]["num_pending"] + 1


async def test_both_servers_write_the_same(here: Client, there: Client) -> None:
    """The same stream, restored from one archive, is archived in the same bytes."""
    await fill(there)
    first = await backup(there, "S")
    assert "error" not in await restore(here, first)
    second = await backup(here, "S")
    for taken in (first, second):
        del taken.about["state"]["last_ts"]
    assert second.about["state"] == first.about["state"]
    assert parts(second.content) == parts(first.content)


def parts(content: bytes) -> tuple[Any, bytes]:
    """Return what is JSON of an archive as values, and the messages as bytes."""
    begin = content.index(b"{")
    decoder, at, values = json.JSONDecoder(), begin, []
    text = content.decode("latin-1")
    while True:
        value, at = decoder.raw_decode(text, at)
        value.get("config", {}).pop("metadata", None)
        value.pop("last_ts", None)
        value.get("state", {}).get("ack_floor", {}).pop("stream_seq", None)
        values.append(value)
        if len(values) == 3:
            return sorted(values, key=lambda value: value.get("config", {}).get("name", "")), content[at:]
        at = text.index("{", at)


async def test_a_backup_without_consumers(here: Client) -> None:
    await fill(here)
    taken = await backup(here, "S", no_consumers=True)
    assert taken.about["state"]["consumer_count"] == 0
    assert "error" not in await restore(here, taken, name="T", subjects=["t.>"])
    assert (await here.jetstream().stream_info("T")).state.consumer_count == 0


@pytest.mark.parametrize("way", ["to pelton", "to nats-server"])
async def test_an_empty_stream_keeps_its_place(way: str, here: Client, there: Client) -> None:
    origin, target = (there, here) if way == "to pelton" else (here, there)
    js = origin.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for _ in range(3):
        await js.publish("s", b"x")
    await js.purge_stream("S")
    taken = await backup(origin, "S")
    await js.delete_stream("S")
    await js.add_stream(name="S", subjects=["s"])
    for each, first, following in ((taken, 1, 4), (taken, 10, 10), (await backup(origin, "S"), 10, 10)):
        assert "error" not in await restore(target, each, first_seq=first, name="T")
        assert (await target.jetstream().publish("s", b"x")).seq == following
        await target.jetstream().delete_stream("T")


async def test_a_work_queue_goes_on(here: Client, there: Client) -> None:
    js = there.jetstream()
    await js.add_stream(name="S", subjects=["s"], retention="workqueue")
    pull = await js.pull_subscribe("s", durable="w")
    for number in range(5):
        await js.publish("s", b"%d" % number)
    for message in await pull.fetch(2, timeout=5):
        await message.ack_sync()
    assert "error" not in await restore(here, await backup(there, "S"))
    again = await (await here.jetstream().pull_subscribe_bind("w", "S")).fetch(10, timeout=2)
    assert [message.data for message in again] == [b"2", b"3", b"4"]


async def test_a_restored_stream_sources_what_is_new(here: Client, there: Client) -> None:
    for client in (here, there):
        js = client.jetstream()
        await js.add_stream(name="O", subjects=["o.>"])
        for number in range(4):
            await js.publish(f"o.{number}", b"x")
    config = {"name": "S", "sources": [{"name": "O", "filter_subject": "o.>"}]}
    await asked(there, "$JS.API.STREAM.CREATE.S", config)
    while (await there.jetstream().stream_info("S")).state.messages < 4:
        await there.flush()
    taken = await backup(there, "S")
    await there.jetstream().delete_stream("S")
    answers = [await restore(client, taken) for client in (here, there)]
    assert answers[0].keys() == answers[1].keys()
    await here.jetstream().publish("o.new", b"x")
    info = await here.jetstream().stream_info("S")
    assert info.state.messages == 5


async def test_a_restored_mirror_goes_on(here: Client) -> None:
    js = here.jetstream()
    await js.add_stream(name="O", subjects=["o"])
    for _ in range(4):
        await js.publish("o", b"x")
    await asked(here, "$JS.API.STREAM.CREATE.S", {"name": "S", "mirror": {"name": "O"}})
    taken = await backup(here, "S")
    await js.delete_stream("S")
    assert "error" not in await restore(here, taken)
    await js.publish("o", b"x")
    assert (await js.stream_info("S")).state.last_seq == 5


async def test_a_restored_schedule_fires(here: Client, there: Client) -> None:
    await asked(there, "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s", "t"], "allow_msg_schedules": True})
    headers = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "t"}
    await there.jetstream().publish("s", b"tick", headers=headers)
    told = await here.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
    assert "error" not in await restore(here, await backup(there, "S"))
    assert [(await told.next_msg(5)).subject.rsplit(".", 2)[1] for _ in range(3)] == [
        "RESTORE_CREATE",
        "CREATED",
        "RESTORE_COMPLETE",
    ]
    pull = await here.jetstream().pull_subscribe("t", stream="S")
    (message,) = await pull.fetch(1, timeout=60)
    assert message.data == b"tick"


async def test_smaller_limits_apply_to_what_is_restored(here: Client) -> None:
    await fill(here)
    taken = await backup(here, "S")
    done = await restore(here, taken, name="T", subjects=["t.>"], max_msgs=5)
    assert done["state"]["messages"] == 5
    assert done["state"]["last_seq"] == 45


# --- what goes wrong


async def both(here: Client, there: Client, subject: str, body: bytes) -> None:
    """Both servers refuse a request alike, and audit it."""
    answers = [await refused(client, subject, body) for client in (here, there)]
    assert answers[0] == answers[1]


async def refused(client: Client, subject: str, body: bytes) -> tuple[Any, ...]:
    audits = await client.subscribe("$JS.EVENT.ADVISORY.API")
    await client.flush()
    answer = json.loads((await client.request(subject, body)).data)
    assert "error" in answer
    while (audit := json.loads((await audits.next_msg(60)).data))["subject"] != subject:
        assert "SNAPSHOT" not in subject, f"{audit['subject']} is audited"
    await audits.unsubscribe()
    return answer, audit.get("request"), json.loads(audit["response"]), sorted(audit["client"].keys() - {"rtt"})


async def test_requests_are_refused_alike(here: Client, there: Client) -> None:
    for client in (here, there):
        await client.jetstream().add_stream(name="S", subjects=["s"])
    for body in (
        b"",
        b"{}",
        b'{"deliver_subject":"a.*"}',
        b"nonsense",
        b'{"deliver_subject":5}',
        b'{"deliver_subject":n}',
    ):
        await both(here, there, "$JS.API.STREAM.SNAPSHOT.S", body)
    await both(here, there, "$JS.API.STREAM.SNAPSHOT.NO", b'{"deliver_subject":"a"}')
    await both(here, there, "$JS.API.STREAM.RESTORE.S", b"")
    body = b'{"config":{"name":"S","subjects":["s"]},"state":{}}'
    await both(here, there, "$JS.API.STREAM.RESTORE.S", body)
    await both(here, there, "$JS.API.STREAM.RESTORE.T", body)
    for config in ({"retention": "nope"}, {"subjects": ["a..b"]}, {"mirror": {"name": "S"}, "subjects": ["x"]}):
        asked = json.dumps({"config": {"name": "T"} | config, "state": {}}).encode()
        await both(here, there, "$JS.API.STREAM.RESTORE.T", asked)


async def test_archives_are_audited(here: Client, there: Client) -> None:
    audited = []
    for client in (here, there):
        await client.jetstream().add_stream(name="S", subjects=["s"])
        audits = await client.subscribe("$JS.EVENT.ADVISORY.API")
        await client.flush()
        taken = await backup(client, "S")
        await client.jetstream().delete_stream("S")
        await restore(client, taken)
        await client.jetstream().stream_info("S")
        found: list[str] = []
        while not found or "INFO" not in found[-1]:
            audit = json.loads((await audits.next_msg(60)).data)
            assert "error" not in json.loads(audit["response"])
            found.append(audit["subject"])
        audited.append(found)
    assert (
        audited[0] == audited[1] == [f"$JS.API.STREAM.{verb}.S" for verb in ("SNAPSHOT", "DELETE", "RESTORE", "INFO")]
    )


async def test_the_name_of_what_is_restored_may_be_left_out(here: Client, there: Client) -> None:
    for client in (here, there):
        asked = b'{"config":{"subjects":["s"]},"state":{}}'
        answer = json.loads((await client.request("$JS.API.STREAM.RESTORE.S", asked)).data)
        assert "error" not in answer
        assert answer["deliver_subject"]


async def test_nobody_receives(here: Client) -> None:
    js = here.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    told = await here.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S")
    await asked(here, "$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
    assert json.loads((await told.next_msg(10)).data)["error"] == "no interest"


@pytest.mark.parametrize("change", ["cut", "flipped", "foreign", "empty", "longer"])
async def test_a_damaged_archive_is_refused_and_leaves_nothing(change: str, here: Client, server: Server) -> None:
    await fill(here)
    taken = await backup(here, "S")
    middle = len(taken.data) // 2
    flipped = taken.data[:middle] + bytes([taken.data[middle] ^ 1]) + taken.data[middle + 1 :]
    data = {
        "cut": taken.data[:-20],
        "flipped": flipped,
        "foreign": b"no archive" * 100,
        "empty": b"",
        "longer": taken.data + taken.data[10:],
    }[change]
    done = await restore(here, taken, data=data, name="T", subjects=["t.>"])
    assert done["error"]["err_code"] == 10062
    assert done["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    with pytest.raises(NotFoundError):
        await here.jetstream().stream_info("T")
    folder = Path(server.settings.stores["$G"].path).parent
    assert not list(folder.glob("*restore*"))


async def test_a_damaged_message_ends_a_backup(here: Client, server: Server) -> None:
    await fill(here)
    async with pelton.open(server.settings.stores["$G"].path) as jet:
        with jet.backend._db.writing():
            jet.backend._db.execute("UPDATE m_1 SET data=zeroblob(3) WHERE seq=20")
    taken = await backup(here, "S")
    assert taken.end is not None
    assert "500" in taken.end.values()
    done = await restore(here, taken, name="T", subjects=["t.>"])
    assert done["error"]["err_code"] == 10062


async def test_two_restores_of_one_name(here: Client) -> None:
    await fill(here)
    taken = await backup(here, "S")
    found = await asyncio.gather(*(restore(here, taken, name="T", subjects=["t.>"]) for _ in range(2)))
    assert sorted(one.get("error", {}).get("err_code", 0) for one in found) == [0, 10130]


async def test_an_archive_beyond_the_limit_is_refused(started: Started, connected: Connected, tmp_path: Path) -> None:
    limits = AccountLimits(max_storage=10_000)
    free = await started(stores={"$G": StoreSettings(path=str(tmp_path / "free.pelton"))})
    tight = await started(stores={"$G": StoreSettings(path=str(tmp_path / "tight.pelton"), limits=limits)})
    here, there = await connected(free), await connected(tight)
    await fill(here)
    done = await restore(there, await backup(here, "S"))
    assert done["error"]["err_code"] == 10002
    # More than any archive of so many bytes has is not even kept.
    taken = await backup(here, "S")
    done = await restore(there, taken, data=bytes(1_200_000), size=400_000)
    assert done["error"]["err_code"] == 10002


async def test_an_archive_without_a_limit_leaves_room_on_the_disk(
    here: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(here)
    taken = await backup(here, "S")
    monkeypatch.setattr(StreamArchives, "free_bytes", lambda _: 8 * len(taken.data))
    done = await restore(here, taken, name="T", subjects=["t.>"], data=bytes(4 * len(taken.data)))
    assert done["error"]["err_code"] == 10002
    monkeypatch.setattr(StreamArchives, "free_bytes", lambda _: 8 << 20)
    assert "error" not in await restore(here, taken, name="T", subjects=["t.>"])


# --- what was made to do harm


BEGIN = b"\xff\x06\x00\x00S2sTwO"


def chunk(data: bytes) -> bytes:
    """Return data as a chunk of a stream."""
    return FrameWriter().frame(data).removeprefix(BEGIN)


def opening(last: int = 10, consumers: int = 0) -> bytes:
    """Return the state with which an archive begins."""
    state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": last, "consumer_count": consumers}
    return MAGIC + encode_entry(ArchiveEntry("state.json", data=json.dumps(state).encode()))


def made(*entries: ArchiveEntry, consumers: int = 0) -> bytes:
    """Return an archive with these entries after its state."""
    return BEGIN + chunk(opening(consumers=consumers) + b"".join(map(encode_entry, (*entries, END))))


def archived(config: dict[str, Any], **state: Any) -> ArchiveEntry:
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"} | config
    body = {"config": config, "state": {"delivered": {"consumer_seq": 1, "stream_seq": 1}} | state}
    return ArchiveEntry(f"consumers/{config['name']}", data=json.dumps(body).encode())


async def restored(client: Client, data: bytes, **config: Any) -> dict[str, Any]:
    return await restore(
        client, Backup({"config": {"name": "S", "subjects": ["s"]}, "state": {}}, data, None), **config
    )


async def test_few_bytes_that_stand_for_many_are_not_unpacked(
    started: Started, connected: Connected, tmp_path: Path
) -> None:
    limits = AccountLimits(max_storage=10_000)
    tight = await started(stores={"$G": StoreSettings(path=str(tmp_path / "tight.pelton"), limits=limits)})
    size = 4 << 20
    # A zero, and its repetition.
    block = b"\x80\x80\x80\x02" + b"\x00\x00" + b"\x01\x01" + b"\x1d\x00" + (size - 5 - 65_540).to_bytes(3, "little")
    crc = crc32c(bytes(size))
    crc = (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
    bomb = b"\x00" + (len(block) + 4).to_bytes(3, "little") + crc.to_bytes(4, "little") + block
    head = b"\x01\x02\x01\x00" + b"\x80\x80\x80\x18" + b"s"
    done = await restored(await connected(tight), BEGIN + chunk(opening() + head) + bomb * 20)
    assert done["error"]["err_code"] == 10002


async def test_a_restore_checks_what_a_create_checks(here: Client) -> None:
    transforms = [{"src": "a.*", "dest": "{{wildcard(" * 9_000 + "}}"}]
    for config in (
        {"subject_transform": transforms[0]},
        {"sources": [{"name": "O", "subject_transforms": transforms}]},
        {"mirror": {"name": "O", "subject_transforms": transforms}, "subjects": []},
        {"republish": transforms[0]},
        {"subjects": ["a." * 2_000 + "b"]},
        {"subjects": ["a\0"]},
        {"num_replicas": 3},
        {"description": "x" * 5_000},
    ):
        whole = {"name": "S", "subjects": ["s"]} | config
        created = await asked(here, "$JS.API.STREAM.CREATE.S", whole)
        refused = await asked(here, "$JS.API.STREAM.RESTORE.S", {"config": whole, "state": {}})
        assert refused["error"] == created["error"]


async def test_the_consumers_of_an_archive_are_checked(started: Started, connected: Connected, tmp_path: Path) -> None:
    limits = AccountLimits(max_consumers=1, max_ack_pending=100)
    client = await connected(
        await started(stores={"$G": StoreSettings(path=str(tmp_path / "tight.pelton"), limits=limits)})
    )
    plain = {"max_ack_pending": 10}
    codes = [
        (await restored(client, made(*entries, consumers=named), **config)).get("error", {}).get("err_code", 0)
        for entries, named, config in (
            ([archived(plain), archived(plain | {"name": "d", "durable_name": "d"})], 2, {}),
            ([archived({"max_ack_pending": 101})], 1, {}),
            ([archived(plain), archived(plain)], 2, {}),
            ([archived(plain | {"name": "a.b", "durable_name": "a.b"})], 1, {}),
            ([archived(plain | {"filter_subject": "a" * 4_000})], 1, {}),
            ([archived(plain | {"deliver_policy": "new"})], 1, {"retention": "workqueue"}),
            ([archived(plain, delivered={"consumer_seq": 1 << 63, "stream_seq": 1})], 1, {}),
            ([archived(plain, pending={"1": {"Sequence": -5, "Timestamp": 1}})], 1, {}),
            ([archived(plain)] * 3, 2, {}),
            ([ArchiveEntry("consumers/c", data=b"[" * 50_000)], 1, {}),
            ([archived(plain)], 1, {}),
        )
    ]
    assert codes == [10026, 10121, 10062, 10052, 10052, 10101, 10062, 10062, 10062, 10062, 0]


async def test_numbers_out_of_bounds_are_refused(here: Client) -> None:
    for data in (
        BEGIN + chunk(opening((1 << 63) - 1) + encode_entry(END)),
        made(ArchiveEntry("s", 1 << 64, 1)),
        made(ArchiveEntry("s", 1, 1, b"NATS/1.0\r\nNats-Stream-Source: a %b b c\r\n\r\n" % (b"1" * 5_000))),
        made(ArchiveEntry("s", 1, 1, b"NATS/1.0\r\nNats-TTL: %b\r\n\r\n" % (b"1" * 5_000))),
    ):
        assert (await restored(here, data, allow_msg_ttl=True))["error"]["err_code"] == 10062
    life = b"NATS/1.0\r\nNats-TTL: 9223372036854775807\xcf\r\nNats-Msg-Id: \xcf\r\n\r\n"
    done = await restored(here, made(ArchiveEntry("s", (1 << 63) - 1, 1, life)), allow_msg_ttl=True)
    assert done["error"]["err_code"] == 10062


async def test_what_a_killed_process_left_of_a_restore_is_removed(here: Client, server: Server) -> None:
    prefix = f"{server.settings.stores['$G'].path}-restore-"
    for name in ("left", "held"):
        Path(prefix + name).mkdir()
        Path(prefix + name, "store").touch()
        Path(prefix + name, "archive").touch()
    with Path(prefix + "held", "archive").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "error" not in await restored(here, made())
    assert [path.name for path in Path(prefix).parent.glob("*-restore-*")] == [Path(prefix + "held").name]


async def test_only_so_many_transfers_are_under_way(here: Client, server: Server) -> None:
    found = []
    for number in range(65):
        config = {"name": f"S{number}", "subjects": [f"s{number}"]}
        found.append(await asked(here, f"$JS.API.STREAM.RESTORE.S{number}", {"config": config, "state": {}}))
    assert [one["error"]["err_code"] for one in found if "error" in one] == [10023]
    await server.close()
    assert not list(Path(server.settings.stores["$G"].path).parent.glob("*-restore-*"))
