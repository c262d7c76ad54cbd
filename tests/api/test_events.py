"""Events as JSON, and the page that lists them."""

import json
from pathlib import Path

import msgspec
import pytest

from pelton.api import (
    EVENTS,
    ApiAudit,
    ConsumerAction,
    Event,
    MessageTerminated,
    StreamAction,
    decode_event,
    encode_event,
)
from pelton.api.times import Duration

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text()
COMMON = {"id", "timestamp"}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_the_page_lists_each_event_with_its_type_subject_and_fields(kind: type[Event]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    fields = ", ".join(f"`{field.encode_name}`" for field in info.fields if field.encode_name not in COMMON)
    assert f"| `{kind.__name__}` | `{info.tag}` |" in PAGE
    assert f"| `{kind.__name__}` | `{kind._subject}` | {fields} |" in PAGE


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_each_survives_the_wire(kind: type[Event]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    values = {field.name: _sample(field) for field in info.fields}
    event = kind(**values)
    assert decode_event(encode_event(event)) == event
    assert list(json.loads(encode_event(event)))[:3] == ["type", "id", "timestamp"]


def _sample(field: msgspec.inspect.Field) -> object:
    if isinstance(field.type, msgspec.inspect.LiteralType):
        return field.type.values[0]
    if isinstance(field.type, msgspec.inspect.CustomType):
        return Duration(7)
    samples = {msgspec.inspect.StrType: "x", msgspec.inspect.IntType: 7, msgspec.inspect.BoolType: True}
    kind = type(field.type)
    return samples[kind] if kind in samples else field.default_factory()  # type: ignore[operator]  # it has one


def test_subjects_say_what_was_done() -> None:
    done = [StreamAction(stream="S", action=action).subject for action in ("create", "modify", "delete")]
    assert [subject.split(".")[-2] for subject in done] == ["CREATED", "UPDATED", "DELETED"]
    assert ConsumerAction(stream="S", consumer="c", action="delete").subject == (
        "$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c"
    )


def test_the_audited_subject_has_its_name_on_the_wire() -> None:
    event = ApiAudit(api_subject="$JS.API.INFO", response="{}")
    assert json.loads(encode_event(event))["subject"] == "$JS.API.INFO"
    assert event.subject == "$JS.EVENT.ADVISORY.API"


def test_what_says_nothing_is_left_away() -> None:
    event = MessageTerminated(stream="S", consumer="c", consumer_seq=1, stream_seq=2, deliveries=3)
    assert not {"reason", "domain"} & set(json.loads(encode_event(event)))


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b'{"type": "io.nats.other"}', b"[]"])
def test_what_is_no_event(data: bytes) -> None:
    assert decode_event(data) is None


def test_fields_of_newer_servers_are_ignored() -> None:
    data = b'{"type":"io.nats.jetstream.advisory.v1.stream_action","stream":"S","action":"create","newer":1}'
    assert decode_event(data) == StreamAction(stream="S", action="create")
