"""What a header requests to replace: only the decision."""

import pytest

from pelton import api
from pelton.streams.publish_checks import fields_of, rollup_of

ALLOWED = api.StreamConfig(name="s", allow_rollup_hdrs=True)


@pytest.mark.parametrize(
    ("value", "kind"), [("sub", "sub"), ("all", "all"), ("SUB", "sub"), (" all ", "all"), ("", ""), (None, "")]
)
def test_values(value: str | None, kind: str) -> None:
    block = api.headers.encode({"Other": "x"} if value is None else {"Nats-Rollup": value})
    assert rollup_of(fields_of(block).get("Nats-Rollup", ""), ALLOWED) == kind


@pytest.mark.parametrize(("config", "text"), [(ALLOWED, "invalid"), (api.StreamConfig(name="s"), "not permitted")])
def test_refusals(config: api.StreamConfig, text: str) -> None:
    with pytest.raises(api.ApiError, match=text) as caught:
        rollup_of("each", config)
    assert caught.value.err_code == 10111
