"""Stores of named blocks: a directory, files of the package rfs, and Redis.

A store is named on the command line: a path, ``rfs:ADDRESS``, or ``redis:SOCKET``. A block appears
under its name when it is whole.
"""

import os
import socket


class Directory:
    """Files of a directory, as vLLM's and LMCache's file connectors keep them."""

    def __init__(self, path):
        self.path = path

    def write(self, name, data):
        """Writes a block beside its name, and renames it."""
        path = os.path.join(self.path, name)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "wb", buffering=0) as file:
            file.write(data)
        os.rename(temporary, path)

    def has(self, name):
        """Returns True if there is a block."""
        return os.path.exists(os.path.join(self.path, name))

    def read(self, name, buffer):
        """Fills a buffer, and returns the number of bytes."""
        with open(os.path.join(self.path, name), "rb", buffering=0) as file:
            return file.readinto(buffer)

    def remove(self, name):
        """Removes a block."""
        os.remove(os.path.join(self.path, name))


class Native:
    """Files of an rfs-server, without a mount."""

    def __init__(self, address):
        import rfs

        self.mount = rfs.connect(address)

    def write(self, name, data):
        """Writes a block beside its name, and renames it."""
        temporary = f"{name}.{os.getpid()}.tmp"
        with self.mount.open(temporary, "wb", buffering=0) as file:
            file.write(data)
        self.mount.rename(temporary, name)

    def has(self, name):
        """Returns True if there is a block."""
        return self.mount.exists(name)

    def read(self, name, buffer):
        """Fills a buffer, and returns the number of bytes."""
        with self.mount.open(name, "rb", buffering=0) as file:
            return file.readinto(buffer)

    def remove(self, name):
        """Removes a block."""
        self.mount.remove(name)


class Redis:
    """Strings of a Redis server at a Unix socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb", buffering=1 << 16)

    def _ask(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
        self.socket.sendall(b"".join(parts))
        line = self.file.readline()
        if line.startswith(b"-"):
            raise OSError(line.decode().strip())
        return line

    def write(self, name, data):
        """Sets a string."""
        self._ask(b"SET", name.encode(), bytes(data))

    def has(self, name):
        """Returns True if there is a string."""
        return self._ask(b"EXISTS", name.encode()) == b":1\r\n"

    def read(self, name, buffer):
        """Fills a buffer, and returns the number of bytes."""
        size = int(self._ask(b"GET", name.encode())[1:])
        view, filled = memoryview(buffer)[:size], 0
        while filled < size:
            filled += self.file.readinto(view[filled:])
        self.file.read(2)
        return size

    def remove(self, name):
        """Removes a string."""
        self._ask(b"DEL", name.encode())


def open_store(name):
    """Opens the store that the command line names. Each process opens its own."""
    kind, _, rest = name.partition(":")
    if kind == "rfs":
        return Native(rest)
    return Redis(rest) if kind == "redis" else Directory(name)


def parse_size(text):
    """Returns the number of bytes of a size such as 256k or 16m."""
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor
