"""What nats-server makes of a configuration: it checks one, and prints a digest of what it read."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from pelton.server.settings.grammar import ConfigBlock, plain
from tests.kit.nats_server import binary

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# Errors of the grammar, not of what the keys mean.
_SYNTAX = (
    "Parse error",
    "config is invalid",
    "out of the range",
    "can not be found",
    "could not be parsed",
    "error parsing include",
)


class Verdict(NamedTuple):
    """What the server says: its digest if it accepts the file, and whether the grammar was kept."""

    digest: str
    is_grammar_kept: bool
    text: str


def verdict(folder: Path, text: str, environment: dict[str, str] | None = None) -> Verdict:
    """Let a real server check a configuration."""
    path = folder / "server.conf"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    done = subprocess.run(
        [str(binary()), "-t", "-c", str(path)], capture_output=True, text=True, env=environment or {}, check=False
    )
    said = done.stdout + done.stderr
    found = _DIGEST.search(said)
    return Verdict(found[1] if found else "", not any(word in said for word in _SYNTAX), said)


def digest_of(block: ConfigBlock) -> str:
    """Return the digest that nats-server prints for the same content: of its JSON as Go writes it."""
    text = json.dumps(plain(block), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return hashlib.sha256(f"{text}\n".encode()).hexdigest()
