"""Shows messages: as text for people, as JSON with the payload in base64 for programs, or as they are."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any

from pelton.api import Headers, StoredMessage
from pelton.cli.output import write_line
from pelton.cli.tables import write_json_line


def payload_text(data: bytes) -> str | None:
    """Return a payload as text; None if it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def payload_json(data: bytes) -> dict[str, Any]:
    """Return a payload for JSON: as text, if it is text, and as base64, as NATS's API has it."""
    return {"text": payload_text(data), "data": base64.b64encode(data).decode()}


def show_message(facts: Mapping[str, Any], headers: Headers, data: bytes, *, as_json: bool) -> None:
    """Write a message: facts about it, its headers, its payload."""
    if as_json:
        write_json_line({**facts, "headers": {name: headers.get_all(name) for name in headers}, **payload_json(data)})
        return
    write_line("  ".join(f"{name}: {value}" for name, value in facts.items()))
    for name in headers:
        for value in headers.get_all(name):
            write_line(f"  {name}: {value}")
    show_payload(data)


def show_payload(data: bytes) -> None:
    """Write a payload as lines of text, or as hexadecimal digits."""
    text = payload_text(data)
    if text is None:
        write_line(f"  (hex) {data.hex(' ')}", flush=True)
        return
    for line in text.split("\n"):
        write_line(f"  {line}", flush=True)


def show_stored(stored: StoredMessage, *, as_json: bool) -> None:
    """Write a message of a stream."""
    facts = {"seq": stored.seq, "subject": stored.subject, "time": stored.time}
    show_message(facts, stored.headers, stored.data, as_json=as_json)


def write_raw(data: bytes) -> None:
    """Write a payload to standard output as it is, for programs and files."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
