"""One full example of every request and of every reply, for tests that walk the table of verbs."""

from typing import Any

import msgspec

from pelton import api

NOW = "2026-01-02T03:04:05.123456789Z"

STREAM = api.stream_config(
    "orders",
    description="what was ordered",
    subjects=["orders.>"],
    retention="workqueue",
    discard="new",
    discard_new_per_subject=True,
    max_msgs_per_subject=1,
    max_age=3600,
    duplicate_window=60,
    placement={"cluster": "here", "tags": ["ssd"]},
    sources=[{"name": "inbox", "opt_start_seq": 3, "external": {"api": "$JS.x.API", "deliver": "d"}}],
    subject_transform={"src": "a.*", "dest": "b.{{wildcard(1)}}"},
    republish={"src": ">", "dest": "copy.>", "headers_only": True},
    consumer_limits={"inactive_threshold": 5, "max_ack_pending": 10},
    allow_msg_ttl=True,
    subject_delete_marker_ttl=10,
    metadata={"team": "shop"},
)
CONSUMER = api.consumer_config(
    durable_name="garage",
    filter_subject="orders.eu.>",
    ack_wait=45,
    max_deliver=5,
    backoff=[1, 2.5],
    metadata={"team": "shop"},
)
STREAM_INFO = api.StreamInfo(
    config=api.resolved_stream(STREAM),
    created=NOW,
    ts=NOW,
    state=api.StreamState(messages=2, bytes=90, first_seq=1, last_seq=3, num_deleted=1, deleted=[2]),
)
CONSUMER_INFO = api.ConsumerInfo(
    stream_name="orders",
    name="garage",
    created=NOW,
    config=api.resolved_consumer(CONSUMER),
    delivered=api.SequenceInfo(consumer_seq=4, stream_seq=3, last_active=NOW),
    ack_floor=api.SequenceInfo(consumer_seq=1, stream_seq=1),
    num_ack_pending=1,
    num_redelivered=1,
    num_pending=7,
    ts=NOW,
)
MESSAGE = api.WireMessage(subject="orders.eu.1", seq=3, hdrs=b"NATS/1.0\r\n\r\n", data=b"\x00\xff", time=NOW)

PAGE = {"total": 1, "offset": 0, "limit": 256}
EXCHANGES: list[tuple[api.Request[Any], msgspec.Struct, str]] = [
    (api.AccountInfoRequest(), api.AccountInfo(streams=1), "$JS.API.INFO"),
    (api.StreamCreate(config=STREAM), STREAM_INFO, "$JS.API.STREAM.CREATE.orders"),
    (api.StreamUpdate(config=STREAM, pedantic=True), STREAM_INFO, "$JS.API.STREAM.UPDATE.orders"),
    (
        api.StreamInfoRequest(name="orders", subjects_filter=">", offset=2),
        STREAM_INFO,
        "$JS.API.STREAM.INFO.orders",
    ),
    (
        api.StreamNames(subject="orders.>"),
        api.StreamNamesReply(streams=("orders",), **PAGE),
        "$JS.API.STREAM.NAMES",
    ),
    (api.StreamList(offset=1), api.StreamListReply(streams=(STREAM_INFO,), **PAGE), "$JS.API.STREAM.LIST"),
    (api.StreamDelete(name="orders"), api.Success(), "$JS.API.STREAM.DELETE.orders"),
    (
        api.StreamPurge(name="orders", filter="orders.eu.>", keep=2),
        api.PurgeReply(purged=3),
        "$JS.API.STREAM.PURGE.orders",
    ),
    (api.MsgGet(stream="orders", seq=3), api.MsgGetReply(message=MESSAGE), "$JS.API.STREAM.MSG.GET.orders"),
    (api.MsgDelete(stream="orders", seq=3), api.Success(), "$JS.API.STREAM.MSG.DELETE.orders"),
    (
        api.ConsumerCreate(stream_name="orders", config=api.resolved_consumer(CONSUMER), action="create"),
        CONSUMER_INFO,
        "$JS.API.CONSUMER.CREATE.orders.garage.orders.eu.>",
    ),
    (
        api.ConsumerInfoRequest(stream="orders", name="garage"),
        CONSUMER_INFO,
        "$JS.API.CONSUMER.INFO.orders.garage",
    ),
    (
        api.ConsumerNames(stream="orders"),
        api.ConsumerNamesReply(consumers=("garage",), **PAGE),
        "$JS.API.CONSUMER.NAMES.orders",
    ),
    (
        api.ConsumerList(stream="orders"),
        api.ConsumerListReply(consumers=(CONSUMER_INFO,), **PAGE),
        "$JS.API.CONSUMER.LIST.orders",
    ),
    (
        api.ConsumerPause(stream="orders", name="garage", pause_until=NOW),
        api.PauseReply(paused=True, pause_until=NOW, pause_remaining=5),
        "$JS.API.CONSUMER.PAUSE.orders.garage",
    ),
    (
        api.ConsumerReset(stream="orders", name="garage", seq=3),
        api.ConsumerResetReply(
            **{name: getattr(CONSUMER_INFO, name) for name in CONSUMER_INFO.__struct_fields__}, reset_seq=3
        ),
        "$JS.API.CONSUMER.RESET.orders.garage",
    ),
    (
        api.ConsumerUnpin(stream="orders", name="garage", group="jobs"),
        api.UnpinReply(),
        "$JS.API.CONSUMER.UNPIN.orders.garage",
    ),
    (
        api.ConsumerDelete(stream="orders", name="garage"),
        api.Success(),
        "$JS.API.CONSUMER.DELETE.orders.garage",
    ),
]
