"""Answers JetStream requests of accounts that have no store, on a server where others have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pelton.server.ports import Published

_API: Final = "$JS.API."
_ERROR: Final = {"code": 503, "err_code": 10039, "description": "JetStream not enabled for account"}


class MissingJetStream:
    """Tells clients that their account has no JetStream. ``answer`` sends a reply."""

    def __init__(self, answer: Callable[[str, bytes | None, bytes], None]) -> None:
        self._answer = answer

    def take(self, message: Published) -> bool:
        """Answer a request; False if the message is none."""
        if not message.subject.startswith(_API):
            return False
        self._answer(message.reply, None, msgspec.json.encode({"error": _ERROR}))
        return True
