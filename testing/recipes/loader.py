"""A data loader in the way of PyTorch: workers put batches into shared memory for a trainer.

Usage: loader.py SIZE COUNT AHEAD. The shared memory is that of /dev/shm (shm_open). The workers
make up to AHEAD batches before the trainer takes them. The trainer checks each batch. Prints the
rate in MB/s.
"""

import multiprocessing
import sys
import time
from multiprocessing import resource_tracker, shared_memory

from stores import parse_size

WORKERS = 2


def fill(view, batch):
    """Makes a batch: each page has its number."""
    for at in range(0, len(view), 4096):
        view[at : at + 8] = (batch << 20 | at >> 12).to_bytes(8, "little")


def check(view, batch):
    """Checks a batch."""
    for at in range(0, len(view), 4096):
        if int.from_bytes(view[at : at + 8], "little") != batch << 20 | at >> 12:
            raise SystemExit(f"batch {batch} has other bytes at {at}")


def run_worker(size, batches, ahead, ready):
    """Makes batches, each in shared memory of its own."""
    for batch in batches:
        ahead.acquire()
        memory = shared_memory.SharedMemory(create=True, size=size)
        fill(memory.buf, batch)
        ready.put((batch, memory.name))
        memory.close()


def main(size, count, ahead_limit):
    """Runs the workers and the trainer."""
    context = multiprocessing.get_context("fork")
    # One tracker for all: that of a worker would remove the worker's batches at its end.
    resource_tracker.ensure_running()
    ahead, ready = context.Semaphore(ahead_limit), context.Queue()
    began = time.monotonic()
    workers = []
    for worker in range(WORKERS):
        arguments = (size, range(worker, count, WORKERS), ahead, ready)
        workers.append(context.Process(target=run_worker, args=arguments))
        workers[-1].start()
    # The trainer begins when the workers have made all that they may make.
    waiting = [ready.get() for _ in range(min(count, ahead_limit))]
    for _ in range(count):
        batch, name = waiting.pop(0) if waiting else ready.get()
        memory = shared_memory.SharedMemory(name=name)
        check(memory.buf, batch)
        memory.close()
        memory.unlink()
        ahead.release()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"a worker ended with {worker.exitcode}")
    print(f"{size * count / (time.monotonic() - began) / 1e6:.0f}")


if __name__ == "__main__":
    main(parse_size(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
