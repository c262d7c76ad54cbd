"""Object stores as a file system: ``fsspec.open("pelton://shop.pelton/invoices/2026/7.pdf")``.

The store is the part of a path that ends in ``.pelton``, or the option ``store``, which may be ``nats://host:4222``
too; then come the object store and the object's name, whose slashes make folders.
"""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final, cast

from pelton.api import BucketNotFoundError, ConfigError, ObjectNotFoundError
from pelton.contrib.process_store import process_store

__all__ = ["PeltonFileSystem"]

_IN_MEMORY: Final = 16 * 2**20
_WHOLE: Final = 4 * 2**20
_SUFFIX: Final = ".pelton"


if TYPE_CHECKING:

    class AbstractFileSystem:
        """What type checkers take for fsspec's class, which has no type information."""

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def get_file(self, rpath: str, lpath: Any, **_options: Any) -> None:
            """Copy a file to a local one."""

    class AbstractBufferedFile:
        """The same for its files."""

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class PeltonFileSystem(AbstractFileSystem):
    """The object stores of one store.

    A file of up to 4 MiB that is read is fetched and verified as a whole when it is opened; of a larger one, only the
    chunks around what is read, ``block_size`` bytes at a time (5 MiB). One that is written replaces the object when it
    is closed, and is on disk then. Folders are there as long as there is something in them. ``store`` is a file, or
    ``nats://host:4222``.
    """

    protocol = "pelton"
    root_marker = ""

    def __init__(self, store: str = "", **options: Any) -> None:
        super().__init__(store=store, **options)
        if not store:
            raise ConfigError("no store: give pelton://PATH.pelton/BUCKET/NAME, or the option store")
        self.store = store

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return _split(str(path))[1]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        store = _split(path)[0]
        return {"store": store} if store else {}

    def unstrip_protocol(self, name: str) -> str:
        """Return the whole URL of a path."""
        path = self._strip_protocol(name)
        return f"pelton://{self.store}/{path}" if self.store.endswith(_SUFFIX) else f"pelton://{path}"

    # --- listing

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a folder, an object store, or all object stores: with ``detail`` as dictionaries, else names.

        Raises FileNotFoundError.
        """
        bucket, name = self._parts(path)
        found = self._stores() if not bucket else self._entries_of(bucket, name)
        if bucket and not found and (name or bucket not in process_store(self.store).blocking.objects_names()):
            raise FileNotFoundError(path)
        entries = sorted(found.values(), key=lambda entry: str(entry["name"]))
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Describe a file or a folder. Raises FileNotFoundError."""
        bucket, name = self._parts(path)
        if not bucket:
            return _folder("")
        if name:
            with suppress(ObjectNotFoundError):
                return _file(bucket, self._objects(bucket, path).info(name))
        self.ls(path, detail=False)
        return _folder(f"{bucket}/{name}" if name else bucket)

    def created(self, path: str) -> datetime:
        """Return when a file was last written: an object is replaced as a whole."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        """Return when a file was last written."""
        modified: datetime = self.info(path)["mtime"]
        return modified

    def checksum(self, path: str) -> str:
        """Return the digest of a file."""
        return str(self.info(path)["digest"])

    def _stores(self) -> dict[str, dict[str, Any]]:
        return {name: _folder(name) for name in process_store(self.store).blocking.objects_names()}

    def _entries_of(self, bucket: str, name: str) -> dict[str, dict[str, Any]]:
        start = f"{name}/" if name else ""
        found: dict[str, dict[str, Any]] = {}
        for info in self._objects(bucket, f"{bucket}/{name}").list():
            if info.name == name:
                found[info.name] = _file(bucket, info)
            elif info.name.startswith(start):
                child, slash, _ = info.name[len(start) :].partition("/")
                found[child + slash] = _folder(f"{bucket}/{start}{child}") if slash else _file(bucket, info)
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return a file, or its bytes from ``start`` to ``end``; below 0: from its end. Raises FileNotFoundError."""
        bucket, name = self._parts(path)
        objects = self._objects(bucket, path)
        try:
            if not start and end is None:
                return bytes(objects.get(name))
            info = objects.info(name)
            if info.link is not None:
                return bytes(objects.get(name))[start:end]
            first, last, _ = slice(start, end).indices(info.size)
            return bytes(objects.get_range(info, first, max(first, last)))
        except ObjectNotFoundError:
            raise FileNotFoundError(path) from None

    def get_file(self, rpath: str, lpath: Any, **kwargs: Any) -> None:
        """Copy the file at ``rpath``, verified, to a local path ``lpath``. Raises FileNotFoundError."""
        bucket, name = self._parts(rpath)
        if not isinstance(lpath, str | os.PathLike) or not self.isfile(rpath):
            super().get_file(rpath, lpath, **kwargs)
            return
        os.makedirs(os.path.dirname(os.fspath(lpath)) or ".", exist_ok=True)
        self._objects(bucket, rpath).get_file(name, os.fspath(lpath))

    # --- changing

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create an object store; folders in it need none, also without ``create_parents``. Raises FileExistsError."""
        bucket, name = self._parts(path)
        if not name and bucket in process_store(self.store).blocking.objects_names():
            raise FileExistsError(path)
        self.makedirs(path, exist_ok=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create an object store; folders in it need none. Raises FileExistsError, unless ``exist_ok``."""
        bucket, name = self._parts(path)
        if not exist_ok and not name:
            self.mkdir(path)
        elif bucket:
            self._find_or_create(bucket)

    def rmdir(self, path: str) -> None:
        """Remove an empty object store. Raises OSError."""
        bucket, name = self._parts(path)
        if self.ls(path, detail=False):
            raise OSError(f"{path} is not empty")
        if not name:
            process_store(self.store).blocking.delete_objects(bucket)

    def rm_file(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        bucket, name = self._parts(path)
        try:
            self._objects(bucket, path).delete(name)
        except ObjectNotFoundError:
            raise FileNotFoundError(path) from None

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; if ``recursive``, folders and object stores with all that is in them, ``maxdepth`` levels down.

        Raises FileNotFoundError, IsADirectoryError.
        """
        for found in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            if self.isfile(found):
                self.rm_file(found)
            elif not recursive:
                raise IsADirectoryError(found)
            elif "/" not in found:
                process_store(self.store).blocking.delete_objects(found)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy the file at ``path1`` to ``path2``. Raises FileNotFoundError."""
        # As a whole, so that it is verified.
        with self._fetch_whole(path1) as source, self._open(path2, "wb") as target:
            while piece := source.read(2**20):
                target.write(piece)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **kwargs: Any) -> Any:
        bucket, name = self._parts(path)
        if mode not in ("rb", "wb", "xb", "ab") or not name:
            raise ValueError(f"cannot open {path!r} with mode {mode!r}")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        if mode == "rb" and self.info(path)["size"] > _WHOLE:
            objects = self._objects(bucket, path)
            return RangedFile(self, path, objects, objects.info(name), block_size=block_size or "default", **kwargs)
        if mode == "rb" or (mode == "ab" and self.exists(path)):
            content = self._fetch_whole(path)
            if mode == "rb":
                return content
            content.seek(0, io.SEEK_END)
        else:
            content = _spool()
        return UploadedFile(self, path, content, autocommit=autocommit)

    def _fetch_whole(self, path: str) -> IO[bytes]:
        bucket, name = self._parts(path)
        content = _spool()
        try:
            # The object itself, not a copy: its descriptor is only asked for when it is large.
            self._objects(bucket, path).get_file(name, content)
        except ObjectNotFoundError:
            content.close()
            raise FileNotFoundError(path) from None
        content.seek(0)
        return content

    def put_content(self, path: str, content: IO[bytes]) -> None:
        """Replace an object by a file's content; returns when it is on disk."""
        bucket, name = self._parts(path)
        content.seek(0)
        self._find_or_create(bucket).put(name, content)

    # --- the store

    def _parts(self, path: str) -> tuple[str, str]:
        bucket, _, name = self._strip_protocol(path).partition("/")
        return bucket, name

    def _objects(self, bucket: str, path: str) -> Any:
        try:
            return process_store(self.store).blocking.objects(bucket)
        except BucketNotFoundError:
            raise FileNotFoundError(path) from None

    def _find_or_create(self, bucket: str) -> Any:
        try:
            return process_store(self.store).blocking.objects(bucket)
        except BucketNotFoundError:
            return process_store(self.store).blocking.create_objects(bucket)


