"""Errors of object stores: an object is missing, cannot be created, or is not what was put."""

from pelton.api.bucket_errors import BucketError


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


class ObjectExistsError(ObjectError):
    """The name already belongs to another object."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name, "it already exists: delete it first, or choose another name")


class ObjectLinkError(ObjectError):
    """A link cannot be created to, or followed from, this object."""


class ObjectChangedError(ObjectError):
    """The object was replaced or deleted while it was read, or cleaned up while it was put: retry."""


class ObjectDamagedError(ObjectError):
    """The object is not what was put: its digest differs, parts are missing, or its metadata is invalid."""
