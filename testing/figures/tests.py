"""Tests of figures.py: no program outlives it, and reports and charts.

Usage: python3 testing/figures/tests.py
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import xml.etree.ElementTree as xml

import chart
import figures
import repeats
import report
import svg
import trace

DOCS = figures.HERE.parents[1] / "docs/performance"
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
options = types.SimpleNamespace(
    paging=pathlib.Path(sys.argv[1]), memory="1m", providers=["tcp"], programs=["x"], figure="fig11", report=None)
figures.arguments = lambda: options
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


def options(figure, programs, providers):
    """Returns the options of a measurement of two rounds."""
    return types.SimpleNamespace(
        figure=figure, programs=programs, providers=providers, local=[50, 25], dilation=20, rounds=2, scale=0.05,
        records=1000, out=None, chart=None)


def redis_report():
    """Returns a report of made-up runs of Redis. The profile verb has half the rate of hybrid."""
    results = {}
    for share in (50, 25):
        for profile, rate in (("hybrid", 2000), ("verb", 1000)):
            case = figures.Case("ETC", "tcp", share, profile)
            results[case] = [{"ops_per_s": rate + more, "mean_us": 1e6 / rate, "p99_us": 5e6 / rate} for more in (0, 20)]
    own = {"ETC": {"ops_per_s": 4000, "mean_us": 250, "p99_us": 900}}
    return figures.report_of(options("fig10", ["ETC"], ["tcp"]), results, own, {"ETC": 1 << 20}, (0.5, 0.7))


def model_report():
    """Returns a report of made-up runs of a model, over TCP and with the modelled card."""
    results = {}
    for provider in ("tcp", "model"):
        for share in (50, 25):
            for profile, seconds in (("hybrid", 11.0), ("verb", 21.0)):
                results[figures.Case("kmeans", provider, share, profile)] = [{"seconds": seconds, "result": 1.5}] * 2
    own = {"kmeans": {"seconds": 1.0, "result": 1.5}}
    return figures.report_of(options("fig11", ["kmeans"], ["tcp", "model"]), results, own, {"kmeans": 1 << 20}, (0.5, 0.7))


def bars(picture):
    """Returns the bars of a chart: the rectangles with a tooltip, as attributes and tooltip."""
    name = "{http://www.w3.org/2000/svg}"
    rectangles = [(rect.attrib, rect.find(f"{name}title")) for rect in xml.fromstring(picture).iter(f"{name}rect")]
    return [(attributes, title.text) for attributes, title in rectangles if title is not None]


class Reports(unittest.TestCase):
    """A report has the values of the runs, and survives JSON."""

    def test_medians_gains_and_spreads(self):
        """Catches a gain that is the wrong way round, and a median or spread of other runs."""
        entry = redis_report().entries[0]
        self.assertEqual((entry.program, entry.provider, entry.share, entry.quantity), ("ETC", "tcp", 50, "ops_per_s"))
        self.assertAlmostEqual(entry.hybrid, 2010)
        self.assertAlmostEqual(entry.gain, 2010 / 1010)
        self.assertAlmostEqual(entry.spread[1], 20 / 1010)
        latency = redis_report().entries[1]
        self.assertEqual(latency.quantity, "mean_us")
        self.assertAlmostEqual(latency.gain, 2)

    def test_only_the_card_has_its_own_time(self):
        """Catches a time with the card not divided by the dilation, or one over TCP that is."""
        seconds = {entry.provider: (entry.hybrid, entry.verb) for entry in model_report().entries}
        self.assertEqual(seconds, {"tcp": (11, 21), "model": (1.5, 2)})

    def test_a_report_survives_json(self):
        """Catches a field that JSON loses, and samples that are left out."""
        for written in (redis_report(), model_report()):
            self.assertEqual(report.parse(written.text()), written)
            self.assertEqual(report.table(report.parse(written.text())), report.table(written))
            samples = json.loads(written.text())["samples"]
            self.assertEqual(len(samples), 4 if written.figure == "fig10" else 8)
            self.assertTrue(all(len(sample["rounds"]) == 2 for sample in samples))

    def test_no_report_is_refused(self):
        """Catches a chart of a file that is no report, or of another figure."""
        data = json.loads(redis_report().text())
        entry = data["entries"][0]
        wrong = [
            "", "[]", "{}", json.dumps(data | {"entries": 1}), json.dumps(data | {"more": 1}),
            *(json.dumps(data | {"entries": [entry | change]}) for change in (
                {"quantity": "x"}, {"gain": None}, {"gain": "2"}, {"verb": -1}, {"hybrid": float("inf")}, {"x": 1})),
        ]
        for text in wrong:
            with self.subTest(text=text[-80:]), self.assertRaises(ValueError):
                report.parse(text)

    def test_from_shows_what_was_measured(self):
        """Catches a table or a chart of --from that differs from those of the measurement."""
        with tempfile.TemporaryDirectory() as folder:
            written, measured = pathlib.Path(folder, "a.json"), options("fig10", ["ETC"], ["tcp"])
            measured.out, measured.chart = written, pathlib.Path(folder, "measured.svg")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                figures.show(redis_report(), measured)
            command = [sys.executable, figures.HERE / "figures.py"]
            shown = subprocess.run([*command, "fig10", "--from", written], capture_output=True, text=True, check=True)
            self.assertEqual(shown.stdout, output.getvalue())
            self.assertEqual(written.with_suffix(".svg").read_text(), measured.chart.read_text())
            other = subprocess.run([*command, "fig11", "--from", written], capture_output=True, text=True, check=False)
            self.assertEqual(other.returncode, 2)
            self.assertIn("is a report of fig10, and not of fig11", other.stderr)

    def test_shapes(self):
        """Catches a gain within the noise that counts as a shape."""
        for gain, expected in ((0.9, "DOES NOT HOLD"), (1.03, "DOES NOT HOLD"), (1.04, "in range"), (5, "direction only")):
            self.assertEqual(report.shape(gain, 4.72), expected)


class Charts(unittest.TestCase):
    """A chart has a bar for each value, and is XML."""

    def test_each_value_has_a_bar(self):
        """Catches a value that the chart leaves out, and one that it draws twice."""
        # Two places: rates of two profiles, and three gains.
        self.assertEqual(len(bars(chart.draw(redis_report()))), 2 * (2 + 3))
        # Two providers with two places, and two profiles.
        self.assertEqual(len(bars(chart.draw(model_report()))), 2 * 2 * 2)

    def test_the_height_of_a_bar_is_its_value(self):
        """Catches bars whose heights are not in proportion, and bars that leave the plot."""
        drawn = bars(chart.draw(redis_report()))
        hybrid, verb = (float(attributes["height"]) for attributes, _ in drawn[:2])
        self.assertAlmostEqual(hybrid / verb, 2010 / 1010, places=2)
        self.assertTrue(all(0 < float(attributes["height"]) <= chart.PLOT for attributes, _ in drawn))
        self.assertEqual(drawn[0][1], "ETC, 50 %, TCP, hybrid: 2,010 requests/s")

    def test_bars_do_not_overlap(self):
        """Catches bars on top of each other, also with many groups."""
        for name in ("fig10", "fig11"):
            recorded = report.parse((figures.HERE / f"recorded/{name}.json").read_text())
            ends = {}
            for attributes, tip in bars(chart.draw(recorded)):
                left, width, bottom = (float(attributes[key]) for key in ("x", "width", "y"))
                base = round(bottom + float(attributes["height"]))
                self.assertGreaterEqual(left, ends.get(base, chart.LEFT), tip)
                ends[base] = left + width
                self.assertLessEqual(ends[base], chart.WIDTH - chart.RIGHT, tip)

    def test_an_absent_value_has_no_bar(self):
        """Catches a chart that fails, or draws zero, where only the gain was recorded."""
        whole = redis_report()
        less = [dataclasses.replace(entry, hybrid=None, verb=None) for entry in whole.entries]
        self.assertEqual(len(bars(chart.draw(dataclasses.replace(whole, entries=less)))), 2 * 3)
        with self.assertRaises(ValueError):
            chart.draw(dataclasses.replace(whole, entries=[]))

    def test_text_is_escaped(self):
        """Catches text of a report that ends an element."""
        source = "<b> & \"machine\" 'x'"
        changed = dataclasses.replace(redis_report(), source=[source])
        entry = dataclasses.replace(changed.entries[0], provider="a<b&c")
        picture = chart.draw(dataclasses.replace(changed, entries=[entry]))
        texts = [element.text for element in xml.fromstring(picture).iter()]
        self.assertIn(source, texts)
        self.assertTrue(any("a<b&c, hybrid" in (text or "") for text in texts))

    def test_scales_are_round(self):
        """Catches an axis that ends below the largest value, and one without steps."""
        self.assertEqual(svg.scale(48000), (10000, 50000))
        self.assertEqual(svg.scale(9), (2, 10))
        self.assertEqual(svg.scale(0), (1, 1))
        self.assertEqual(svg.scale(float("inf")), (1, 1))

    def test_a_trace_is_drawn(self):
        """Catches a picture of a trace without its request, or that is no XML."""
        events = [
            {"name": "write <a>", "cat": "request", "ph": "b", "id": 1, "ts": 0, "args": {"request": 7}},
            {"name": "write", "cat": "request", "ph": "e", "id": 1, "ts": 90},
            {"name": "WRITE", "cat": "work request", "ph": "b", "id": 2, "ts": 20,
             "args": {"work_request": 3, "requests": [7], "bytes": 4096, "memory": "copied"}},
            {"name": "WRITE", "cat": "work request", "ph": "e", "id": 2, "ts": 60},
            {"name": "thread_name", "ph": "M", "tid": 5, "args": {"name": "poller"}},
            {"name": "post & ring", "cat": "post", "ph": "X", "tid": 5, "ts": 20, "dur": 4},
        ]
        tips = [tip for _, tip in bars(trace.draw(events, None, "a & b"))]
        self.assertEqual(tips, [
            "write <a>: 90.0 us", "WRITE of 4096 bytes for 1 requests, copied: 40.0 us", "post & ring: 4.0 us"])


class Page(unittest.TestCase):
    """The tables and charts of docs/performance/paper.md have the values of recorded/."""

    def setUp(self):
        self.page = (DOCS / "paper.md").read_text()
        self.reports = {
            name: report.parse((figures.HERE / f"recorded/{name}.json").read_text()) for name in ("fig10", "fig11")}

    def has(self, text):
        """Fails, without the whole page, if the page has no such text."""
        if text not in self.page:
            self.fail(f"paper.md lacks {text!r}")

    def test_charts_are_those_of_the_values(self):
        """Catches a chart that was not drawn again after a change."""
        for name, recorded in self.reports.items():
            self.assertEqual((DOCS / f"{name}.svg").read_text(), chart.draw(recorded), name)
            self.has(f"]({name}.svg)")

    def by_place(self, name):
        """Returns the entries of each program with a share and a provider."""
        found = {}
        for entry in self.reports[name].entries:
            found.setdefault((entry.program, entry.share), {}).setdefault(entry.provider, []).append(entry)
        return found

    def test_tables_of_redis(self):
        """Catches a value or a shape of the page that is not that of the chart."""
        for (program, share), providers in self.by_place("fig10").items():
            for provider, of_place in providers.items():
                rate = f"{of_place[0].hybrid:,.0f}, {of_place[0].verb:,.0f}"
                gains = " | ".join(f"{entry.gain:.2f}" for entry in of_place)
                shapes = ", ".join(report.shape(entry.gain, report.paper_gain(entry)) for entry in of_place)
                where = "" if provider == "model" else f" {chart.PROVIDERS[provider]} |"
                self.has(f"\n| {program}, {share} % |{where} {rate} | {gains} | {shapes} |\n")

    def test_tables_of_models(self):
        """Catches a value or a shape of the page that is not that of the chart."""
        own = self.reports["fig11"].own
        for (program, share), providers in self.by_place("fig11").items():
            cells = {}
            for provider, (entry,) in providers.items():
                paper = report.paper_gain(entry)
                shape = report.shape(entry.gain, paper)
                cells[provider] = [f"{entry.hybrid:.2f}, {entry.verb:.2f}", f"{entry.gain:.2f}", shape]
            first, up_to = f"{chart.PROGRAMS[program]}, {share} %", f"up to {paper}"
            machine = " | ".join([first, *cells["tcp"], *cells["shm"], up_to])
            alone = f"{own[program]['seconds']:.2f}"
            card = " | ".join([first, alone, *cells["model"][:2], up_to, cells["model"][2]])
            self.has(f"\n| {machine} |\n")
            self.has(f"\n| {card} |\n")

    def test_the_page_has_no_other_rows(self):
        """Catches a row of the page that no recorded value stands behind."""
        names = "|".join([*figures.LOADS, *(re.escape(name) for name in chart.PROGRAMS.values())])
        rows = re.findall(rf"^\| (?:{names}), \d+ % \|", self.page, re.MULTILINE)
        # Redis over two providers and with the card;
        # models over both in one row, and with the card.
        self.assertEqual(len(rows), 4 * 3 + 8 * 2)


class Repeats(unittest.TestCase):
    """Catches a comparison of different loads, and differences that are not counted."""

    def test_each_entry_is_compared_with_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = [pathlib.Path(folder) / name for name in ("one", "two")]
            for run, values in zip(runs, ({"1": 100, "2": 200, "3": 7}, {"2": 202, "1": 104})):
                run.mkdir()
                results = [{"coordinates": [at], "median": {"ops_per_second": v}} for at, v in values.items()]
                (run / "bench-fig1-1.json").write_text(json.dumps({"results": results}))
            # An experiment that only one of them has.
            (runs[0] / "bench-fig2-1.json").write_text(json.dumps({"results": []}))
            rows = repeats.table([repeats.reports(run) for run in runs])[2:]
        self.assertEqual(rows, ["| fig1 | 2 | IOPS | 2.5 % | 4.0 % (1) | 1 of 2 |"])


if __name__ == "__main__":
    unittest.main()
