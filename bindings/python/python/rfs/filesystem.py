"""The file system of fsspec for URLs such as ``rfs://10.0.0.1:7440/path``.

The server may also be given as ``server``: the path of its Unix socket, for example. Then URLs have
no server: ``rfs:///path``.
"""

import stat as modes
from datetime import datetime, timezone
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from .files import ABSENT, connect

_KINDS = {modes.S_IFDIR: "directory", modes.S_IFREG: "file", modes.S_IFLNK: "link"}


class RfsFileSystem(AbstractFileSystem):
    """Files of one rfs-server. The options are those of ``rfs.connect``."""

    protocol = "rfs"
    root_marker = "/"
    #: Files are opened for each thread's own use, and a session is for all threads.
    cachable = True

    def __init__(self, server=None, *, use_listings_cache=False, **options):
        if server is None:
            raise ValueError("no server: use rfs://HOST:PORT/PATH, or the option server=")
        super().__init__(use_listings_cache=use_listings_cache)
        self.mount = connect(server, **options)

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("rfs://"):
            path = urlsplit(path)._replace(scheme="", netloc="").geturl()
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path):
        netloc = urlsplit(path).netloc
        return {"server": netloc} if netloc else {}

    def unstrip_protocol(self, name):
        return f"rfs://{self._strip_protocol(name)}"

    @classmethod
    def _parent(cls, path):
        return cls._strip_protocol(path).rpartition("/")[0] or "/"

    def _entry(self, path, stat):
        kind = _KINDS.get(modes.S_IFMT(stat.st_mode), "other")
        size = stat.st_size if kind != "directory" else 0
        entry = {"name": path, "size": size, "type": kind, "mode": stat.st_mode, "ino": stat.st_ino}
        entry.update(uid=stat.st_uid, gid=stat.st_gid, nlink=stat.st_nlink)
        entry.update(mtime=stat.st_mtime, created=stat.st_ctime, islink=kind == "link")
        if kind == "link":
            try:
                entry["destination"] = self.mount.readlink(path)
                target = self.mount.stat(path)
            except OSError:
                # The link leads nowhere, or to a place that the user may not see, or is removed.
                return entry
            entry["size"], entry["type"] = target.st_size, _KINDS.get(modes.S_IFMT(target.st_mode), "other")
        return entry

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._entry(path, self.mount.lstat(path))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        prefix = path.rstrip("/")
        try:
            found = self.mount.scandir(path)
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            # A file, or a link that leads nowhere.
            entries = [self.info(path)]
        else:
            entries = [self._entry(f"{prefix}/{entry.name}", entry.stat(follow_symlinks=False)) for entry in found]
        return entries if detail else [entry["name"] for entry in entries]

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if create_parents:
            self.mount.makedirs(path)
        else:
            self.mount.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.mount.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.mount.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.mount.remove(self._strip_protocol(path))

    def _rm(self, path):
        self.rm_file(path)

    def rm(self, path, recursive=False, maxdepth=None):
        paths = path if isinstance(path, list) else [path]
        for one in map(self._strip_protocol, paths):
            if recursive:
                if one == "/":
                    raise ValueError("the root cannot be removed")
                self.mount.rmtree(one)
            else:
                self.mount.remove(one)

    def mv(self, path1, path2, **kwargs):
        self.mount.replace(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.mount.makedirs(path2, exist_ok=True)
            return
        self.mount.makedirs(self._parent(path2), exist_ok=True)
        with self.mount.open(path1, "rb", buffering=0) as source, self.mount.open(path2, "wb", buffering=0) as target:
            buffer = bytearray(8 << 20)
            while count := source.readinto(buffer):
                part = memoryview(buffer)[:count]
                while part:
                    part = part[target.write(part) :]

    def get_file(self, rpath, lpath, callback=None, **kwargs):
        if self.isdir(rpath):
            import os

            os.makedirs(lpath, exist_ok=True)
            return
        super().get_file(rpath, lpath, **({"callback": callback} if callback else {}), **kwargs)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if "r" not in mode:
            self.mount.makedirs(self._parent(path), exist_ok=True)
        return self.mount.open(path, mode if "b" in mode else mode + "b")

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        self.mount.makedirs(self._parent(path), exist_ok=True)
        with self.mount.open(path, "wb" if truncate else "ab"):
            pass
        self.mount.utime(path)

    def created(self, path):
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def chmod(self, path, mode):
        """Sets the permission bits."""
        self.mount.chmod(self._strip_protocol(path), mode)
