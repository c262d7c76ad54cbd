"""The border between subject, filter and neither."""

import pytest

from pelton.subjects import has_wildcard, is_filter, is_subject

LITERALS = ["a", "a.b", "orders.eu.1", "$JS.API.INFO", "_INBOX.x", "ü.😀", "\v", "-", "a\u2028b"]
LITERALS += ["a*", "*a", "a>", ">>", "**", "a.>b.c"]
WILD = ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.>", "*.*", "a*.>"]
MALFORMED = ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", ">.>", ">.*"]
MALFORMED += ["a b", " ", "a.\t", "a\nb", "a\r", "a\n", "\f.a", "a\0b", "\ud800"]


@pytest.mark.parametrize("subject", LITERALS)
def test_literal_is_subject_and_filter(subject: str) -> None:
    assert is_subject(subject)
    assert is_filter(subject)
    assert not has_wildcard(subject)


@pytest.mark.parametrize("subject", WILD)
def test_wildcards_make_a_filter_only(subject: str) -> None:
    assert not is_subject(subject)
    assert is_filter(subject)
    assert has_wildcard(subject)


@pytest.mark.parametrize("subject", MALFORMED)
def test_malformed_is_neither(subject: str) -> None:
    assert not is_subject(subject)
    assert not is_filter(subject)


def test_long_subjects_are_checked_in_linear_time() -> None:
    assert is_subject(".".join(["token"] * 20_000))
    assert not is_filter(".".join(["token"] * 20_000) + ".")
