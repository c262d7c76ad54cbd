"""Our table of errors against the protocol's."""

import json

from pelton.api.error_table import ERRORS, NAMES
from tests.api.schemas import NATS, needs_nats


@needs_nats
def test_the_table_is_the_protocols() -> None:
    official = json.loads((NATS / "errors.json").read_text())
    rows = {row["constant"]: (row["code"], row["error_code"], row["description"]) for row in official}
    assert rows == ERRORS


def test_every_err_code_has_one_name() -> None:
    assert len(NAMES) == len(ERRORS)
    assert NAMES[10059] == "JSStreamNotFoundErr"
