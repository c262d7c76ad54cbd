"""Which acks a consumer reports as metrics: ``sample_freq`` is a share in percent, as nats-server reads it. Pure."""

from __future__ import annotations

import re
from typing import Final

from pelton.api import ConsumerConfig, api_error

ALL: Final = 100
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


def sample_percent(text: str) -> int:
    """Return how many of a hundred acks are reported; ``text`` has passed :func:`check_sample_freq`."""
    return int(text.removesuffix("%")) if text else 0


def check_sample_freq(config: ConsumerConfig, stream: str) -> None:
    """Raise ApiError (10095) if ``sample_freq`` is not a share such as "50" or "50%"."""
    if not config.sample_freq:
        return
    text = config.sample_freq.removesuffix("%")
    if not _INTEGER.fullmatch(text):
        reason = f'strconv.Atoi: parsing "{text}": invalid syntax'
    elif int(text) < 0:
        reason = "<nil>"
    else:
        return
    raise api_error("JSConsumerInvalidSamplingErrF", stream=stream, consumer=config.name, err=reason)
