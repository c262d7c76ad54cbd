"""Errors of buckets: a bucket or key does not exist, or already exists."""

from pelton.api.errors import PeltonError


class BucketError(PeltonError):
    """A bucket cannot do what was asked; `bucket` names it."""

    def __init__(self, bucket: str, text: str) -> None:
        self.bucket = bucket
        super().__init__(text)


class BucketNotFoundError(BucketError):
    """There is no bucket of this name."""

    def __init__(self, bucket: str, made_by: str = "create_bucket") -> None:
        super().__init__(bucket, f"there is no bucket {bucket!r}: check its name, or create it with {made_by}")


class BucketKeyNotFoundError(BucketError, KeyError):
    """The bucket holds no such `key`, or (`revision` not 0) no such revision of it."""

    key: str
    revision: int

    def __init__(self, bucket: str, key: str, revision: int) -> None:
        self.key, self.revision = key, revision
        at = f" at revision {revision}" if revision else ""
        super().__init__(
            bucket, f"bucket {bucket!r} holds nothing under {key!r}{at}: it was never written, deleted, or has expired"
        )

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


class BucketKeyExistsError(BucketError):
    """The `key` already exists."""

    def __init__(self, bucket: str, key: str) -> None:
        self.key = key
        super().__init__(bucket, f"bucket {bucket!r} already holds {key!r}: update it from its revision, or put it")


class BucketDecodeError(BucketError, ValueError):
    """The value of a `key` at a `revision` does not fit the type, or the codec, that the bucket was opened with."""

    key: str
    revision: int

    def __init__(self, bucket: str, key: str, revision: int, why: str) -> None:
        self.key, self.revision = key, revision
        super().__init__(
            bucket,
            f"bucket {bucket!r}, key {key!r} at revision {revision}: {why}. It was written differently: put it again, "
            f"or open the bucket as it was written; a watch skips it with resume_from_revision={revision + 1}",
        )
