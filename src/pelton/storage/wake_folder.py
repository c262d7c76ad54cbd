"""The folder of a store's wake-up sockets, ``<store>-wake``, used by its descriptor and never by its name alone.

Something else may have that name: from an unpacked archive, or from another user of a shared folder. So links are not
followed, a stranger's folder is refused, and in a folder with other contents only sockets with our names are touched.
Everyone who may write to the store may use what is created here.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from contextlib import suppress
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"[0-9]{1,9}-[0-9]{1,18}")
_LONGEST_ADDRESS: Final = 100


class FolderRefused(Exception):  # noqa: N818  # not an error: polling is another way to notice what others write
    """The folder cannot be trusted; the text is the reason."""


class Access(NamedTuple):
    """The owner of a store, and who else may write to it."""

    mode: int
    uid: int
    gid: int

    @property
    def socket_mode(self) -> int:
        """The permissions of a socket for everyone who may write to the store."""
        return sum(rights for rights in (0o060, 0o006) if self.mode & rights == rights) | 0o600

    @property
    def folder_mode(self) -> int:
        """The permissions of a folder of such sockets."""
        return self.socket_mode | (self.socket_mode & 0o222) >> 1

    def trusts(self, folder: os.stat_result, user: int) -> bool:
        """Return whether a folder was created by a user with whom ``user`` shares the store."""
        if folder.st_uid in (user, self.uid, 0):
            return True
        of_group = bool(self.socket_mode & 0o020) and folder.st_gid == self.gid
        return of_group or bool(self.socket_mode & 0o002)


def access_of(store: str) -> Access:
    """Return a store's access; for a store that does not exist, the access of a new one."""
    try:
        found = os.stat(store)
    except OSError:
        return Access(0o600, os.geteuid(), os.getegid())
    return Access(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def is_name(name: str) -> bool:
    """Return whether this may be the name of a socket of ours."""
    return _NAME.fullmatch(name) is not None


class WakeFolder:
    """The folder, created if it is missing. Raises FolderRefused, OSError."""

    def __init__(self, store: str) -> None:
        self.path: str = os.path.abspath(store) + "-wake"
        self._access = access_of(store)
        try:
            os.mkdir(self.path, self._access.folder_mode)
            made = True
        except FileExistsError:
            made = False
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except NotADirectoryError:
            raise FolderRefused("it is a link or a file, not a folder") from None
        self._release = weakref.finalize(self, os.close, self._fd)
        self._is_ours = self._examine(made=made)

    def _examine(self, *, made: bool) -> bool:
        """Return whether an opener of the store created it; raise FolderRefused if it cannot be trusted."""
        found = os.fstat(self._fd)
        if made:
            self._hand_over(self._fd, found)
            with suppress(OSError):
                os.fchmod(self._fd, self._access.folder_mode)
        elif not self._access.trusts(found, os.geteuid()):
            raise FolderRefused(f"it belongs to another user (uid {found.st_uid})")
        return made or stat.S_IMODE(found.st_mode) == self._access.folder_mode

    def _hand_over(self, made: int | str, found: os.stat_result) -> None:
        """Give what we created to the store's owner and group, as far as permitted, so that they can use it."""
        access = self._access
        if (found.st_uid, found.st_gid) != (access.uid, access.gid):
            user = access.uid if os.geteuid() == 0 else -1
            with suppress(OSError):
                if isinstance(made, int):
                    os.chown(made, user, access.gid)
                else:
                    os.chown(made, user, access.gid, dir_fd=self._fd, follow_symlinks=False)

    @property
    def descriptor(self) -> int:
        """The descriptor of the folder."""
        return self._fd

    @property
    def stamp(self) -> int:
        """The time when a name in it was last created or removed."""
        return os.fstat(self._fd).st_mtime_ns

    def address(self, name: str) -> str:
        """Return an address short enough for a socket: long paths go through the folder's descriptor."""
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
            return path
        return f"/proc/self/fd/{self._fd}/{name}"

    def adopt(self, name: str) -> None:
        """Let everyone who may write to the store use a new socket. Raises FileNotFoundError if it is not here."""
        if self._socket(name) is None:
            # The folder was replaced between our opening it and binding in it.
            raise FileNotFoundError(name)
        self.share(name)

    def share(self, name: str) -> None:
        """Let everyone who may write to the store use what we created here."""
        self._hand_over(name, os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        with suppress(OSError):
            os.chmod(name, self._access.socket_mode, dir_fd=self._fd)

    def names(self) -> list[str]:
        """Return the names of all sockets of ours."""
        try:
            return [name for name in os.listdir(self._fd) if is_name(name) and self._socket(name) is not None]
        except OSError:
            return []

    def remove(self, name: str) -> None:
        """Remove a socket; anything else is left alone."""
        if is_name(name) and self._socket(name) is not None:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)

    def _socket(self, name: str) -> os.stat_result | None:
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return None
        return found if stat.S_ISSOCK(found.st_mode) else None

    def close(self) -> None:
        """Release the folder, and remove it if it is empty and an opener of the store created it."""
        with suppress(OSError):
            if self._is_ours and os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                os.rmdir(self.path)
        self._release()
