"""Odd bytes, texts and JSON. Pure functions of a random source."""

from __future__ import annotations

import json
from random import Random
from typing import Any

TEXTS = (
    *(
        "",
        " ",
        "S",
        "s.1",
        "s.>",
        "*",
        ">",
        "a..b",
        ".a",
        "a.",
        "a b",
        "a\tb",
        "x" * 300,
        "ä",
        "\u2028",
        "\x00",
        "\ud800",
    ),
    *("{{name()}}", "$JS.API.INFO", "$SYS.x", "_INBOX.x", "../x", "a/b", "a\\b", "+Inf", "0x10", "1h", "-1", "9" * 30),
)
NUMBERS = (
    *("0", "-0", "1", "-1", "2", "255", "256", "65536", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "18446744073709551615", "18446744073709551616", "1e3", "1E400", "1.0", "1.5", "-1.5"),
    *("100000000", "1000000000", "3600000000000", "01", "+1", ".5", "1e", "0x1", "NaN"),
)
OTHERS = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[null]",
    '["a"]',
    '{"a":1}',
    "[1]",
    '["s.>"]',
    "[[]]",
    '[{"name":"X"}]',
    "",
)


def json_text(random: Random, text: str) -> str:
    """A text as JSON, escaped or not."""
    return json.dumps(text, ensure_ascii=random.random() < 0.7)


def odd_json(random: Random) -> str:
    """A value, which may be no JSON."""
    kind = random.randrange(10)
    if kind < 4:
        return random.choice(NUMBERS)
    return json_text(random, random.choice(TEXTS)) if kind < 7 else random.choice(OTHERS)


def odd_object(random: Random, fields: dict[str, Any], names: tuple[str, ...] = (), share: float = 0.5) -> bytes:
    """These fields as JSON; in such a share of cases with some that are odd, twice there, or written otherwise.

    A value of bytes is JSON already.
    """
    pairs = [
        (name, value.decode() if isinstance(value, bytes) else json.dumps(value)) for name, value in fields.items()
    ]
    while random.random() < share:
        name = random.choice([*names, *fields, "x"])
        change = random.randrange(8)
        if change == 0:
            pairs = [pair for pair in pairs if pair[0] != name]
        elif change == 1:
            pairs = [(each.upper() if each == name else each, value) for each, value in pairs]
        elif change == 2 and pairs:
            pairs.append(random.choice(pairs))
        else:
            pairs = [pair for pair in pairs if pair[0] != name] + [(name, odd_json(random))]
    body = "{" + random.choice((",", ", ")).join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"
    data = body.encode("utf-8", "surrogatepass")
    return mutated(random, data) if random.random() < share / 8 else data


def mutated(random: Random, data: bytes) -> bytes:
    """Data of which a few bytes are others, gone, or there twice."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(len(out) + 1)
        change = random.randrange(6)
        if change == 0:
            out[at : at + 1] = bytes([random.randrange(256)])
        elif change == 1:
            del out[at : at + random.choice((1, 1, 2, 8))]
        elif change == 2:
            out[at:at] = random.choice(
                (b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b"\xcf", b"0", b"-", b'"', b"\xff\xff")
            )
        elif change == 3:
            out[at:at] = out[at : at + random.choice((1, 4, 20))]
        elif change == 4 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        else:
            del out[at:]
    return bytes(out)
