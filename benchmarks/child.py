"""One measurement in its own process: `python -m benchmarks.child` reads a request and prints a sample.

The request is JSON on standard input; the sample is the last line of standard output.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.case import Run, Sample


@dataclass(frozen=True)
class Request:
    """What to call, with which options, in which run."""

    target: str
    options: dict[str, Any]
    run: Run

    def encode(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> Request:
        fields = json.loads(text)
        run = fields["run"]
        for place in ("workdir", "shared"):
            run[place] = Path(run[place])
        return cls(fields["target"], fields["options"], Run(**run))


def measure(request: Request) -> Sample:
    """Import the target, call it, and await it if it is asynchronous."""
    module, function = request.target.split(":")
    result = getattr(import_module(f"benchmarks.{module}"), function)(request.run, **request.options)
    sample: Sample = asyncio.run(result) if inspect.iscoroutine(result) else result
    return sample


def main() -> None:
    sample = measure(Request.decode(sys.stdin.read()))
    print(json.dumps(sample))


if __name__ == "__main__":
    main()
