"""What differs between two servers, without what is known to differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple


class Known(NamedTuple):
    """A difference that is none: in cases of a kind, where a pattern is found in what ours says, or in theirs."""

    kind: str
    ours: str
    theirs: str
    why: str


_NOBODY: Final = r"^\d+: $"
_REFUSED: Final = r'\{"error": .*"type": "io.nats.jetstream.api.v1.%s_response"'
KNOWN: Final = (
    Known("configurations", "^refused", "^refused", "errors of a configuration have words of our own"),
    Known("configurations", "^refused", "^accepted", "what would be ignored is refused"),
    Known("configurations", "^accepted", "config has no values or is empty", "nothing is the default"),
    Known(
        "configurations", "^accepted", "invalid use of field", "a warning, which only nats-server -t takes as an error"
    ),
    Known("requests", r"503\|Nats-Subject: \$JS\.", _NOBODY, "who asks for what there is not is told so at once"),
    Known("requests", '"err_code": 10010', _NOBODY, "what only a cluster does is refused, not left without an answer"),
    Known("requests", _REFUSED % "consumer_reset", _NOBODY, "nats-server does not say that it cannot reset"),
    Known("requests", "no message found.*10057", "(stream store EOF|no message found).*10057", "words of its store"),
    Known(
        "requests",
        "invalid JSON: .*10025",
        "invalid JSON: .*10025",
        "where Go's decoder stopped, and what it thought of it",
    ),
    Known(
        "requests",
        _REFUSED % "(stream|consumer)_(create|update)",
        _REFUSED % "(stream|consumer)_(create|update)",
        "several faults: which of them is told",
    ),
)


def differences(kind: str, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
    """Return what differs: lines of ours, and the lines of theirs in their place."""
    found = []
    for begin, end, there, until in _different(kind, ours, theirs):
        size = max(end - begin, until - there)
        lines = ((*one, *[""] * (size - len(one))) for one in (ours[begin:end], theirs[there:until]))
        found += [both for both in zip(*lines, strict=True) if both[0] != both[1] and not _is_known(kind, *both)]
    return found


def _different(kind: str, ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return the parts that are not the same; of a flow of commands, one may be missing."""
    if kind not in ("commands", "frames"):
        return [(0, len(ours), 0, len(theirs))]
    matched = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    return [tuple(places) for change, *places in matched if change != "equal"]  # type: ignore[misc]  # there are four


def _is_known(kind: str, ours: str, theirs: str) -> bool:
    return any(
        known.kind == kind and re.search(known.ours, ours) and re.search(known.theirs, theirs) for known in KNOWN
    )
