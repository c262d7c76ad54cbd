"""Where the sequences of a stream begin that gives fencing tokens, so that its tokens grow even if it was deleted.

Design: tokens of locks, elections and exclusive keys are sequences of a stream. Such a stream begins at the microsecond
of its creation, which is above all sequences of a deleted one of its name, unless a clock was set back in between. So
the bucket ``pelton_tokens`` remembers where the last stream of each name began, and the next begins far above that,
whatever the clock shows. The place is reserved before the stream is created: of several processes that create one at
once, one succeeds, and none begins where an earlier one did.
"""

from __future__ import annotations

from typing import Final

from pelton.api import (
    ApiError,
    BucketKeyExistsError,
    BucketKeyNotFoundError,
    BucketNotFoundError,
    NoStreamForSubjectError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from pelton.buckets.bucket import Bucket
from pelton.buckets.open import create_bucket, open_bucket, update_bucket
from pelton.jet import Streams

TOKENS_BUCKET: Final = "pelton_tokens"
# More messages than a stream stores in its life: a hundred thousand a second for four months.
_APART: Final = 10**12
# Another process has reserved a place in the meantime, or removed the bucket.
_TRY_AGAIN: Final = (BucketKeyExistsError, WrongLastSequenceError, StreamNotFoundError, NoStreamForSubjectError)


async def reserve_first_token(jet: Streams, stream: str, replicas: int = 1) -> int:
    """Return the first sequence of a stream that is about to be created: above all tokens of earlier ones.

    ``replicas`` is how many servers of a cluster keep the stream; at least as many remember this.
    """
    while True:
        try:
            return await _reserved(await _bucket(jet, replicas), stream, jet.runtime.clock.now() // 1_000)
        except _TRY_AGAIN:
            continue
        except ApiError as error:
            if error.constant != "JSStreamNameExistErr":
                raise


async def _bucket(jet: Streams, replicas: int) -> Bucket[int]:
    try:
        found = await open_bucket(jet, TOKENS_BUCKET, int, None)
    except BucketNotFoundError:
        description = "where streams begin whose sequences are fencing tokens"
        return await create_bucket(jet, TOKENS_BUCKET, int, replicas=replicas, description=description)
    if replicas > 1 and (await found.status()).replicas < replicas:
        await update_bucket(jet, TOKENS_BUCKET, replicas=replicas)
    return found


async def _reserved(bucket: Bucket[int], stream: str, now: int) -> int:
    try:
        last = await bucket.get(stream)
    except BucketKeyNotFoundError:
        await bucket.create(stream, now)
        return now
    first = max(now, (last.value or 0) + _APART)
    await bucket.update(stream, first, last.revision)
    return first
