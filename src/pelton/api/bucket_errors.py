"""Errors of buckets: a bucket or key does not exist, or already exists."""

from pelton.api.errors import PeltonError, says


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


@says("bucket {bucket!r} already holds {key!r}: update it from its revision, or put it")
class BucketKeyExistsError(BucketError):
    """The `key` already exists."""

    bucket: str
    key: str


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


# --- errors of object stores: an object is missing, cannot be created, or is not what was put


class ObjectError(BucketError):
    """An object cannot be read or created; `bucket` and `name` say which."""

    def __init__(self, bucket: str, name: str, text: str) -> None:
        self.name = name
        super().__init__(bucket, f"object {name!r} of {bucket!r}: {text}")


class ObjectNotFoundError(ObjectError, KeyError):
    """There is no object of this name, or it is deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name, "it does not exist: it was never put, is deleted, or has expired")

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


@says("object {name!r} of {bucket!r}: it already exists: delete it first, or choose another name")
class ObjectExistsError(ObjectError):
    """The name already belongs to another object."""

    bucket: str
    name: str


class ObjectLinkError(ObjectError):
    """A link cannot be created to, or followed from, this object."""


class ObjectChangedError(ObjectError):
    """The object was replaced or deleted while it was read, or cleaned up while it was put: retry."""


class ObjectDamagedError(ObjectError):
    """The object is not what was put: its digest differs, parts are missing, or its metadata is invalid."""
