"""The room's face: everything it offers exists, is documented, and does without the outside world."""

import subprocess
import sys

from pelton import api


def test_every_public_name_is_documented() -> None:
    assert len(set(api.__all__)) == len(api.__all__)
    for name in api.__all__:
        value = getattr(api, name)
        if isinstance(value, type) or callable(value):
            assert value.__doc__, name


def test_the_vocabulary_does_no_io() -> None:
    code = (
        "import sys, pelton.api; "
        "print(*[m for m in ('asyncio', 'sqlite3', 'apsw', 'socket', 'random') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
