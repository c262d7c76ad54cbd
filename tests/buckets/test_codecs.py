"""Codecs alone: they encode as other clients do, and decode what they encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton import Base64Codec, ChainCodec, Codec, ConfigError, PathCodec, SplitCodec


class Loud(Codec):
    def encode_key(self, key: str) -> str:
        return key.upper()


@pytest.mark.parametrize(
    ("codec", "key", "written"),
    [
        (Codec(), "a.b", "a.b"),
        (Base64Codec(), "a.b", "YQ.Yg"),
        (Base64Codec(), "a b", "YSBi"),
        (PathCodec(), "a/b/c", "a.b.c"),
        (PathCodec(), "/a/b", "_root_.a.b"),
        (PathCodec(), "/", "_root_"),
        (ChainCodec(PathCodec(), Base64Codec()), "/a", "X3Jvb3Rf.YQ"),
        (SplitCodec(keys=PathCodec()), "a/b", "a.b"),
        (SplitCodec(values=Base64Codec()), "a/b", "a/b"),
    ],
)
def test_keys_are_written_so(codec: Codec, key: str, written: str) -> None:
    assert codec.encode_key(key) == written
    assert codec.decode_key(written) == key


def test_a_slash_at_the_end_is_dropped() -> None:
    assert PathCodec().encode_key("a/b/") == "a.b"
    assert PathCodec().encode_key("/a/") == "_root_.a"


@given(st.text(min_size=1), st.binary())
def test_base64_brings_everything_back(key: str, value: bytes) -> None:
    codec = Base64Codec()
    assert codec.decode_key(codec.encode_key(key)) == key
    assert codec.decode_value(codec.encode_value(value)) == value


@pytest.mark.parametrize("written", [b"Y", b"YQ==", b"Y Q", b"Y+", b"YR", "\u00e4".encode()])
def test_what_is_no_base64_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Base64Codec().decode_value(written)


def test_wildcards_stay() -> None:
    assert Codec().encode_filter("a.*.>") == "a.*.>"
    assert Base64Codec().encode_filter("a.*.>") == "YQ.*.>"
    assert PathCodec().encode_filter("/a/*/>") == "_root_.a.*.>"
    assert ChainCodec(PathCodec(), Base64Codec()).encode_filter("a/*") == "YQ.*"
    assert SplitCodec(keys=Base64Codec()).encode_filter("*") == "*"


def test_one_without_wildcards_says_so() -> None:
    assert Loud().encode_filter("a") == "A"
    for codec in (Loud(), ChainCodec(PathCodec(), Loud()), SplitCodec(keys=Loud())):
        with pytest.raises(ConfigError, match="Loud"):
            codec.encode_filter("a.*")


def test_values_go_through_in_order_and_back_in_reverse() -> None:
    class Salted(Codec):
        def encode_value(self, value: bytes) -> bytes:
            return b"salt" + value

        def decode_value(self, value: bytes) -> bytes:
            return value.removeprefix(b"salt")

    chain = ChainCodec(Salted(), Base64Codec())
    assert chain.encode_value(b"1") == b"c2FsdDE"
    assert chain.decode_value(b"c2FsdDE") == b"1"
    assert SplitCodec(keys=Base64Codec(), values=Salted()).encode_value(b"1") == b"salt1"
    with pytest.raises(ConfigError):
        ChainCodec()
