"""kombu's own connections, producers and consumers on a store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

pytest.importorskip("kombu")

from kombu import Connection, Consumer, Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.transport.virtual.base import UndeliverableWarning

import pelton.contrib.kombu
from pelton.contrib.kombu.broker import job_name, queue_name, rank
from pelton.contrib.process_store import (
    address_of,
    close_process_stores,
    mask_secrets,
    process_store,
    short_token,
    token,
)
from tests.kit.nats_server import nats_server


@pytest.fixture(params=["file", "nats"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"pelton://{tmp_path}/shop.pelton"
        close_process_stores()
        return
    with nats_server(tmp_path / "nats") as running:
        yield f"pelton+{running.url}"
        close_process_stores()


@pytest.fixture
def file_url(tmp_path: Path) -> Iterator[str]:
    yield f"pelton://{tmp_path}/shop.pelton"
    close_process_stores()


def drained(connection: Connection, got: list[Any], number: int) -> list[Any]:
    while len(got) < number:
        connection.drain_events(timeout=20)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.05)
    return got


def test_messages_are_taken_by_priority_and_acknowledged(url: str) -> None:
    with Connection(url) as connection, connection.SimpleQueue("mail") as queue:
        for number in range(3):
            queue.put({"number": number}, priority=number * 4)
        assert queue.qsize() == 3
        for number in (2, 1, 0):
            message = queue.get(timeout=20)
            assert message.payload == {"number": number}
            assert message.delivery_info["redelivered"] is False
            message.ack()
        with pytest.raises(Empty):
            queue.get(timeout=0.05)
    store = process_store(address_of(url))
    counts = store.blocking.queue("mail").counts()
    assert (counts.completed, counts.unfinished) == (3, 0)


def test_rejected_messages_come_again_or_are_dead_letters(url: str) -> None:
    with Connection(url) as connection, connection.SimpleQueue("mail") as queue:
        queue.put("letter", headers={"task": "shop.send"})
        for _ in range(3):
            message = queue.get(timeout=20)
            message.requeue()
        message = queue.get(timeout=20)
        assert message.delivery_info["redelivered"] is True
        message.reject()
        with pytest.raises(Empty):
            queue.get(timeout=0.05)
    (letter,) = process_store(address_of(url)).blocking.queue("mail").dead_letters()
    assert letter.outcome.job == "shop.send"
    assert "rejected" in letter.outcome.error


def test_what_a_closed_connection_has_not_acknowledged_is_delivered_at_once(url: str) -> None:
    mail = Queue("mail")
    with Connection(url) as connection:
        producer, channel, got = connection.Producer(), connection.channel(), list[Any]()
        channel.basic_qos(0, 2, False)
        with Consumer(channel, [mail], callbacks=[lambda body, message: got.append(message)]):
            for number in range(4):
                producer.publish(number, routing_key="mail", declare=[mail])
            assert [message.payload for message in drained(connection, got, 2)] == [0, 1]
            got[0].ack()
            assert [message.payload for message in drained(connection, got, 3)] == [0, 1, 2]
    with Connection(url) as connection, connection.SimpleQueue("mail") as queue:
        assert sorted(queue.get(timeout=20).payload for _ in range(3)) == [1, 2, 3]


def test_a_cancelled_consumer_keeps_nothing_that_it_has_not_seen(file_url: str) -> None:
    mail = Queue("mail")
    with Connection(file_url) as connection, Connection(file_url) as another:
        producer, channel = connection.Producer(), connection.channel()
        for number in range(5):
            producer.publish(number, routing_key="mail", declare=[mail])
        got: list[Any] = []
        consumer = Consumer(channel, [mail], callbacks=[lambda body, message: got.append(message)])
        with consumer:
            connection.drain_events(timeout=20)
        assert len(got) == 1
        with another.SimpleQueue("mail") as queue:
            assert sorted(queue.get(timeout=20).payload for _ in range(4)) == [1, 2, 3, 4]
        got[0].ack()


def test_without_acknowledgements_messages_are_gone_when_they_are_delivered(file_url: str) -> None:
    with Connection(file_url) as connection:
        channel = connection.channel()
        mail = Queue("mail", channel=channel)
        mail.declare()
        for body in "ab":
            connection.Producer().publish(body, routing_key="mail")
        assert mail.get(no_ack=True).payload == "a"
        got: list[Any] = []
        with Consumer(channel, [mail], callbacks=[lambda body, message: got.append(body)], no_ack=True):
            assert drained(connection, got, 1) == ["b"]
        assert mail.get() is None
    assert process_store(address_of(file_url)).blocking.queue("mail").counts().unfinished == 0


KINDS = {"direct": ("a.b", ["a.b"]), "topic": ("a.#", ["a.b", "a.c"]), "fanout": ("", ["a.b", "b", "a.c"])}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_durable", [True, False])
def test_exchanges_route_between_connections(url: str, kind: str, is_durable: bool) -> None:
    key, expected = KINDS[kind]
    exchange = Exchange("events", kind)
    queue = Queue("watch", exchange, routing_key=key, durable=is_durable, auto_delete=not is_durable)
    with Connection(url) as connection, Connection(url) as another:
        channel, got = connection.channel(), list[Any]()
        with Consumer(channel, [queue], callbacks=[lambda body, message: got.append(body) or message.ack()]):
            producer = another.Producer()
            for routing_key in ("a.b", "b", "a.c"):
                producer.publish(routing_key, exchange=exchange, routing_key=routing_key, declare=[exchange])
            assert drained(connection, got, len(expected)) == expected
            if is_durable:
                queue(channel).unbind_from(exchange, routing_key=key)
                producer.publish("a.b", exchange=exchange, routing_key="a.b")
                with pytest.raises(socket.timeout):
                    connection.drain_events(timeout=0.05)


def test_queues_of_a_connection_take_answers_and_give_them_back(url: str) -> None:
    with Connection(url) as connection, Connection(url) as another:
        answers = Queue("answers", auto_delete=True, channel=connection.channel())
        answers.declare()
        another.Producer().publish("yes", routing_key="answers")
        got: list[Any] = []
        with Consumer(answers.channel, [answers], callbacks=[lambda body, message: got.append(message)]):
            drained(connection, got, 1)
            got[0].requeue()
            drained(connection, got, 2)
        assert [message.payload for message in got] == ["yes", "yes"]
        another.Producer().publish("no", routing_key="answers")
        while (message := answers.get()) is None:
            pass
        assert message.payload == "no"
        answers.delete()


def test_queues_are_declared_counted_purged_and_deleted(url: str) -> None:
    with Connection(url) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelError):
            channel.queue_declare("mail.fast", passive=True)
        exchange = Exchange("mail", "direct")
        queue = Queue("mail.fast", exchange, routing_key="fast", channel=channel)
        queue.declare()
        for number in range(3):
            connection.Producer().publish(number, exchange=exchange, routing_key="fast")
        assert channel.queue_declare("mail.fast", passive=True).message_count == 3
        assert queue.purge() == 3
        assert channel.queue_declare("mail.fast", passive=True).message_count == 0
        queue.delete()
        with pytest.raises(ChannelError):
            channel.queue_declare("mail.fast", passive=True)
        connection.Producer().publish("lost", exchange=exchange, routing_key="fast")
        assert process_store(address_of(url)).blocking.queue_names() == []


def test_a_message_for_no_queue_is_told_of(file_url: str) -> None:
    with Connection(file_url) as connection, pytest.warns(UndeliverableWarning, match="no queue 'mail'"):
        connection.Producer().publish("lost", routing_key="mail")


KILLED = """
import sys
import pelton.contrib.kombu
from kombu import Connection
with Connection(sys.argv[1], transport_options={"lease": 1}) as connection, connection.SimpleQueue("mail") as queue:
    queue.put("letter")
    print(queue.get(timeout=20).payload, flush=True)
    sys.stdin.read()
