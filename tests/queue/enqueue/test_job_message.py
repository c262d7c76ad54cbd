"""The messages of jobs: those of many unique ones are the same as each by itself."""

from __future__ import annotations

from typing import Any

import pytest

from pelton.queue.job_message import JobMessage, place_of
from pelton.queue.model.naming import QueueNames, key_part
from pelton.queue.model.options import JobOptions


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("unique", [{"unique": "arguments"}, {"unique": "a text"}, {"id": "mine"}])
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"key": "k.1 x"},
        {"tenant": "a.b c"},
        {"priority": 2},
        {"tenant": "t", "priority": 3},
        {"key": "k", "meta": 1},
    ],
)
def test_messages_of_unique_jobs(exclusive: bool, unique: dict[str, Any], where: dict[str, Any]) -> None:
    meta = {"trace": "1"} if "meta" in where else None
    options = JobOptions(**unique, **{name: value for name, value in where.items() if name != "meta"})
    form = JobMessage(QueueNames("shop"), "wash", exclusive=exclusive)
    key = key_part(options.key, options.tenant, exclusive=exclusive)
    for args in (b'{"car":"1"}', b'{"n":2,"car":"1"}', b'{"car":"1","n":2}'):
        place = place_of("wash", args, options, key, "")
        alone = form._at_place(form._envelope(args, options, 0, meta), key, options, place)
        found = form.message(args, options, meta=meta)
        assert (found.subject, found.data, found.headers) == (alone.subject, alone.data, alone.headers)
