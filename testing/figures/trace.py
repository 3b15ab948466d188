#!/usr/bin/env python3
"""Draws the requests of one work request of a trace (rfs-fuse --trace) as an SVG picture.

Usage: testing/figures/trace.py TRACE.json --out FILE.svg [--work-request N] [--title TEXT]

Takes the work request that carries the most requests of the kernel, or number N. Draws the
requests, their wait in the merge queue and the work request as bars, and below them the spans of
the threads that worked for them.
"""

import argparse
import json
import sys

import svg
from svg import CHARACTER, GRID, MUTED

WIDTH, LEFT, RIGHT, TOP = 1080, 170, 24, 92
ROW, BAR, GAP = 19, 14, 30
COLORS = {
    "request": "#8a8f98", "queue": "#e69f00", "work request": "#0072b2", "handler": "#56b4e9",
    "layout": "#cc79a7", "call": "#d55e00", "merge": "#e69f00", "post": "#0072b2",
    "completion": "#009e73", "reply": "#8a8f98", "copy": "#009e73"}


def pairs(events, category):
    """Returns begin event and end time of each asynchronous event of a category that has an end."""
    began, whole = {}, []
    for event in events:
        if event.get("cat") != category:
            continue
        if event["ph"] == "b":
            began.setdefault(event["id"], []).append(event)
        elif event["ph"] == "e" and began.get(event["id"]):
            whole.append((began[event["id"]].pop(), event["ts"]))
    return whole


def choose(works, number):
    """Returns the work request with this number, or that with the most requests."""
    if number is not None:
        works = [work for work in works if work[0]["args"]["work_request"] == number]
    if not works:
        sys.exit("trace.py: the trace has no such work request")
    return max(works, key=lambda work: len(work[0]["args"]["requests"]))


def rows_of_requests(events, work, requests):
    """Returns a row for each request, and one for the work request."""
    rows = []
    queues = pairs(events, "queue")
    for begin, end in sorted(pairs(events, "request"), key=lambda pair: pair[0]["ts"]):
        number = begin["args"]["request"]
        if number not in requests:
            continue
        bars = [(begin["ts"], end, "request", begin["name"])]
        bars += [(queue["ts"], until, "queue", "queue")
                 for queue, until in queues if queue["args"]["request"] == number]
        rows.append((f"request {number}", bars))
    begin, end = work
    args = begin["args"]
    label = f"{begin['name']} of {args['bytes']} bytes for {len(args['requests'])} requests, {args['memory']}"
    rows.append((f"work request {args['work_request']}", [(begin["ts"], end, "work request", label)]))
    return rows


def rows_of_threads(events, first, last):
    """Returns rows of the threads that have spans between two times, a row for each level."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events
             if event["ph"] == "X" and event["ts"] < last and event["ts"] + event["dur"] > first]
    rows = []
    for thread in sorted({span["tid"] for span in spans}):
        levels, own = [], [span for span in spans if span["tid"] == thread]
        for span in sorted(own, key=lambda span: (span["ts"], -span["dur"])):
            end = span["ts"] + span["dur"]
            # A span lies one level below the spans that have not ended when it begins.
            level = 0
            while level < len(levels) and levels[level][-1][1] > span["ts"]:
                level += 1
            if level == len(levels):
                levels.append([])
            levels[level].append((span["ts"], end, span["cat"], span["name"]))
        for level, bars in enumerate(levels):
            rows.append((f"{names.get(thread, 'thread')} ({thread})" if level == 0 else "", bars))
    return rows


class Picture(svg.Picture):
    """Rows of bars over a time axis."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.scale, self.y = first, (WIDTH - LEFT - RIGHT) / (last - first), TOP

    def x(self, time):
        return LEFT + min(max((time - self.first) * self.scale, 0), WIDTH - LEFT - RIGHT)

    def rows(self, title, rows):
        self.y += GAP
        self.text(16, self.y - 6, title, 13, weight=600)
        for name, bars in rows:
            self.text(LEFT - 8, self.y + BAR - 3, name, 11, MUTED, "end")
            for begin, end, category, label in bars:
                left, right = self.x(begin), self.x(end)
                width = max(right - left, 1)
                tip = f"{label}: {end - begin:.1f} us"
                self.bar(left, self.y, width, BAR, COLORS.get(category, MUTED), tip)
                if len(label) * CHARACTER < width:
                    self.text(left + 4, self.y + BAR - 3.5, label, 10.5, "#ffffff")
            self.y += ROW

    def axis(self, last):
        """Draws lines behind the bars, at about ten round times."""
        span = last - self.first
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**5, 10**7)
                    if span / step <= 12)
        bars, self.lines = self.lines, []
        for number in range(int(span / step) + 1):
            x = self.x(self.first + number * step)
            self.line(x, TOP, x, self.y, GRID)
            self.text(x, TOP - 6, f"{number * step} us", 10.5, MUTED, "middle")
        self.lines += bars

    def legend(self, names):
        x = LEFT
        for name in names:
            self.bar(x, 50, 11, 11, COLORS[name])
            self.text(x + 16, 60, name, 11)
            x += 34 + len(name) * CHARACTER


def draw(events, number, title):
    """Returns the picture of a work request."""
    work = choose(pairs(events, "work request"), number)
    requests = set(work[0]["args"]["requests"])
    above = rows_of_requests(events, work, requests)
    bars = [bar for _, bars in above for bar in bars]
    first, last = min(bar[0] for bar in bars), max(bar[1] for bar in bars)
    first, last = first - 0.01 * (last - first), last + 0.01 * (last - first)
    below = rows_of_threads(events, first, last)
    picture = Picture(first, last)
    picture.text(16, 28, title, 17, weight=600)
    picture.rows("Requests of the kernel", above)
    picture.rows("Threads", below)
    picture.axis(last)
    drawn = {bar[2] for _, bars in above + below for bar in bars}
    picture.legend([name for name in COLORS if name in drawn])
    return picture.svg(WIDTH, picture.y + 16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--out", required=True)
    parser.add_argument("--work-request", type=int)
    parser.add_argument("--title", default="One work request of a mount over TCP")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        events = json.load(file)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(draw(events, options.work_request, options.title))


if __name__ == "__main__":
    main()
