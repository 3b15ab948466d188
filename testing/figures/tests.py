"""Tests of figures.py: no program outlives it. Usage: python3 testing/figures/tests.py."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

import figures

# A lender that ignores SIGTERM, and leaves its number in a file.
LENDER = """#!/bin/sh
trap '' TERM
echo $$ > "$(dirname "$0")/pid"
echo tcp:127.0.0.1:1
echo ready: lending
while :; do sleep 0.1; done
"""
# Measures with such a lender until SIGTERM.
MEASURE = """
import pathlib, sys, time, types
sys.path.insert(0, sys.argv[2])
import figures
figures.END_S = 1
figures.check = lambda options: None
options = types.SimpleNamespace(paging=pathlib.Path(sys.argv[1]), memory="1m", providers=["tcp"], programs=["x"], figure="fig11")
figures.parse = lambda: options
figures.run_model = lambda *_: time.sleep(60)
sys.exit(figures.main())
"""


def is_alive(pid):
    """Returns true if a process runs."""
    try:
        return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


class Ends(unittest.TestCase):
    """Each test has a lender that does not end by itself."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.paging, self.pid = pathlib.Path(folder.name, "rfs-paging"), pathlib.Path(folder.name, "pid")
        self.paging.write_text(LENDER)
        self.paging.chmod(0o755)

    def lender(self):
        """Waits for the lender, and returns its process."""
        for _ in range(200):
            if self.pid.exists() and self.pid.read_text():
                return int(self.pid.read_text())
            time.sleep(0.05)
        self.fail("no lender has started")

    def test_a_lender_that_ignores_sigterm_is_killed(self):
        """Catches a lender that is left behind, and an error instead of the results."""
        self.addCleanup(setattr, figures, "END_S", figures.END_S)
        figures.END_S = 1
        options = types.SimpleNamespace(paging=self.paging, memory="1m")
        with figures.lender(options, "tcp", "/tmp") as address:
            self.assertEqual(address, "tcp:127.0.0.1:1")
        self.assertFalse(is_alive(self.lender()))

    def test_sigterm_ends_the_lender(self):
        """Catches a measurement that SIGTERM ends without its lender."""
        measure = subprocess.Popen([sys.executable, "-c", MEASURE, self.paging, figures.HERE])
        lender = self.lender()
        # Until the lender has said that it is ready.
        time.sleep(1)
        measure.send_signal(signal.SIGTERM)
        status = measure.wait(30)
        alive = is_alive(lender)
        if alive:
            os.kill(lender, signal.SIGKILL)
        self.assertFalse(alive)
        self.assertEqual(status, 128 + signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
