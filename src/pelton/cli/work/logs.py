"""The log of processes that work: lines for people, or JSON, one object a line."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from pelton.cli.output import write_logs

_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds since 1970), level, logger, process, message, traceback, extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        fields: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in record.__dict__.items() if name not in _OWN}
        return msgspec.json.encode(extra | fields, enc_hook=str).decode()


def write_work_logs(*, json: bool) -> None:
    """Write the log to standard error; what Pelton says of its work too."""
    write_logs()
    if json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    logging.getLogger("pelton").setLevel(logging.INFO)
