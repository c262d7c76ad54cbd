"""A round in a process of its own, which may end together with all that it has started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from typing import Final

import msgspec

from tests.proof.record import Tried

ROUND_S: Final = 300.0


async def round_of(
    kind: str,
    number: int,
    seed: int,
    env: dict[str, str] | None = None,
    *,
    within_s: float = ROUND_S,
    is_over: str = "it did not end within {:g} s",
) -> Tried:
    """Play a round; one that takes too long is killed, and ``is_over`` is its violation, if that is not empty."""
    command = (sys.executable, "-m", "tests.proof", f"{kind}:{number}", "--seed", str(seed), "--as-json")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    try:
        async with asyncio.timeout(within_s):
            out, told = await process.communicate()
    except TimeoutError:
        return Tried(violations=[is_over.format(within_s)] if is_over else [])
    finally:
        # Its children, too, should it have died before they have ended.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()
    lines = out.splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=Tried)
    except (IndexError, msgspec.DecodeError):
        return Tried(violations=[f"it ended with status {process.returncode}: {told.decode(errors='replace')[-1500:]}"])
