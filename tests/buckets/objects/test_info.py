"""Descriptions as other clients write them."""

from __future__ import annotations

import hashlib
import json

import pytest

import pelton
from pelton.buckets.object_info import ObjectInfo, ObjectLink, decode_info, digest_text, encode_info, is_digest

_FULL = ObjectInfo(
    name="a",
    bucket="b",
    nuid="n",
    size=5,
    chunks=1,
    digest="SHA-256=x=",
    description="d",
    headers={"h": ["1", "2"]},
    metadata={"k": "v"},
    link=ObjectLink("c", "e"),
    max_chunk_size=7,
    deleted=True,
)


def _read(**fields: object) -> ObjectInfo:
    return decode_info("b", "a", json.dumps({"name": "a", **fields}).encode(), revision=3, time_ns=4)


def test_fields_stand_in_the_order_of_the_go_client() -> None:
    assert encode_info(_FULL).decode() == (
        '{"name":"a","description":"d","headers":{"h":["1","2"]},"metadata":{"k":"v"},'
        '"options":{"link":{"bucket":"c","name":"e"},"max_chunk_size":7},"bucket":"b","nuid":"n","size":5,'
        '"mtime":"0001-01-01T00:00:00Z","chunks":1,"digest":"SHA-256=x=","deleted":true}'
    )


def test_what_is_written_is_read() -> None:
    again = decode_info("b", "a", encode_info(_FULL), revision=0, time_ns=0)
    assert again == _FULL


def test_other_clients_leave_out_and_add_fields() -> None:
    info = _read(headers={"h": "1"}, description=None, options=None, deleted=None, mtime="whenever", new=1)
    assert (info.headers, info.description, info.deleted, info.size) == ({"h": ["1"]}, "", False, 0)
    assert (info.revision, info.mtime_ns, info.mtime) == (3, 4, "1970-01-01T00:00:00.000000004Z")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"name":5}', b'{"name":"a","size":"many"}'])
def test_what_describes_nothing_is_told(data: bytes) -> None:
    with pytest.raises(pelton.ObjectDamagedError, match="its description cannot be read"):
        decode_info("b", "a", data, revision=0, time_ns=0)


@pytest.mark.parametrize("change", [str, str.lower, lambda text: text.rstrip("="), lambda text: "sha-256=" + text[8:]])
def test_digests_are_written_in_more_than_one_way(change: object) -> None:
    digest = hashlib.sha256(b"content")
    written = digest_text(digest)
    assert written.startswith("SHA-256=")
    assert is_digest(change(written) if change is not str.lower else written, digest)  # type: ignore[operator]
    assert not is_digest(change(written), hashlib.sha256(b"other"))  # type: ignore[operator]
    assert not is_digest("", digest)
