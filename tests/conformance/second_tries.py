"""What busy servers may answer once and not again: the only reasons to run a case a second time."""

from __future__ import annotations

import pelton
from pelton.api.errors import ApiError, is_passing
from tests.conformance.cases import Case

TRIES = 4
_NO_STORE = "error creating store for stream"


def why_again(case: Case, error: Exception, *, replicated: bool) -> str:
    """Return the passing condition for which a case may run once more; empty: it has failed."""
    if is_passing(error):
        return f"the cluster had no leader for it: {error}"
    if isinstance(error, (pelton.ServerTimeoutError, pelton.ServerUnreachableError)):
        return f"no server answered in time: {error}"
    if isinstance(error, ApiError) and _NO_STORE in str(error):
        return f"a deleted stream's files were still being removed: {error}"
    if replicated and isinstance(error, (pelton.BucketKeyNotFoundError, pelton.MessageNotFoundError)):
        return f"it was read on a replica that did not have it yet: {error}"
    return case.lags if replicated or case.busy else ""