"""


def test_messages_of_a_process_that_is_killed_come_again(file_url: str) -> None:
    command = [sys.executable, "-c", KILLED, file_url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "letter\n"
        with Connection(file_url) as connection, connection.SimpleQueue("mail") as queue:
            with pytest.raises(Empty):
                queue.get(timeout=1.5)  # the lease is kept for as long as the process lives
            os.kill(process.pid, signal.SIGKILL)
            message = queue.get(timeout=20)
            assert (message.payload, message.delivery_info["redelivered"]) == ("letter", True)
            message.ack()


def test_a_job_that_a_program_has_enqueued_is_a_message(file_url: str) -> None:
    process_store(address_of(file_url)).blocking.queue("mail").enqueue("send", to="Ada")
    with Connection(file_url) as connection, connection.SimpleQueue("mail") as queue:
        message = queue.get(timeout=20)
        assert message.body == b'{"to":"Ada"}'
        message.ack()


def test_a_closed_store_is_opened_again_by_the_next_connection(file_url: str) -> None:
    with Connection(file_url) as connection:
        connection.SimpleQueue("mail").put("letter")
        channel = connection.channel()
        process_store(address_of(file_url)).close()
        with pytest.raises(connection.connection_errors):
            channel.queue_declare("other")
        assert connection.SimpleQueue("mail").get(timeout=20).payload == "letter"


def test_urls(tmp_path: Path) -> None:
    assert address_of("pelton:///var/shop.pelton") == "/var/shop.pelton"
    assert address_of("pelton://shop.pelton") == "shop.pelton"
    assert address_of("pelton+nats://host:4222") == address_of("nats://host:4222") == "nats://host:4222"
    connection = Connection("pelton+nats://ada:secret@host:4222")
    assert "secret" not in connection.as_uri()
    assert "secret" in connection.as_uri(include_password=True)
    assert connection.transport.driver_version() == pelton.__version__


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("pelton:///var/shop.pelton", "pelton:///var/shop.pelton"),
        ("pelton+nats://a:4222,b:4222", "pelton+nats://a:4222,b:4222"),
        ("pelton+nats://ada:secret@a:4222,b:4222", "pelton+nats://ada:**@a:4222,b:4222"),
        ("pelton+nats://ada:sec,r@et@a:4222", "pelton+nats://ada:**@a:4222"),
        ("pelton+nats://token@a:4222", "pelton+nats://**@a:4222"),
        ("nats://ada:secret@a:4222,ada:secret@b:4222", "nats://ada:**@b:4222"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert mask_secrets(url) == shown


def test_names() -> None:
    assert queue_name("celery") == "celery"
    assert queue_name("mail.fast") != queue_name("mail/fast")
    assert queue_name("ä" * 100).isascii()
    assert len(queue_name("a" * 100)) == 64
    assert token("a.b c") == "a=2Eb=20c"
    assert token("") == "="
    assert short_token("a.b") == "a=2Eb"
    assert len(short_token("a." * 500)) < 80
    assert [rank(number) for number in (None, -1, 0, 3, 5, 9, 12)] == [0, 0, 0, 1, 2, 3, 3]
    assert job_name({"task": "shop.send"}) == "shop.send"
    assert job_name({"task": "a b"}) == job_name(None) == "message"
