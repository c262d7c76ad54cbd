"""Which acks a consumer reports as metrics: ``sample_freq`` is a share in percent, as nats-server reads it. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import ConsumerConfig, api_error
from pelton.api.go_json import quoted
from pelton.api.numbers import go_integer

ALL: Final = 100


def sample_percent(text: str) -> int:
    """Return how many of a hundred acks are reported; ``text`` has passed :func:`check_sample_freq`."""
    return go_integer(text.removesuffix("%")) if text else 0


def check_sample_freq(config: ConsumerConfig, stream: str) -> None:
    """Raise ApiError (10095) if ``sample_freq`` is not a share such as "50" or "50%"."""
    if not config.sample_freq:
        return
    text = config.sample_freq.removesuffix("%")
    try:
        if go_integer(text) >= 0:
            return
        reason = "<nil>"
    except ValueError as error:
        reason = f"strconv.Atoi: parsing {quoted(text)}: {error}"
    raise api_error("JSConsumerInvalidSamplingErrF", stream=stream, consumer=config.name, err=reason)
