"""Requests, replies and errors survive the wire and satisfy NATS's schemas."""

import json
from typing import Any

import msgspec
import pytest

from pelton import api
from tests.api.samples import EXCHANGES, STREAM
from tests.api.schemas import needs_nats, schema_errors

every_exchange = pytest.mark.parametrize(
    ("request_", "reply", "subject"), EXCHANGES, ids=[type(row[0]).__name__ for row in EXCHANGES]
)


def decoded(path: str, body: Any) -> Any:
    return api.decode_request(f"$JS.API.{path}", json.dumps(body).encode())


def refusal(path: str, body: Any) -> api.ApiError:
    with pytest.raises(api.ApiError) as caught:
        decoded(path, body)
    return caught.value


@every_exchange
def test_a_request_survives_the_wire(request_: api.Request[Any], reply: msgspec.Struct, subject: str) -> None:
    assert api.api_subject(request_) == subject
    assert api.decode_request(subject, api.encode_body(request_)) == request_


@every_exchange
def test_a_reply_survives_the_wire(request_: api.Request[Any], reply: msgspec.Struct, subject: str) -> None:
    assert api.decode_reply(request_, api.encode_reply(type(request_), reply)) == reply


@needs_nats
@every_exchange
def test_requests_and_replies_satisfy_the_schemas(
    request_: api.Request[Any], reply: msgspec.Struct, subject: str
) -> None:
    row = next(row for row in api.VERBS if row.request is type(request_))
    kind = row.reply_type.removeprefix("io.nats.jetstream.api.v1.")
    # The schema of an unpin's reply requires the type of a pause's, which no server sends.
    if kind != "consumer_unpin_response":
        assert schema_errors(kind, api.encode_reply(type(request_), reply)) == []
    error = api.api_error("JSStreamNotFoundErr")
    # Schemas of lists require paging fields even beside an error; no client reads them there.
    # That of a pause matches an error twice.
    if not kind.endswith(("names_response", "list_response", "pause_response", "unpin_response")):
        assert schema_errors(kind, api.encode_error(type(request_), error)) == []
    body = api.encode_body(request_)
    name = kind.replace("response", "request")
    bodiless = ("account_info", "stream_delete", "stream_update", "consumer_info", "consumer_delete")
    if body and not name.startswith(bodiless):
        assert schema_errors(name, body) == []


def test_the_table_knows_every_request_once() -> None:
    assert {type(row[0]) for row in EXCHANGES} == {row.request for row in api.VERBS}
    assert len({row.name for row in api.VERBS}) == len(api.VERBS)


@every_exchange
def test_an_error_in_place_of_a_reply_is_raised(
    request_: api.Request[Any], reply: msgspec.Struct, subject: str
) -> None:
    body = api.encode_error(type(request_), api.api_error("JSStreamNotFoundErr"))
    with pytest.raises(api.StreamNotFoundError) as caught:
        api.decode_reply(request_, body)
    if not isinstance(request_, api.AccountInfoRequest | api.StreamNames | api.StreamList):
        assert caught.value.stream == "orders"


def test_fields_of_newer_servers_in_replies_are_ignored() -> None:
    body = b'{"type":"x","success":true,"shine":1}'
    assert api.decode_reply(api.StreamDelete(name="orders"), body) == api.Success()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"message":3}', b'{"error":"no"}'])
def test_what_is_no_reply_is_told(body: bytes) -> None:
    with pytest.raises(api.ApiError, match=r"the reply to STREAM.MSG.GET cannot be read.*stream 'orders'"):
        api.decode_reply(api.MsgGet(stream="orders", seq=1), body)


def test_other_subjects_are_no_verbs() -> None:
    for subject in (
        "$JS.API.STREAM.SHINE.x",
        "$JS.API.STREAM.INFO",
        "$JS.API.STREAM.INFO.a.b",
        "x.INFO",
        "INFO",
    ):
        assert api.decode_request(subject, b"") is None
    assert api.decode_request("$JS.API.INFOS", b"") is None


def test_another_prefix() -> None:
    request = api.StreamDelete(name="orders")
    assert api.api_subject(request, "$JS.hub.API") == "$JS.hub.API.STREAM.DELETE.orders"
    assert api.decode_request("$JS.hub.API.STREAM.DELETE.orders", b"", "$JS.hub.API") == request


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "a>", "a\n"])
def test_names_that_would_change_the_subject_are_refused(name: str) -> None:
    with pytest.raises(api.ConfigError, match="cannot name a stream"):
        api.api_subject(api.StreamInfoRequest(name=name))


def test_a_consumer_without_a_name_or_with_a_filter_on_everything() -> None:
    nameless = api.ConsumerCreate(stream_name="S", config=api.ConsumerConfig(filter_subject="a.b"))
    assert api.api_subject(nameless) == "$JS.API.CONSUMER.CREATE.S"
    everything = api.ConsumerCreate(stream_name="S", config=api.ConsumerConfig(name="c", filter_subject=">"))
    assert api.api_subject(everything) == "$JS.API.CONSUMER.CREATE.S.c"


def test_wire_defaults_of_a_consumer_are_the_protocols() -> None:
    request = decoded("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {}})
    assert (request.config.name, request.config.ack_policy) == ("c", "none")


def test_the_older_durable_subject() -> None:
    request = decoded("CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c"}})
    assert isinstance(request, api.ConsumerCreate)
    assert request.config.durable_name == "c"


@pytest.mark.parametrize(
    ("path", "body", "constant"),
    [
        ("STREAM.CREATE.a", {"name": "b"}, "JSStreamMismatchErr"),
        ("STREAM.CREATE.a", {"name": "a", "shine": 1}, "JSInvalidJSONErr"),
        ("STREAM.CREATE.a", {"name": "a", "sources": [{"name": "b", "x": 1}]}, "JSInvalidJSONErr"),
        ("STREAM.CREATE.a", {"name": "a", "max_msgs": "3"}, "JSInvalidJSONErr"),
        ("STREAM.NAMES", [], "JSInvalidJSONErr"),
        ("CONSUMER.CREATE.S.c", {"stream_name": "T", "config": {}}, "JSStreamMismatchErr"),
        (
            "CONSUMER.CREATE.S.c",
            {"stream_name": "S", "config": {"name": "c", "durable_name": "d"}},
            "JSConsumerDurableNameNotMatchSubjectErr",
        ),
        (
            "CONSUMER.CREATE.S",
            {"stream_name": "S", "config": {"name": "c", "durable_name": "d"}},
            "JSConsumerEphemeralWithDurableNameErr",
        ),
        (
            "CONSUMER.CREATE.S.c.x.y",
            {"stream_name": "S", "config": {"filter_subject": "x.z"}},
            "JSConsumerCreateFilterSubjectMismatchErr",
        ),
    ],
)
def test_requests_that_contradict_themselves(path: str, body: Any, constant: str) -> None:
    assert refusal(path, body).constant == constant


def test_names_repeated_in_the_body_give_way_to_the_subject() -> None:
    assert decoded("STREAM.INFO.a", {"name": "b"}) == api.StreamInfoRequest(name="a")


def test_broken_json_is_a_bad_request() -> None:
    with pytest.raises(api.BadRequestError, match="invalid JSON"):
        api.decode_request("$JS.API.STREAM.NAMES", b"{")


def test_pedantic_stands_beside_the_configuration() -> None:
    body = json.loads(api.encode_body(api.StreamCreate(config=STREAM, pedantic=True)))
    assert body["pedantic"] is True
    assert body["max_age"] == 3600 * 10**9
