"""What the forms of the pages send."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

_FORM_BYTES: Final = 8192


async def form_of(request: Request, limit: int = _FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form of at most ``limit`` bytes. Raises HTTPException."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise HTTPException(413)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise HTTPException(400) from None
    return {name: values[-1] for name, values in fields.items()}


def headers_of(text: str) -> dict[str, str]:
    """Return headers from lines such as ``Name: value``; lines without a colon are left out."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
