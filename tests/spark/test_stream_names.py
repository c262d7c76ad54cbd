"""The streams that a query selects."""

import pytest

from pelton.spark.options import is_selected


@pytest.mark.parametrize(
    ("name", "asked", "meant"),
    [
        ("orders", ["orders"], True),
        ("orders-eu", ["orders"], False),
        ("orders-eu", ["returns", "orders-*"], True),
        ("orders-e", ["orders-?"], True),
        ("odd[1]", ["odd[1]"], True),
        ("SPARK_COMMITS", ["*"], False),
        ("SPARK_COMMITS", ["*", "SPARK_COMMITS"], True),
    ],
)
def test_names_and_patterns_and_no_notes_by_chance(name: str, asked: list[str], meant: bool) -> None:
    assert is_selected(name, asked) is meant
