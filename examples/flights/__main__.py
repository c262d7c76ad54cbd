"""``make demo``: a year of real flights through an exclusive queue, with a worker killed on the way."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from examples.flights.run import DemoSettings, run_demo
from pelton.cli.arguments import count

_FEWEST: Final = 100
_FILES: Final = re.compile(r"flights\.(html|csv|pelton(-wal|-shm|-sync)?)|jobs\.html|worker-\d+\.starts")
_FOLDERS: Final = re.compile(r"flights\.(pelton-wake|lake(-checkpoint)?)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--limit", type=_limit, metavar="N", help="only the first N flights (100 or more)")
    parser.add_argument("--workers", type=count, default=3, metavar="N", help="worker processes (default 3)")
    parser.add_argument(
        "--folder", type=Path, default=Path("demo-report"), help="where store and report go (default demo-report)"
    )
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    left = list(folder.iterdir()) if folder.exists() else []
    if strange := [each.name for each in left if not is_ours(each)]:
        print(f"{folder} holds something else ({strange[0]}); name another --folder", file=sys.stderr)
        return 2
    for each in left:
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    settings = DemoSettings(folder=folder, limit=options.limit, workers=options.workers)
    return 0 if run_demo(settings, Console()) else 1


def is_ours(path: Path) -> bool:
    """Return whether this may be from an earlier demo, even an interrupted one."""
    return (_FOLDERS if path.is_dir() and not path.is_symlink() else _FILES).fullmatch(path.name) is not None


def _limit(text: str) -> int:
    if (number := count(text)) < _FEWEST:
        raise argparse.ArgumentTypeError(f"{number} flights leave nothing to take over; use {_FEWEST} or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
