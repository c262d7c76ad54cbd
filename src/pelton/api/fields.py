"""Two kinds of defaults, as on the wire.

Go marks most JSON fields ``omitempty`` and some not: a reply always contains ``max_msgs: -1`` but omits an
empty ``description``. Our structs are declared with ``omit_defaults=True``; a field declared
``= shown(value)`` is written even when it holds its default, every other field is omitted then.
"""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def shown(value: T) -> T:
    """Declare a default that is written to JSON nevertheless; `value` must be immutable."""
    # msgspec omits a default by identity; the result of a factory is never identical to a default.
    return msgspec.field(default_factory=lambda: value)
