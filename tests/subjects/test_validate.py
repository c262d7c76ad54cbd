"""The boundary between valid subjects, valid filters and invalid text."""

import pytest

from pelton.subjects import LONGEST, fault_of, has_wildcard, is_filter, is_subject

LITERALS = ["a", "a.b", "orders.eu.1", "$JS.API.INFO", "_INBOX.x", "ü.😀", "-", "a\u2028b"]
LITERALS += ["a*", "*a", "a>", ">>", "**", "a.>b.c"]
WILD = ["*", ">", "a.*", "*.a", "a.*.b", "a.>", "*.>", "*.*", "a*.>"]
MALFORMED = ["", ".", "a.", ".a", "a..b", ">.a", "a.>.b", ">.>", ">.*"]
MALFORMED += ["a b", " ", "a.\t", "a\nb", "a\r", "a\n", "\f.a", "\v", "a\v", "a\0b", "\ud800"]


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


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_length_is_counted_in_bytes(letter: str) -> None:
    longest = letter * (LONGEST // len(letter.encode()))
    assert is_subject(longest)
    assert is_filter(longest)
    assert not is_subject(longest + letter)
    assert not is_filter(longest + letter)


def test_long_subjects_are_checked_in_linear_time() -> None:
    assert is_subject(".".join(["x"] * (LONGEST // 2)))
    assert not is_filter(".".join(["token"] * 20_000))
    assert not is_filter(".".join(["token"] * 20_000) + ".")


@pytest.mark.parametrize("subject", [*LITERALS, *WILD, *MALFORMED, "x" * (LONGEST + 1)])
def test_a_fault_is_named_where_there_is_one(subject: str) -> None:
    assert bool(fault_of(subject)) is not is_subject(subject)
    assert bool(fault_of(subject, wildcards=True)) is not is_filter(subject)


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("", "it is empty"),
        ("a..b", "it has an empty token: a dot at an end, or two in a row"),
        ("a.\v", "it holds white space"),
        ("a\0", "it holds a NUL character"),
        ("a\udc80", "it holds a lone surrogate, which has no UTF-8 form"),
        ("é" * LONGEST, f"it has {2 * LONGEST} bytes, and {LONGEST} are the most"),
        ("a.*", "'*' and '>' as tokens are wildcards, for filters"),
    ],
)
def test_faults_are_told_in_words(subject: str, fault: str) -> None:
    assert fault_of(subject) == fault
    assert fault_of(">.a", wildcards=True) == "only its last token can be '>'"
