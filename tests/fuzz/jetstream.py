"""Requests of the JetStream API, messages with headers, acks, and archives. Pure functions of a random source."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, Final, NamedTuple

from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.direct import DirectGet
from pelton.api.message import NextRequest
from pelton.server.archive import END, MAGIC, ArchiveEntry, FrameWriter, encode_entry
from tests.fuzz.odd import OTHERS, TEXTS, mutated, odd_json, odd_object
from tests.kit.nats_server import EXTENSION_FIELDS

_HOUR: Final = 3_600_000_000_000
# What streams and consumers may be; times that pass while a case runs are none of it.
_STREAM: Final[dict[str, tuple[Any, ...]]] = {
    "subjects": (["s.>"], ["s.*"], ["s.1", "s.2"], ["t.>"], ["s.>", "s.1"], [">"], [], ["s.1", "S.1"]),
    "retention": ("limits", "workqueue", "interest", "x"),
    "discard": ("old", "new"),
    "storage": ("file", "memory", "tape"),
    "max_consumers": (-1, 0, 1, 2),
    "max_msgs": (-1, 0, 1, 3),
    "max_bytes": (-1, 0, 1, 200, 100_000),
    "max_age": (0, _HOUR, 1, -1),
    "max_msgs_per_subject": (-1, 0, 1, 2),
    "max_msg_size": (-1, 0, 5, 100),
    "discard_new_per_subject": (True, False),
    "num_replicas": (0, 1, 2, 3, -1),
    "no_ack": (True, False),
    "duplicate_window": (0, _HOUR, 1_000_000, 2 * _HOUR, -1),
    "compression": ("none", "s2", "x"),
    "first_seq": (0, 1, 10),
    "allow_direct": (True, False),
    "mirror_direct": (True, False),
    "sealed": (True, False),
    "deny_delete": (True, False),
    "deny_purge": (True, False),
    "allow_rollup_hdrs": (True, False),
    "allow_msg_ttl": (True, False),
    "allow_msg_counter": (True, False),
    "allow_atomic": (True, False),
    "allow_msg_schedules": (True, False),
    "subject_delete_marker_ttl": (0, _HOUR, 1),
    "metadata": ({}, {"a": "b"}, {"_nats.x": "y"}),
    "description": ("", "d", "x" * 5000),
    "republish": (
        {"src": ">", "dest": "r.>"},
        {"src": "s.*", "dest": "r.{{wildcard(1)}}"},
        {"dest": "s.x"},
    ),
    "subject_transform": (
        {"src": "s.*", "dest": "s.{{wildcard(1)}}.x"},
        {"src": ">", "dest": "q.>"},
        {"src": "s.*", "dest": "q.{{x}}"},
    ),
    "consumer_limits": ({"max_ack_pending": 5}, {"inactive_threshold": _HOUR}, {"max_ack_pending": -1}),
    "placement": ({"cluster": "x"}, {"tags": ["a"]}, {}),
    "mirror": ({"name": "X"}, {"name": ""}, {"name": "X", "filter_subject": "a", "subject_transforms": []}),
    "sources": (
        [{"name": "X"}],
        [{"name": "X"}, {"name": "X"}],
        [{"name": "X", "external": {"api": "a", "deliver": "d"}}],
    ),
    "persist_mode": ("", "default", "async", "x"),
}
_CONSUMER: Final[dict[str, tuple[Any, ...]]] = {
    "durable_name": ("c", "d", "a.b", ""),
    "name": ("c", "d", "a b", ""),
    "deliver_policy": ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject", "x"),
    "opt_start_seq": (0, 1, 2, 99),
    "opt_start_time": ("2020-01-01T00:00:00Z", "2036-01-01T00:00:00Z", "x"),
    "ack_policy": ("none", "all", "explicit", "x"),
    "ack_wait": (0, _HOUR, 2 * _HOUR, -1),
    "max_deliver": (-1, 0, 1, 2, -5),
    "backoff": ([], [_HOUR], [_HOUR, 2 * _HOUR], [-1]),
    "filter_subject": ("", "s.1", "s.>", "t", "a..b"),
    "filter_subjects": ([], ["s.1"], ["s.1", "s.2"], ["s.>", "s.1"], [""]),
    "replay_policy": ("instant", "original", "x"),
    "sample_freq": ("", "100", "50%", "x"),
    "max_waiting": (0, 1, 2, -1),
    "max_ack_pending": (-1, 0, 1, 2, -2),
    "headers_only": (True, False),
    "max_batch": (0, 1, 2, -1),
    "max_expires": (0, _HOUR, -1, 1),
    "max_bytes": (0, 100, -1),
    "flow_control": (True, False),
    "idle_heartbeat": (0, _HOUR, 1),
    "deliver_group": ("", "g", "a b"),
    "inactive_threshold": (0, _HOUR, -1),
    "num_replicas": (0, 1, 2, -1),
    "mem_storage": (True, False),
    "metadata": ({}, {"a": "b"}),
    "priority_groups": ([], ["g"], ["g", "h"], ["a b"]),
    "priority_policy": ("", "overflow", "pinned_client", "prioritized", "x"),
    "priority_timeout": (0, _HOUR, -1),
    "pause_until": ("2036-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "x"),
}
_FILTERS: Final[dict[str, list[bytes]]] = {"c": [], "d": [b'"s.>"']}
_FILTER: Final = re.compile(rb'(?i)"filter_subjects?": ?([^,}]*)')
_BLOCK: Final = re.compile(rb"NATS/1\.0\r\n([^\r\n]+\r\n)*\r\n")
_STREAM_NAMES: Final = (*StreamConfig.__struct_fields__, "pedantic")
_CONSUMER_NAMES: Final = tuple(name for name in ConsumerConfig.__struct_fields__ if name not in EXTENSION_FIELDS)
HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "Nats-Msg-Id": ("1", "2", "", "x" * 300),
    "Nats-Expected-Stream": ("S", "T", ""),
    "Nats-Expected-Last-Sequence": ("0", "3", "4", "-1", "x", ""),
    "Nats-Expected-Last-Subject-Sequence": ("0", "1", "3", "x", "-1"),
    "Nats-Expected-Last-Subject-Sequence-Subject": ("s.1", "s.>", "t", "a..b", ""),
    "Nats-Expected-Last-Msg-Id": ("", "1", "2"),
    "Nats-Rollup": ("sub", "all", "never", "SUB", ""),
    "Nats-TTL": ("1h", "3600", "never", "-1", "0", "x", "", "9999999999999999999"),
    "Nats-Incr": ("1", "+5", "-3", "x", "", "0", "9" * 40),
    "Nats-Counter-Sources": ("{}", "x"),
    "Nats-Schedule": ("@at 2036-01-01T00:00:00Z", "@every 1h", "x", "@at x", "0 0 * * * *"),
    "Nats-Schedule-Target": ("s.9", "q.1", "s.>", ""),
    "Nats-Schedule-TTL": ("1h", "x"),
    "Nats-Batch-Id": ("b", "b2", "", "x" * 70),
    "Nats-Batch-Sequence": ("1", "2", "3", "0", "x"),
    "Nats-Batch-Commit": ("1", "eob", "0", "x"),
    "Nats-Required-Api-Level": ("0", "1", "2", "99", "x"),
    "Nats-Stream-Source": ("X 1", "x"),
    "Nats-Marker-Reason": ("MaxAge",),
    "KV-Operation": ("DEL", "PURGE"),
}


class Asked(NamedTuple):
    """A message; it is sent with a reply subject of its own."""

    subject: str
    data: bytes
    block: bytes = b""


def requests(random: Random, number: int = 30) -> list[Asked]:
    """A program on streams S and T, beginning with one that is as it should be."""
    begin = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    found = [Asked("$JS.API.STREAM.CREATE.S", _config(random, begin, _STREAM, random.choice((0.0, 0.3, 0.6)), 0.0))]
    oddness = random.choice((0.0, 0.1, 0.4))
    while len(found) < number:
        make = random.choice((_published, _published, _stream, _consumer, _read, _pulled, _acked, _about))
        found.append(make(random, oddness))
    return found


def _config(
    random: Random, fields: dict[str, Any], options: dict[str, tuple[Any, ...]], more: float, odd: float
) -> bytes:
    fields = dict(fields)
    while random.random() < more:
        name = random.choice(list(options))
        fields[name] = random.choice(options[name])
    return odd_object(random, fields, _STREAM_NAMES if options is _STREAM else _CONSUMER_NAMES, odd)


def _name(random: Random, usual: str, odd: float) -> str:
    if random.random() < odd / 4:
        return random.choice(("X", "", "a.b", "*", ">", "x" * 300, "ä", "S.x", "s", "a\\b"))
    return usual


def _stream(random: Random, odd: float) -> Asked:
    name, said = random.choice(("S", "S", "T")), _name
    verb = random.choice(("CREATE", "UPDATE", "UPDATE", "DELETE"))
    path = said(random, name, odd)
    if verb == "DELETE":
        body = random.choice(OTHERS).encode() if random.random() < odd else b""
    else:
        subjects = ["s.>"] if name == "S" else ["t.>"]
        body = _config(random, {"name": said(random, name, odd), "subjects": subjects}, _STREAM, 0.5, odd)
    return Asked(f"$JS.API.STREAM.{verb}.{path}", body)


def _consumer(random: Random, odd: float) -> Asked:
    name = random.choice(("c", "d", f"f{random.randrange(1 << 20)}"))
    if random.random() < 0.15:
        return Asked(f"$JS.API.CONSUMER.DELETE.S.{_name(random, name, odd)}", b"")
    begin: dict[str, Any] = {"durable_name": name, "name": name, "ack_policy": "explicit"}
    if name == "d":
        begin["filter_subject"] = "s.>"
    config = _config(random, begin, _CONSUMER, 0.5, odd)
    if name in _FILTERS and _FILTER.findall(config) != _FILTERS[name]:
        # Of a filter that has changed, nats-server knows more or less of what is there, by what it has looked at.
        config = json.dumps(begin).encode()
    fields = {"stream_name": _name(random, "S", odd), "config": config.decode("utf-8", "replace").encode()}
    if random.random() < 0.3:
        fields["action"] = random.choice(("", "create", "update", "x"))
    path = random.choice((f"CREATE.S.{name}",) * 4 + (f"DURABLE.CREATE.S.{name}", f"CREATE.S.{name}.s.1"))
    body = odd_object(random, fields, ("stream_name", "config", "action", "pedantic"), odd / 2)
    return Asked(f"$JS.API.CONSUMER.{path}", body)


def _read(random: Random, odd: float) -> Asked:
    kind = random.randrange(4)
    by = random.choice(
        ({"seq": 1}, {"seq": 2}, {"last_by_subj": "s.1"}, {"seq": 2, "next_by_subj": "s.>"}, {"seq": 99})
    )
    body = odd_object(random, by, (*DirectGet.__struct_fields__, "no_hdr"), odd)
    if kind == 0:
        return Asked(f"$JS.API.STREAM.MSG.GET.{_name(random, 'S', odd)}", body)
    if kind == 1:
        by = odd_object(random, {"seq": random.randrange(5)}, ("seq", "no_erase"), odd)
        return Asked("$JS.API.STREAM.MSG.DELETE.S", by)
    if kind == 2:
        return Asked(f"$JS.API.DIRECT.GET.S.{random.choice(('s.1', 's.2', 't', 's.>', '', 's..1'))}", b"")
    many = random.choice(
        ({"seq": 1, "batch": 3}, {"multi_last": ["s.>"]}, {"multi_last": ["s.1", "s.2"], "batch": 1}, by)
    )
    return Asked("$JS.API.DIRECT.GET.S", odd_object(random, many, DirectGet.__struct_fields__, odd))


def _pulled(random: Random, odd: float) -> Asked:
    fields = {"batch": random.choice((1, 2, 5)), "no_wait": True}
    body = odd_object(
        random, fields, tuple(name for name in NextRequest.__struct_fields__ if name != "expires"), odd / 2
    )
    body = random.choice((body, body, body, b"3", b""))
    return Asked(f"$JS.API.CONSUMER.MSG.NEXT.{_name(random, 'S', odd)}.{_name(random, random.choice('cd'), odd)}", body)


def _acked(random: Random, odd: float) -> Asked:
    numbers = [str(random.randrange(1, 4)) for _ in range(3)]
    if random.random() < odd:
        numbers[random.randrange(3)] = random.choice(("0", "99"))
    texts = (
        b"+ACK",
        b"-NAK",
        b"+TERM",
        b"+TERM why",
        b"+WPI",
        b"",
        b"-NAK " + odd_object(random, {"delay": _HOUR}, (), odd),
    )
    odd_ones = (
        b"+NXT",
        b"+NXT 1",
        b'+NXT {"no_wait":true,"batch":1}',
        b"+OK",
        b"ACK",
        b"+ack",
        b"+ACK x",
        b"-NAK x",
        b"\xcf",
    )
    data = random.choice(odd_ones if random.random() < odd else texts)
    return Asked(f"$JS.ACK.S.{random.choice('cd')}.{'.'.join(numbers)}.1700000000000000000.0", data)


_ARCHIVED: Final = "STREAM.SNAPSHOT.S"
_NUL: Final = b"\\u0000"
_ABOUT: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "INFO": ({}, ()),
    "STREAM.NAMES": ({}, ("subject", "offset")),
    "STREAM.LIST": ({}, ("subject", "offset")),
    "STREAM.INFO.S": ({"subjects_filter": ">"}, ("deleted_details", "subjects_filter", "offset")),
    "STREAM.INFO.T": ({}, ()),
    "STREAM.PURGE.S": ({"filter": "s.1"}, ("filter", "seq", "keep")),
    _ARCHIVED: ({"deliver_subject": "d"}, ("deliver_subject", "no_consumers", "chunk_size", "jsck")),
    "STREAM.PEER.REMOVE.S": ({"peer": "x"}, ("peer",)),
    "STREAM.LEADER.STEPDOWN.S": ({}, ("placement",)),
    "CONSUMER.NAMES.S": ({}, ("offset", "subject")),
    "CONSUMER.LIST.S": ({}, ("offset",)),
    "CONSUMER.INFO.S.c": ({}, ()),
    "CONSUMER.PAUSE.S.c": ({"pause_until": "2036-01-01T00:00:00Z"}, ("pause_until",)),
    "CONSUMER.RESET.S.c": ({"seq": 2}, ("seq",)),
    "CONSUMER.UNPIN.S.c": ({"group": "g"}, ("group",)),
    "CONSUMER.LEADER.STEPDOWN.S.c": ({}, ()),
    "ACCOUNT.PURGE.X": ({}, ()),
    "META.LEADER.STEPDOWN": ({}, ()),
    "NONSENSE": ({}, ()),
}


def _about(random: Random, odd: float) -> Asked:
    path = random.choice(list(_ABOUT))
    fields, names = _ABOUT[path]
    if random.random() < 0.5:
        fields = {}
    body = odd_object(random, fields, names, odd) if fields or random.random() < odd else b""
    if random.random() < odd / 3:
        body = random.choice(OTHERS).encode()
    # A subject that holds NUL is none here: an archive cannot be sent to it.
    return Asked(f"$JS.API.{path}", b"" if path == _ARCHIVED and _NUL in body else body)


def _published(random: Random, odd: float) -> Asked:
    subject = random.choice(("s.1", "s.1", "s.2", "s.3", "t.1", "s.1.2"))
    data = random.choice((b"", b"x", b"12345", b'{"val":"5"}', b"y" * 200))
    if random.random() < 0.4:
        return Asked(subject, data)
    lines = [b"NATS/1.0"]
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        name = random.choice(list(HEADERS))
        value = random.choice(TEXTS).strip() if random.random() < odd / 2 else random.choice(HEADERS[name])
        lines.append(f"{name}: {value}".encode("utf-8", "surrogatepass"))
    block = b"\r\n".join([*lines, b"", b""])
    other = mutated(random, block) if random.random() < odd / 3 else block
    # From a block whose lines are broken, nats-server cuts what it takes for headers.
    return Asked(subject, data, other if _BLOCK.fullmatch(other) else block)


# --- archives


class Restored(NamedTuple):
    """A request to restore a stream R, and the archive in the chunks in which it is sent."""

    request: bytes
    chunks: list[bytes]


def archives(random: Random, number: int = 3) -> list[Restored]:
    """Archives, odd in their bytes, their entries, their state, or in what is asked for."""
    return [_archive(random) for _ in range(number)]


def _archive(random: Random) -> Restored:
    level = random.choice(("even", "frames", "content", "entries", "state", "request"))
    odd = 0.7 if level == "entries" else 0.0
    subjects, count = ("r.1", "r.2", "r.3"), random.randrange(6)
    messages = [
        ArchiveEntry(
            random.choice(subjects), 1_700_000_000_000_000_000 + seq, seq, b"", b"x" * random.choice((0, 5, 900))
        )
        for seq in range(1, count + 1)
    ]
    if count and random.random() < odd:
        at = random.randrange(count)
        messages[at] = random.choice(
            (
                messages[at]._replace(seq=random.choice((0, 99, 1, 1 << 62))),
                messages[at]._replace(ts=random.choice((0, -5, 1 << 62))),
                messages[at]._replace(name=random.choice(("", "t", "r.>", "a b", "x" * 3000))),
                messages[at]._replace(
                    hdr=random.choice((b"x", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"NATS/1.0\r\n\xcf: 1\r\n\r\n"))
                ),
            )
        )
    if random.random() < odd:
        random.shuffle(messages)
    state: dict[str, Any] = {
        "messages": count,
        "bytes": 100,
        "first_seq": 1,
        "first_ts": "2023-11-14T22:13:20.000000001Z",
        "last_seq": count,
        "last_ts": "2023-11-14T22:13:20.000000005Z",
        "consumer_count": 0,
    }
    if level == "state":
        name = random.choice(list(state))
        state[name] = odd_json(random).encode("utf-8", "replace") or b"null"
    entries = [ArchiveEntry("state.json", data=odd_object(random, state, (), 0.0)), *messages, END]
    if random.random() < odd / 2:
        entries.insert(
            random.randrange(len(entries) + 1),
            random.choice((END, ArchiveEntry("x", data=b"{}"), ArchiveEntry("consumers/c", data=b"{}"), entries[0])),
        )
    content = MAGIC + b"".join(map(encode_entry, entries))
    if level == "content":
        content = mutated(random, content)
    writer = FrameWriter()
    size = random.choice((len(content), 100, 1000))
    data = b"".join(writer.frame(content[at : at + size]) for at in range(0, len(content), size))
    if level == "frames":
        data = mutated(random, data)
    config = _config(
        random,
        {"name": "R", "subjects": ["r.>"]},
        _STREAM,
        0.5 if level == "request" else 0.0,
        0.5 if level == "request" else 0.0,
    )
    request = b'{"config":' + config + b',"state":' + json.dumps({"messages": count, "last_seq": count}).encode() + b"}"
    step = random.choice((len(data) or 1, 50, 500))
    return Restored(request, [data[at : at + step] for at in range(0, len(data), step)])
