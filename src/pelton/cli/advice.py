"""Errors in the words of the command line: what the library says for programs, and what a person types instead."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    "check its name, or create it with create_stream": "see 'pelton stream ls', or create it with 'pelton stream add'",
    "create it with create_consumer, with a durable_name if it has to outlive its clients": (
        "see 'pelton consumer ls', or create it with 'pelton consumer add'"
    ),
    "check its name, or create it with create_bucket": "see 'pelton kv ls', or create it with 'pelton kv add'",
    "check its name, or create it with create_objects": (
        "check its name, or create it with 'pelton object put --create'"
    ),
    "create a stream whose subjects match it, or check the spelling": (
        "check the spelling, see 'pelton stream ls', or create one with 'pelton stream add'"
    ),
    "stream.info() tells which sequences it holds": "'pelton stream info' tells which sequences it holds",
    "see jobs(), history() and dead_letters() for its jobs": "see 'pelton jobs ls' and 'pelton dead ls'",
    "see flows()": "see 'pelton flow ls'",
    "see schedules(), or define it first": "see 'pelton cron ls'",
    "check its name, see jet.queue_names(), or open it without create=False to make it": "see 'pelton queue ls'",
    "give concurrency, rate, or both; unlimit() takes a limit away": (
        "give --concurrency, --rate, or both; 'pelton limits rm' takes a limit away"
    ),
    "update it from its revision, or put it": "put it with --revision and its last one, or without --revision",
    "give its key, pelton.open(path, key=...)": "give its key: --key-file FILE, or PELTON_KEY",
    "pelton.open(path, read_only=True) reads it": "commands that only look read it",
    "; the statement changed nothing, the transaction continues": "",
}
"""What errors of the library say, and what takes its place; each is a part of the library's texts (a test)."""


def text_for_people(error: Exception) -> str:
    """Return what an error says, in the words of the command line."""
    text = str(error)
    for of_library, ours in WORDS.items():
        text = text.replace(of_library, ours)
    return text
