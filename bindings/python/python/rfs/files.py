"""Mounts and files with the interfaces of ``os`` and ``io``."""

import errno
import io
import os
import stat as modes
from typing import NamedTuple

from . import _rfs

#: Error numbers of paths that name nothing, such as a circle of symbolic links.
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}

#: Size in bytes of the buffer of buffered files.
BUFFER = 1 << 20


class Stat(NamedTuple):
    """Attributes of an inode. Times are nanoseconds since 1970 on the server's clock."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int

    @property
    def st_mtime(self):
        """Time of the last change of contents, in seconds."""
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self):
        """Time of the last change of contents or attributes, in seconds."""
        return self.st_ctime_ns / 1e9

    @property
    def st_atime(self):
        """Time of the last access, in seconds."""
        return self.st_atime_ns / 1e9


class DirEntry:
    """An entry of a directory, as ``os.scandir`` has them."""

    __slots__ = ("name", "path", "_mount", "_stat")

    def __init__(self, mount, directory, name, stat):
        self.name, self.path = name, os.path.join(directory, name)
        self._mount, self._stat = mount, stat

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def __fspath__(self):
        return self.path

    def stat(self, *, follow_symlinks=True):
        """Returns the attributes as of the listing; those of a link's target are fetched."""
        if follow_symlinks and self.is_symlink():
            return self._mount.stat(self.path)
        return self._stat

    def _is(self, kind, follow_symlinks):
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except OSError as error:
            if error.errno in ABSENT:
                return False
            raise

    def is_dir(self, *, follow_symlinks=True):
        """Returns True for a directory."""
        return self._is(modes.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        """Returns True for a regular file."""
        return self._is(modes.S_ISREG, follow_symlinks)

    def is_symlink(self):
        """Returns True for a symbolic link."""
        return modes.S_ISLNK(self._stat.st_mode)

    def inode(self):
        """Returns the number of the inode."""
        return self._stat.st_ino


class RawFile(io.RawIOBase):
    """An open file with a position. ``file`` has the calls with offsets."""

    def __init__(self, file, name, mode, *, readable, writable, appends):
        self.file, self.name, self.mode = file, name, mode
        self._readable, self._writable, self._appends = readable, writable, appends
        self._position = 0

    def readable(self):
        return self._readable

    def writable(self):
        return self._writable

    def seekable(self):
        return True

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readinto(self, buffer):
        self._check()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        count = self.file.pread_into(memoryview(buffer).cast("B"), self._position)
        self._position += count
        return count

    def readall(self):
        self._check()
        parts = []
        while part := self.file.pread(max(self.stat().st_size - self._position, 1), self._position):
            self._position += len(part)
            parts.append(part)
        return b"".join(parts)

    def write(self, data):
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        data = memoryview(data).cast("B")
        if self._appends:
            self._position = self.file.append(data) + len(data)
            return len(data)
        count = self.file.pwrite(data, self._position)
        self._position += count
        return count

    def seek(self, offset, whence=os.SEEK_SET):
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if base is None:
            if whence != os.SEEK_END:
                raise ValueError(f"invalid whence: {whence}")
            base = self.stat().st_size
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a position before the file")
        self._position = base + offset
        return self._position

    def tell(self):
        self._check()
        return self._position

    def truncate(self, size=None):
        self._check()
        size = self._position if size is None else size
        self.file.truncate(size)
        return size

    def stat(self):
        """Returns the attributes."""
        return Stat(*self.file.stat())

    def view(self, offset, length):
        """Returns bytes in place, for ``memoryview``. A truncation waits until they are freed."""
        return self.file.view(offset, length)

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                self.file.close()


def _parse(mode):
    """Returns the options of a mode such as "r+b"."""
    kinds = [letter for letter in mode if letter in "rwxa"]
    if len(kinds) != 1 or set(mode) - set("rwxabt+") or len(set(mode)) != len(mode) or {"b", "t"} <= set(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    kind, plus = kinds[0], "+" in mode
    return {
        "read": kind == "r" or plus,
        "write": kind != "r" or plus,
        "append": kind == "a",
        "truncate": kind == "w",
        "create": kind in "wa",
        "create_new": kind == "x",
    }


class Mount:
    """A session with a server, with calls like those of ``os``."""

    def __init__(self, address, **options):
        self._mount = _rfs.Mount(address, **options)

    def __repr__(self):
        return repr(self._mount)

    def __getattr__(self, name):
        # The calls without another form in Python.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._mount, name)

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """Opens a file, as ``open`` does."""
        options, binary = _parse(mode), "b" in mode
        file = self._mount.open_file(path, **options)
        readable, writable = options["read"], options["write"]
        raw = RawFile(file, path, mode, readable=readable, writable=writable, appends=options["append"])
        if options["append"]:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            if not binary:
                raise ValueError("text files have a buffer")
            return raw
        size = BUFFER if buffering < 2 else buffering
        if readable and writable:
            buffered = io.BufferedRandom(raw, size)
        elif writable:
            buffered = io.BufferedWriter(raw, size)
        else:
            buffered = io.BufferedReader(raw, size)
        if binary:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)

    def stat(self, path, *, follow_symlinks=True):
        """Returns the attributes of a path."""
        return Stat(*self._mount.stat(path, follow_symlinks))

    def lstat(self, path):
        """Returns the attributes of a path. Those of a symbolic link are its own."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path):
        """Returns True if the path names something."""
        return self._is(lambda mode: True, path)

    def _is(self, kind, path):
        try:
            return kind(self.stat(path).st_mode)
        except OSError as error:
            if error.errno in ABSENT:
                return False
            raise

    def isdir(self, path):
        """Returns True if the path names a directory."""
        return self._is(modes.S_ISDIR, path)

    def isfile(self, path):
        """Returns True if the path names a regular file."""
        return self._is(modes.S_ISREG, path)

    def listdir(self, path="/"):
        """Returns the names in a directory."""
        return [name for name, _ in self._mount.entries(path)]

    def scandir(self, path="/"):
        """Returns the entries of a directory."""
        return [DirEntry(self, os.fspath(path), name, Stat(*stat)) for name, stat in self._mount.entries(path)]

    def makedirs(self, path, mode=0o777, exist_ok=False):
        """Creates a directory and its missing parents."""
        parts = [part for part in os.fspath(path).split("/") if part]
        for count in range(1, len(parts) + 1):
            is_last = count == len(parts)
            try:
                self._mount.mkdir("/" + "/".join(parts[:count]), mode)
            except FileExistsError:
                if is_last and not (exist_ok and self.isdir(path)):
                    raise

    def unlink(self, path):
        """Removes a name that is not of a directory."""
        self._mount.remove(path)

    def rename(self, old, new):
        """Renames, and replaces the new name if it exists."""
        self._mount.replace(old, new)

    def read_bytes(self, path):
        """Returns all bytes of a file."""
        with self.open(path, "rb", buffering=0) as file:
            return file.readall()

    def write_bytes(self, path, data):
        """Replaces the contents of a file."""
        with self.open(path, "wb") as file:
            return file.write(data)


def connect(address, **options):
    """Connects to a server: HOST:PORT, rdma:HOST:PORT, or the path of a Unix socket.

    Options: export, key, tls_ca, provider ("shm", "tcp" or "rdma"), uid, gid, groups, umask,
    timeout and connect_timeout (seconds), cache, reconnect, name.
    """
    return Mount(address, **options)
