"""The public names of the package: all of them exist and are documented."""

from typing import Literal, get_origin

from pelton import api


def test_every_public_name_is_documented() -> None:
    assert len(set(api.__all__)) == len(api.__all__)
    for name in api.__all__:
        value = getattr(api, name)
        # An alias of literals has no place for a docstring.
        if isinstance(value, type) or (callable(value) and get_origin(value) is not Literal):
            assert value.__doc__, name
