"""The options that a write accepts."""

import pytest

from pelton.api import ConfigError
from pelton.spark.write.write_options import write_options

TARGET = {"path": "s.pelton", "stream": "orders"}


def test_what_spark_says_of_a_query_is_no_option_of_ours() -> None:
    given = {**TARGET, "queryname": "totals", "checkpointlocation": "/c"}
    assert write_options(given, streaming=True) == write_options(TARGET, streaming=True)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="queryNames"):
        write_options({**TARGET, "queryNames": "totals"}, streaming=True)
