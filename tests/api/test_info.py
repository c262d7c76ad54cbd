"""Reports: their shapes on the wire."""

import msgspec

from pelton import api
from tests.api.samples import MESSAGE
from tests.api.schemas import needs_nats, schema_errors


def test_a_publish_acknowledgement_is_as_short_as_nats_servers() -> None:
    assert msgspec.json.encode(api.PubAck("S", 1)) == b'{"stream":"S","seq":1}'
    assert msgspec.json.decode(b'{"stream":"S","seq":1,"duplicate": true}', type=api.PubAck).duplicate


def test_bytes_travel_as_base64() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MESSAGE), type=api.WireMessage) == MESSAGE
    assert b'"data":"AP8="' in msgspec.json.encode(MESSAGE)


@needs_nats
def test_states_and_acknowledgements_satisfy_the_schemas() -> None:
    for ack in (api.PubAck("S", 1), api.PubAck("S", 1, True, "hub")):
        assert schema_errors("pub_ack_response", msgspec.json.encode(ack)) == []
    state = msgspec.json.encode(api.StreamState(num_subjects=1, subjects={"a": 3}))
    assert schema_errors("definitions.json#/definitions/stream_state", state) == []
    empty = msgspec.json.encode(api.StreamState())
    assert schema_errors("definitions.json#/definitions/stream_state", empty) == []


@needs_nats
def test_who_keeps_a_stream_satisfies_the_schema() -> None:
    peers = [api.PeerInfo(name="n1", current=True, active=5), api.PeerInfo(name="n2", offline=True, lag=7)]
    told = api.ClusterInfo(name="C", leader="n0", raft_group="S-R3F-x", replicas=peers)
    body = msgspec.json.encode(told, enc_hook=api.enc_hook)
    assert schema_errors("definitions.json#/definitions/cluster_info", body) == []
    assert msgspec.json.decode(body, type=api.ClusterInfo, dec_hook=api.dec_hook) == told
