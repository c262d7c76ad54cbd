"""The reports on ``$SYS.REQ.>``, for the ``nats`` command, and what a client may ask of itself.

Every client may ask who it is (``$SYS.REQ.USER.INFO``). Reports of the server are for the system account ``$SYS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from pelton.api import PeltonError
from pelton.runtime import Runtime
from pelton.server.monitoring.observed import Observed, server_facts
from pelton.server.monitoring.reports import REPORTS, Report, statsz
from pelton.server.ports import Published

SYSTEM_ACCOUNT: Final = "$SYS"
_USER: Final = "$SYS.REQ.USER.INFO"
_PING: Final = "$SYS.REQ.SERVER.PING"
_SERVER: Final = "$SYS.REQ.SERVER."
_ACCOUNT: Final = "$SYS.REQ.ACCOUNT."
_OF_ACCOUNT: Final = {"CONNZ": "connz", "SUBSZ": "subsz", "JSZ": "jsz", "INFO": "accountz", "STATZ": "accstatz"}


class SystemService:
    """Answers ``$SYS.REQ.>`` for the clients of one account."""

    def __init__(
        self, server: Observed, account: str, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime
    ) -> None:
        self._server = server
        self._account = account
        self._answer = answer
        self._runtime = runtime

    def take(self, message: Published) -> bool:
        """Answer a request; False if it is none that this account may make."""
        if message.subject == _USER:
            self._reply(message.reply, self._user(message))
            return True
        if self._account != SYSTEM_ACCOUNT:
            return False
        report, given = self._report(message.subject)
        if report is None:
            return False
        parameters = _parameters(message.data) | given
        self._runtime.spawn(self._tell(report, parameters, message.reply), "pelton reports on the server")
        return True

    def _report(self, subject: str) -> tuple[Report | None, dict[str, str]]:
        """Return the report that a subject asks for, and what it says of it."""
        if subject == _PING:
            return statsz, {}
        if subject.startswith(_SERVER):
            who, _, name = subject[len(_SERVER) :].partition(".")
            if who in ("PING", self._server.id):
                return (statsz if name == "STATSZ" else REPORTS.get(name.lower())), {}
        if subject.startswith(_ACCOUNT):
            who, _, name = subject[len(_ACCOUNT) :].partition(".")
            known = _OF_ACCOUNT.get(name)
            if known is not None:
                return REPORTS[known], ({} if who == "PING" else {"acc": who})
        return None, {}

    async def _tell(self, report: Report, parameters: dict[str, str], reply: str) -> None:
        try:
            found: dict[str, Any] = {"data": await report(self._server, parameters)}
        except PeltonError as error:
            found = {"error": {"code": 500, "description": str(error)}}
        if report is statsz:
            found = {"statsz": found.pop("data", {}), **found}
        self._reply(reply, found)

    def _user(self, message: Published) -> dict[str, Any]:
        user = message.client.user
        return {"data": {"user": user.name if user is not None else "", "account": self._account}}

    def _reply(self, reply: str, found: dict[str, Any]) -> None:
        self._answer(reply, None, msgspec.json.encode({"server": server_facts(self._server), **found}))


def _parameters(body: bytes) -> dict[str, str]:
    """Return the options of a request; what is no JSON object has none."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
    except msgspec.MsgspecError:
        return {}
    return {key: str(value) for key, value in found.items()}
