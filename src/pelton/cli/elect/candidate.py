"""One candidate in its own process; reports its events on standard output, a line each.

``python -m pelton.cli.elect.candidate SETTINGS``, as JSON. It ends when its input does: with its parent process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import msgspec

from pelton.connect import open
from pelton.locks import ElectionOptions, Term


class CandidateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The election, and the candidate's name; ``ttl`` None: the bucket's. ``splay`` is a share of the TTL."""

    address: str
    bucket: str
    key: str
    name: str
    ttl: float | None
    splay: float
    strict: bool


class Said(msgspec.Struct, frozen=True):
    """An event of a candidate: ``campaign`` (in a state), ``won`` (a token), ``lost`` or ``failed`` (why)."""

    what: str
    text: str = ""
    token: int = 0


def say(what: str, text: str = "", token: int = 0) -> None:
    """Report an event to the parent process."""
    sys.stdout.buffer.write(msgspec.json.encode(Said(what, text, token)) + b"\n")
    sys.stdout.buffer.flush()


async def stand(settings: CandidateSettings) -> None:
    """Stand for election until stopped; ``d`` on the input makes it step down."""

    def won(term: Term) -> None:
        say("won", token=term.token)

    def lost(term: Term) -> None:
        say("lost", term.reason, term.token)

    async with open(settings.address) as jet:
        options = ElectionOptions(
            name=settings.name,
            bucket=settings.bucket,
            splay=settings.splay,
            strict=settings.strict,
            on_won=won,
            on_lost=lost,
            on_campaign=lambda state: say("campaign", state),
        )
        if settings.ttl is not None:
            options["ttl"] = settings.ttl
        election = jet.elect(settings.key, **options)
        loop = asyncio.get_running_loop()

        def told() -> None:
            if os.read(sys.stdin.fileno(), 1) == b"d":
                election.step_down()
            else:
                loop.remove_reader(sys.stdin)
                election.stop()

        loop.add_reader(sys.stdin, told)
        loop.add_signal_handler(signal.SIGTERM, election.stop)
        # Ctrl-C goes to the whole process group; the parent process decides when to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("campaign", "candidate")
        await election.run()


def main() -> None:
    """Run it, and report what went wrong."""
    logging.basicConfig(level=logging.CRITICAL)
    try:
        asyncio.run(stand(msgspec.json.decode(sys.argv[1], type=CandidateSettings)))
    except Exception as error:  # whatever it is, the parent process shows it
        say("failed", str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
