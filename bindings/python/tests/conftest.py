"""A server for the tests: RFS_SERVER names its program."""

import os
import re
import subprocess
import time

import pytest

import rfs


class Server:
    def __init__(self, directory):
        self.socket = str(directory / "socket")
        program = os.environ["RFS_SERVER"]
        options = ["--memory", "256M", "--listen", self.socket, "--listen", "tcp:127.0.0.1:0"]
        log = open(directory / "log", "wb")
        self.process = subprocess.Popen(
            [program, *options, "--allow-without-keys", "--root-mode", "777"], stdout=log, stderr=log
        )
        deadline = time.monotonic() + 60
        found = None
        while not found:
            assert self.process.poll() is None and time.monotonic() < deadline, "the server has not started"
            time.sleep(0.05)
            found = re.search(r"127\.0\.0\.1:[0-9]+", (directory / "log").read_text())
        self.tcp = found.group()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.terminate()
    server.process.wait(60)


@pytest.fixture(params=["shm", "tcp"])
def mount(server, request):
    address = server.socket if request.param == "shm" else server.tcp
    mount = rfs.connect(address, provider=request.param, connect_timeout=60, timeout=60)
    yield mount
    for entry in mount.scandir("/"):
        mount.rmtree(entry.path)
