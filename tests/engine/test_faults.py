"""Errors that are final in the storage are final in the public API, too."""

from __future__ import annotations

from typing import get_args

import pytest

from pelton.api.store_errors import FINAL_ERRORS
from pelton.engine.host import public_error
from pelton.storage import FINAL_FAULTS, Fault, FaultKind


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_a_fault_that_is_for_good_is_an_error_that_is_for_good(kind: FaultKind) -> None:
    assert isinstance(public_error(Fault(kind, "a.pelton", "schema 99")), FINAL_ERRORS) is (kind in FINAL_FAULTS)
