"""The public words: a page explains each of them, and they are where programs outside rely on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pelton
from pelton import jet

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "glossary.md").read_text()
ROWS = [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", PAGE, re.MULTILINE)]
TERMS = [(term, meaning) for term, meaning in ROWS if term != "word"]
# How settings, reports and the like are called is said by the noun in front of these.
_PLAIN = {"options", "settings", "status", "info", "rules", "context", "handle", "counts"}


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z][a-z]+|[a-z]+", name)]


def test_each_row_has_a_term_and_one_line_of_meaning() -> None:
    assert len(TERMS) > 80
    assert all(term and meaning for term, meaning in TERMS)
    names = [name for term, _ in TERMS for name in term.split(", ")]
    # Keys of queues and of buckets, the term of an ack and that of a leader: NATS calls them so.
    assert {name for name in names if names.count(name) > 1} == {"key", "term"}


@pytest.mark.parametrize("name", [name for name in pelton._ROOM_OF if name[0].isupper()])
def test_what_a_user_holds_is_explained(name: str) -> None:
    explained = {
        word
        for term, meaning in TERMS
        for word in re.findall(r"\w+", f"{term} {' '.join(re.findall('`(.+?)`', meaning))}")
    }
    nouns = [word for word in _words(name) if word not in _PLAIN]
    assert name in explained or any(word in explained for word in nouns), name


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            pelton.Jet,
            "create_stream update_stream delete_stream stream publish publish_batch subscribe transaction feed",
        ),
        (pelton.Jet, "feed queue bucket create_bucket objects lock semaphore elect backup restore rekey"),
        (pelton.Stream, "info create_consumer consumer purge delete_message get_message"),
        (pelton.Consumer, "fetch messages consume ack pause resume reset info"),
        (pelton.Message, "subject data headers metadata ack nak in_progress term"),
        (pelton.Queue, "job enqueue options enqueue_many work claims counts jobs history dead_letters redrive"),
        (pelton.Job, "enqueue enqueue_many bind options"),
        (pelton.JobHandle, "info outcome value"),
        (pelton.Outcome, "value"),
        (pelton.Bucket, "get put create update delete purge watch keys history status"),
        (pelton.Lock, "acquire try_acquire release holders"),
        (pelton.LockLease, "is_held check release until_lost"),
        (pelton.Election, "run stop step_down leader"),
        (pelton.Term, "is_held check lost"),
        (jet.Savepoint, "__aenter__ __aexit__"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_programs_outside_find_the_public_words(kind: type, words: str) -> None:
    assert [word for word in words.split() if not hasattr(kind, word)] == []
