"""Checkpoints: four processes write a shard each and synchronize it, and others read them back.

Usage: checkpoint.py DIR SIZE, or checkpoint.py rfs:ADDRESS SIZE for the package rfs. Prints the
rates of writing and of reading by all processes together, in MB/s. The directory of a checkpoint
gets its name when all its shards are complete.
"""

import multiprocessing
import os
import sys
import time

from stores import parse_size

RANKS = 4
PIECE = 4 << 20


class Local:
    """Calls of the system on a directory."""

    def __init__(self, path):
        self.path = path

    def __getattr__(self, call):
        return lambda name, *rest: getattr(os, call)(self._of(name), *map(self._of, rest))

    def _of(self, name):
        return os.path.join(self.path, name) if isinstance(name, str) else name

    def open(self, name, mode):
        """Opens a file without a buffer."""
        return open(self._of(name), mode, buffering=0)

    def sync(self, file):
        """Synchronizes an open file."""
        os.fsync(file.fileno())

    def sync_directory(self, name):
        """Synchronizes the names of a directory."""
        directory = os.open(self._of(name), os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


class Native:
    """Calls of the package rfs."""

    def __init__(self, address):
        import rfs

        self.mount = rfs.connect(address)

    def __getattr__(self, call):
        return getattr(self.mount, call)

    def open(self, name, mode):
        """Opens a file without a buffer."""
        return self.mount.open(name, mode, buffering=0)

    def sync(self, file):
        """Synchronizes an open file."""
        file.file.sync()

    def sync_directory(self, name):
        """Does nothing: each change of names is at the server when its call returns."""


def files_of(store):
    """Returns the calls for the store that the command line names."""
    kind, _, address = store.partition(":")
    return Native(address) if kind == "rfs" else Local(store)


def piece_of(rank, at, size):
    """Returns a piece of a shard."""
    word = b"%04d %010d;" % (rank, at)
    return (word * (size // len(word) + 1))[:size]


def pieces(size):
    """Yields place and length of each piece."""
    for at in range(0, size, PIECE):
        yield at, min(PIECE, size - at)


def write_shard(store, size, rank):
    """Writes and synchronizes a shard. Returns the seconds without those that make the data."""
    files, spent = files_of(store), 0
    began = time.monotonic()
    with files.open(f"step.tmp/shard-{rank}", "wb") as file:
        spent += time.monotonic() - began
        for at, length in pieces(size):
            data = piece_of(rank, at, length)
            began = time.monotonic()
            while data:
                data = data[file.write(data) :]
            spent += time.monotonic() - began
        began = time.monotonic()
        files.sync(file)
    return spent + time.monotonic() - began


def read_shard(store, size, rank):
    """Reads and checks the shard of the next process."""
    files, spent, rank = files_of(store), 0, (rank + 1) % RANKS
    buffer = bytearray(PIECE)
    with files.open(f"step/shard-{rank}", "rb") as file:
        for at, length in pieces(size):
            view, filled = memoryview(buffer)[:length], 0
            began = time.monotonic()
            while filled < length:
                count = file.readinto(view[filled:])
                if not count:
                    raise SystemExit(f"shard {rank} is short at {at + filled}")
                filled += count
            spent += time.monotonic() - began
            if view != piece_of(rank, at, length):
                raise SystemExit(f"shard {rank} has other bytes at {at}")
    return spent


def run(pool, work, store, size):
    """Runs a function for all ranks. Returns the rate of all together in MB/s."""
    spent = pool.starmap(work, [(store, size, rank) for rank in range(RANKS)], chunksize=1)
    return size * RANKS / max(spent) / 1e6


def main(store, size):
    """Writes and reads one checkpoint."""
    files = files_of(store)
    context = multiprocessing.get_context("spawn")
    files.mkdir("step.tmp")
    with context.Pool(RANKS) as pool:
        write = run(pool, write_shard, store, size)
    files.sync_directory("step.tmp")
    files.rename("step.tmp", "step")
    # Other processes read, as after a restart.
    with context.Pool(RANKS) as pool:
        read = run(pool, read_shard, store, size)
    for rank in range(RANKS):
        files.remove(f"step/shard-{rank}")
    files.rmdir("step")
    print(f"{write:.0f} {read:.0f}")


if __name__ == "__main__":
    main(sys.argv[1], parse_size(sys.argv[2]))