class RangedFile(AbstractBufferedFile):
    """A file that is read in parts: always of the object that it was when it was opened."""

    def __init__(self, fs: PeltonFileSystem, path: str, objects: Any, info: Any, **options: Any) -> None:
        self._objects = objects
        self._object = info
        super().__init__(fs, path, size=info.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self._objects.get_range(self._object, start, end))


class UploadedFile(io.RawIOBase):
    """A file that is written; it becomes an object when it is closed, or, in a transaction, with that."""

    def __init__(self, fs: PeltonFileSystem, path: str, content: IO[bytes], *, autocommit: bool) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._content = content
        self._autocommit = autocommit
        self.mode = "wb"

    def writable(self) -> bool:
        """Whether it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write data; return how many bytes."""
        return self._content.write(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._content.tell()

    def close(self) -> None:
        """Store the object, unless that is left to `commit`."""
        if self.closed:
            return
        try:
            if self._autocommit:
                self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Store the object; returns when it is on disk."""
        with self._content:
            self._fs.put_content(self._path, self._content)

    def discard(self) -> None:
        """Store nothing."""
        self._content.close()


def _split(url: str) -> tuple[str, str]:
    """Return the store of a URL, empty if it names none, and the path in it."""
    path = url.removeprefix("pelton://")
    if path != url:
        parts = path.split("/")
        for number, part in enumerate(parts, 1):
            if part.endswith(_SUFFIX):
                return "/".join(parts[:number]), "/".join(parts[number:]).strip("/")
    return "", path.strip("/")


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _file(bucket: str, info: Any) -> dict[str, Any]:
    return {
        "name": f"{bucket}/{info.name}",
        "size": info.size,
        "type": "file",
        "mtime": datetime.fromtimestamp(info.mtime_ns / 1e9, UTC),
        "digest": info.digest,
    }


def _spool() -> IO[bytes]:
    return cast("IO[bytes]", tempfile.SpooledTemporaryFile(_IN_MEMORY))
