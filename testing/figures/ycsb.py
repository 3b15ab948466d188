"""A load like YCSB's for Redis: records of 1000 bytes, chosen by a scrambled Zipf distribution.

Usage: ycsb.py SOCKET RECORDS QUERIES WRITES. WRITES is the share of writes: 0.05 for the load ETC,
0.25 for SYS. Each of eight connections has one request under way. Stores all records, then makes
the queries, and prints their rate and latencies as JSON.
"""

import itertools
import json
import random
import socket
import sys
import time

ZIPF = 0.99
SEED = 7
CONNECTIONS = 8
VALUE = 1000
PIPELINE = 200


def keys(records, queries):
    """Returns the records of the queries. The most frequent ones are spread over all keys."""
    chosen = random.Random(SEED)
    weights = list(itertools.accumulate(1 / rank**ZIPF for rank in range(1, records + 1)))
    order = list(range(records))
    chosen.shuffle(order)
    return [order[rank] for rank in chosen.choices(range(records), cum_weights=weights, k=queries)]


def value(key, version):
    """Returns the value of a record."""
    return f"{key}:{version}:".encode().ljust(VALUE, b"%c" % (97 + key % 26))


def set_request(key, version):
    """Returns a request that stores a record."""
    name = b"user%d" % key
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, VALUE, value(key, version))


def get_request(key):
    """Returns a request that reads a record."""
    name = b"user%d" % key
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name)


OK = b"+OK\r\n"
HEAD = b"$%d\r\n" % VALUE
LENGTHS = {True: len(OK), False: len(HEAD) + VALUE + 2}


def receive(connection, length):
    """Receives a reply."""
    reply = connection.recv(length)
    while len(reply) < length:
        more = connection.recv(length - len(reply))
        if not more or not reply[:1] in b"+$":
            raise SystemExit(f"redis replied {reply[:80]!r}")
        reply += more
    return reply


def load(connection, records):
    """Stores all records."""
    for first in range(0, records, PIPELINE):
        part = range(first, min(records, first + PIPELINE))
        connection.sendall(b"".join(set_request(key, 0) for key in part))
        if receive(connection, len(OK) * len(part)) != OK * len(part):
            raise SystemExit("redis did not store a record")


def query(connections, plan):
    """Makes all queries. Returns their latencies in seconds."""
    latencies = []
    clock = time.monotonic
    for first in range(0, len(plan), len(connections)):
        under_way = []
        for connection, (key, is_write) in zip(connections, plan[first : first + len(connections)]):
            request = set_request(key, first) if is_write else get_request(key)
            under_way.append((connection, key, is_write, clock()))
            connection.sendall(request)
        for connection, key, is_write, began in under_way:
            reply = receive(connection, LENGTHS[is_write])
            latencies.append(clock() - began)
            if is_write and reply != OK or not is_write and not reply.startswith(HEAD + b"%d:" % key):
                raise SystemExit(f"redis replied {reply[:80]!r} for key {key}")
    return latencies


def connect(path):
    """Returns a connection."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(120)
    connection.connect(path)
    return connection


def main(path, records, queries, writes):
    """Runs the load."""
    connections = [connect(path) for _ in range(CONNECTIONS)]
    load(connections[0], records)
    chosen = random.Random(SEED + 1)
    plan = [(key, chosen.random() < writes) for key in keys(records, queries)]
    began = time.monotonic()
    latencies = sorted(query(connections, plan))
    seconds = time.monotonic() - began
    result = {
        "ops_per_s": len(latencies) / seconds,
        "mean_us": sum(latencies) / len(latencies) * 1e6,
        "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
