"""A tier for the blocks of KV caches: one process writes each block once, others read it.

Usage: kv_cache.py STORE SIZE COUNT [READERS]. Prints the rates of writing, and of reading by all
readers together, in MB/s. The readers wait for each name while the writer writes, and check that a
block is whole when it has its name.
"""

import hashlib
import multiprocessing
import sys
import time

from stores import open_store, parse_size


def name_of(block):
    """Returns the name of a block: a hash of its tokens."""
    return hashlib.sha256(b"tokens %d" % block).hexdigest()[:32] + ".kv"


def fill(buffer, block):
    """Makes a buffer the contents of a block."""
    for at in range(0, len(buffer), 4096):
        buffer[at : at + 8] = block.to_bytes(4, "little") + (at >> 12).to_bytes(4, "little")


def read_all(store, buffer, expected, count):
    """Reads all blocks and checks each."""
    for block in range(count):
        if store.read(name_of(block), buffer) != len(buffer):
            raise SystemExit(f"block {block} is short")
        fill(expected, block)
        if buffer != expected:
            raise SystemExit(f"block {block} has other bytes")


def run_reader(name, size, count, begin, outcomes):
    """Reads each block when it appears, and then all of them with the other readers."""
    store = open_store(name)
    buffer, expected = bytearray(size), bytearray(size)
    for block in range(count):
        while not store.has(name_of(block)):
            time.sleep(0.001)
        store.read(name_of(block), buffer)
        fill(expected, block)
        if buffer != expected:
            raise SystemExit(f"block {block} has its name before it is whole")
    begin.wait()
    began = time.monotonic()
    read_all(store, buffer, expected, count)
    outcomes.put((began, time.monotonic()))


def main(name, size, count, readers):
    """Writes, waits for the readers, and prints both rates."""
    context = multiprocessing.get_context("spawn")
    begin, outcomes = context.Barrier(readers), context.Queue()
    arguments = (name, size, count, begin, outcomes)
    processes = [context.Process(target=run_reader, args=arguments) for _ in range(readers)]
    for process in processes:
        process.start()
    store, buffer = open_store(name), bytearray(size)
    spent = 0
    for block in range(count):
        fill(buffer, block)
        began = time.monotonic()
        store.write(name_of(block), buffer)
        spent += time.monotonic() - began
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(1)
    times = [outcomes.get() for _ in processes]
    read = max(end for _, end in times) - min(began for began, _ in times)
    for block in range(count):
        store.remove(name_of(block))
    print(f"{size * count / spent / 1e6:.0f} {size * count * readers / read / 1e6:.0f}")


if __name__ == "__main__":
    main(
        sys.argv[1],
        parse_size(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]) if len(sys.argv) > 4 else 2,
    )
