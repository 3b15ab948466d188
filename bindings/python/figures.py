#!/usr/bin/env python3
"""Measures files in Python beside the native API, medians of five runs in turn.

Usage: figures.py SOCKET NATIVE. SOCKET is the Unix socket of a server, and NATIVE the example
`figures` of rfs-native. `ci/benchmarks/native-figures` calls this.
"""

import statistics
import subprocess
import sys
import time

import rfs
from rfs.filesystem import RfsFileSystem

SIZE, BLOCK, ROUNDS, COUNT = 64 << 20, 1 << 20, 5, 2000


def native(socket, program):
    """Returns the nanoseconds of 1 MiB: read into the same buffer, and of the whole file."""
    output = subprocess.check_output([program, "read", socket, "/figures-python", str(COUNT)])
    return [int(line) for line in output.split()]


def readinto(file, buffer):
    """Returns the nanoseconds of one readinto of 1 MiB."""
    begin = time.monotonic_ns()
    for number in range(COUNT):
        file.seek(number * BLOCK % SIZE)
        assert file.readinto(buffer) == BLOCK
    return (time.monotonic_ns() - begin) / COUNT


def cat_file(files):
    """Returns the nanoseconds of 1 MiB in a cat_file of 64 MiB."""
    begin = time.monotonic_ns()
    assert len(files.cat_file("/figures-python")) == SIZE
    return (time.monotonic_ns() - begin) / (SIZE // BLOCK)


def row(name, own, other, wanted):
    """Prints a row, as the native example does."""
    own, other = (statistics.median(times[1:]) / 1000 for times in (own, other))
    print(f"{name:<50} {own:>10.2f} {other:>10.2f} {other / own:>7.2f} {wanted:>7.2f}")


def main():
    socket, program = sys.argv[1:]
    mount = rfs.connect(socket, provider="shm")
    with mount.open("/figures-python", "wb") as file:
        file.write(b"1" * SIZE)
    files = RfsFileSystem(socket, provider="shm")
    times = {"native": [], "whole": [], "readinto": [], "cat_file": []}
    with mount.open("/figures-python", "rb", buffering=0) as file:
        buffer = bytearray(BLOCK)
        # The first round warms up.
        for _ in range(ROUNDS + 1):
            once, whole = native(socket, program)
            times["native"].append(once)
            times["whole"].append(whole)
            times["readinto"].append(readinto(file, buffer))
            times["cat_file"].append(cat_file(files))
    row("shm read 1 MiB: Python readinto, native", times["readinto"], times["native"], 0.9)
    row("shm cat_file of 64 MiB, by 1 MiB: fsspec, native", times["cat_file"], times["whole"], 0.8)
    mount.unlink("/figures-python")


if __name__ == "__main__":
    main()
