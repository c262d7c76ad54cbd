"""Errors of object stores: what is not there, cannot be made, or is not what was put."""

from pelton.api.bucket_errors import BucketError


class ObjectError(BucketError):
    """An object cannot be had or made as asked; `bucket` and `name` say which."""

    def __init__(self, bucket: str, name: str, text: str) -> None:
        self.name = name
        super().__init__(bucket, f"object {name!r} of {bucket!r}: {text}")


class ObjectNotFoundError(ObjectError, KeyError):
    """There is no object of this name, or it is deleted."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name, "it is not there: it was never put, is deleted, or has expired")

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


class ObjectExistsError(ObjectError):
    """The name belongs to another object already."""

    def __init__(self, bucket: str, name: str) -> None:
        super().__init__(bucket, name, "it exists already: delete it first, or choose another name")


class ObjectLinkError(ObjectError):
    """A link cannot be made to, or followed from, what this is."""


class ObjectChangedError(ObjectError):
    """It was replaced or deleted while it was read, or cleaned away while it was put: do it again."""


class ObjectDamagedError(ObjectError):
    """What is stored is not what was put: its digest differs, parts of it are missing, or its description is none."""
