"""Write the type stub of ``pelton`` itself, whose names are loaded when they are used.

``python -m tools.names_stub`` writes ``src/pelton/__init__.pyi``; a test compares it with what would be written now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pelton
from tools.stubs import formatted

TARGET: Final = Path(pelton.__file__).with_suffix(".pyi")
_HEAD: Final = '''"""The public names. Written by ``python -m tools.names_stub``: do not edit."""

# ruff: noqa: F403
'''


def stub() -> str:
    """Return the text of the stub."""
    rooms = [f"from pelton import {room} as {room}" for room in pelton._ROOMS]
    names = [f"from {room} import {name} as {name}" for room, names in pelton._HOMES.items() for name in names]
    imports = "\n".join(["from pelton.api import *", *rooms, *names])
    # Of a stub's imports those by * and as themselves are public: the vocabulary is not listed a second time.
    return formatted(f"{_HEAD}{imports}\n\n__version__: str\n", TARGET)


if __name__ == "__main__":
    TARGET.write_text(stub())
