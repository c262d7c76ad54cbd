"""The parameters of a report: of a query over HTTP, or of the JSON of a request on ``$SYS``, under one name each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pelton.api import PeltonError
from pelton.api.json_values import UNREADABLE

# What requests on ``$SYS`` call otherwise than queries do.
_QUERY_NAMES: Final = {
    "subscriptions": "subs",
    "account": "acc",
    "consumer": "consumers",
    "include_unused": "unused",
    "leader_only": "leader-only",
}
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("", "0", "f", "F", "FALSE", "false", "False")


class ReportError(PeltonError):
    """A report that cannot be given; ``status`` is that of HTTP."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ReportParameters:
    """What a report is asked to tell. Methods raise ReportError for values that make no sense."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {_QUERY_NAMES.get(name, name): value for name, value in values.items()}

    @classmethod
    def of_json(cls, body: bytes) -> ReportParameters:
        """Return the parameters in a request's body, which may be empty. Raises ReportError."""
        try:
            values = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
        except UNREADABLE as error:
            raise ReportError(str(error)) from None
        if values.pop("subscriptions_detail", False) is True:
            values["subs"] = "detail"
        return cls(values)

    def but(self, **values: Any) -> ReportParameters:
        """Return the same parameters, but for some."""
        return ReportParameters({**self._values, **values})

    def text(self, name: str) -> str:
        """Return a text, empty if it is not given."""
        value = self._values.get(name)
        return "" if value is None else str(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        value = self._values.get(name)
        return [str(one) for one in value] if isinstance(value, list) else [value] if isinstance(value, str) else []

    def flag(self, name: str) -> bool:
        """Return whether something is wanted."""
        text = self.text(name)
        if text not in _TRUE + _FALSE:
            raise ReportError(f"Error decoding boolean for '{name}': {text!r} is neither true nor false")
        return text in _TRUE

    def number(self, name: str, default: int = 0) -> int:
        """Return a number; the default if it is not given, or not positive."""
        text = self.text(name)
        try:
            return max(int(text), 0) or default if text else default
        except ValueError:
            raise ReportError(f"Error decoding number for '{name}': {text!r} is no number") from None

    @property
    def has_any(self) -> bool:
        """Whether anything is asked for."""
        return bool(self._values)
