"""Odd inputs for `pelton serve` beside nats-server: ``python -m tests.fuzz -n 10000000``.

Design: a case is a kind and a number, and nothing else: ``python -m tests.fuzz requests:7`` plays the same again. Cases
of several users are under way at once, and one well-behaved client is answered all the while. What differs once, and
not when it is played again alone, was a matter of time: it is counted.

What is not sent, and why:
- commands: the comment in ``protocol.py``; a header block whose lines are broken: ``jetstream.py``; these are in
  ``wild.py``, whose answers are not compared: both servers have to go on answering
- consumers ``c`` and ``d`` keep their filter: which older messages a changed filter counts depends on what nats-server
  has looked at, and one that has lost its filter is not told of new messages
- an archive to a subject that holds NUL: no subscription here can have it, and it is refused
- requests that wait, and times between an instant and an hour: what is answered would be a matter of time
What is sent, and known to differ, is listed in ``compare.py``, each with its reason.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.play import PLAYS, Case
from tests.fuzz.run import Fuzzing
from tests.fuzz.sides import running_pair


def main() -> int:
    """Play cases; the status is 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="KIND:NUMBER", help="cases to play, instead of many")
    parser.add_argument("-n", "--number", type=int, default=10_000_000, help="how many inputs (10,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="which cases (1)")
    parser.add_argument("--kind", action="append", choices=list(PLAYS), help="only this kind; may be repeated")
    given = parser.parse_args()
    cases = [Case(kind, int(number)) for kind, _, number in (each.partition(":") for each in given.cases)]
    with TemporaryDirectory() as home, running_pair(Path(home)) as pair:
        fuzzing = Fuzzing(pair, is_telling=True)
        fuzzing.play(cases) if cases else fuzzing.play_many(given.number, given.seed, given.kind or list(PLAYS))
    print(fuzzing.report())
    return 1 if fuzzing.found else 0


if __name__ == "__main__":
    sys.exit(main())
