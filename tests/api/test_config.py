"""The configuration structs: fields that are always present, fields that are omitted, agreement with the schemas."""

import json

import msgspec
import pytest

from pelton import api
from tests.api.samples import CONSUMER, STREAM
from tests.api.schemas import NATS, needs_nats, schema_errors
from tests.kit.nats_server import EXTENSION_FIELDS


def keys(config: msgspec.Struct) -> set[str]:
    return set(json.loads(msgspec.json.encode(config, enc_hook=api.enc_hook)))


def test_a_stream_always_says_what_nats_server_always_says() -> None:
    always = {
        "retention",
        "max_consumers",
        "max_msgs",
        "max_bytes",
        "max_age",
        "max_msgs_per_subject",
        "storage",
    }
    always |= {"max_msg_size", "discard", "num_replicas", "compression", "allow_direct", "mirror_direct"}
    always |= {"sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_msg_ttl"}
    always |= {"consumer_limits"}
    assert keys(api.StreamConfig()) == always


def test_a_consumer_always_says_its_policies() -> None:
    always = {"deliver_policy", "ack_policy", "max_deliver", "replay_policy", "num_replicas"}
    assert keys(api.ConsumerConfig()) == always


def test_our_own_fields_travel_only_when_they_are_set() -> None:
    ours = api.ConsumerConfig(
        max_ack_pending_per_subject=1, max_ack_pending_subject_end="end", max_ack_pending_subject_ranks=("a", "b")
    )
    assert keys(ours) - keys(api.ConsumerConfig()) == EXTENSION_FIELDS


@pytest.mark.parametrize("config", [STREAM, CONSUMER, api.StreamConfig(), api.ConsumerConfig()])
def test_json_round_trip(config: msgspec.Struct) -> None:
    assert (
        msgspec.json.decode(
            msgspec.json.encode(config, enc_hook=api.enc_hook), type=type(config), dec_hook=api.dec_hook
        )
        == config
    )


@needs_nats
def test_configurations_satisfy_the_schemas() -> None:
    for stream in (STREAM, api.StreamConfig(), api.resolved_stream(STREAM)):
        assert schema_errors("stream_configuration", msgspec.json.encode(stream, enc_hook=api.enc_hook)) == []
    for consumer in (api.resolved_consumer(CONSUMER), api.ConsumerConfig()):
        assert schema_errors("consumer_configuration", msgspec.json.encode(consumer, enc_hook=api.enc_hook)) == []


@needs_nats
@pytest.mark.parametrize(
    ("struct", "name", "newer"),
    [
        (
            api.StreamConfig,
            "stream_configuration",
            {"allow_msg_counter", "allow_atomic", "allow_batched", "allow_msg_schedules", "persist_mode"},
        ),
        (api.ConsumerConfig, "consumer_configuration", set(EXTENSION_FIELDS)),
        (api.StreamSource, "stream_source", {"consumer"}),
        (api.Placement, "placement", set()),
        (api.Republish, "republish", set()),
        (api.External, "external_stream_source", set()),
        (api.ConsumerLimits, "stream_consumer_limits", set()),
    ],
)
def test_no_field_is_missing_or_invented(struct: type[msgspec.Struct], name: str, newer: set[str]) -> None:
    schema = json.loads((NATS / "schemas/definitions.json").read_text())["definitions"][name]
    assert set(struct.__struct_fields__) - set(schema["properties"]) == newer
    # NATS once had stream templates; their field is still in the schemas, and servers refuse it.
    assert set(schema["properties"]) - {"template_owner"} <= set(struct.__struct_fields__)


def test_configurations_are_frozen() -> None:
    with pytest.raises(AttributeError):
        STREAM.max_msgs = 3  # type: ignore[misc]
