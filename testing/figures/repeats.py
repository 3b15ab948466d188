"""Shows by how much runs of an experiment differ.

Usage: python3 testing/figures/repeats.py RUN RUN... Each RUN is a directory with results of
`rdmabox-bench experiment --out`. Each run reports the median of its rounds. The difference of an
entry is that of its largest and its smallest report, in percent of the smallest.
"""

import json
import pathlib
import statistics
import sys

# Names in the results, and in the table.
METRICS = {"ops_per_second": "IOPS", "p99_us": "p99"}
# Percent.
LIMIT = 3


def reports(run):
    """Returns the newest results of each experiment: metric by entry."""
    newest = {}
    for path in sorted(pathlib.Path(run).glob("bench-*.json")):
        newest[path.name.split("-")[1]] = json.loads(path.read_text())
    return {
        name: {tuple(entry["coordinates"]): entry["median"] for entry in result["results"]}
        for name, result in newest.items()
    }


def differences(runs, metric):
    """Returns the difference of each entry that all runs have, in percent."""
    entries = set.intersection(*(set(run) for run in runs))
    found = {}
    for entry in entries:
        values = [run[entry].get(metric) for run in runs]
        if all(values):
            found[entry] = (max(values) / min(values) - 1) * 100
    return found


def table(runs):
    """Returns the lines of a table of all experiments that at least two runs have."""
    lines = [
        f"| experiment | runs | figure | median of the entries | largest | entries above {LIMIT} % |",
        "|-|-|-|-|-|-|",
    ]
    for name in sorted({name for run in runs for name in run}):
        having = [run[name] for run in runs if name in run]
        if len(having) < 2:
            continue
        for metric, title in METRICS.items():
            found = differences(having, metric)
            if not found:
                continue
            worst = max(found, key=found.get)
            above = sum(value > LIMIT for value in found.values())
            lines.append(
                f"| {name} | {len(having)} | {title} | {statistics.median(found.values()):.1f} % "
                f"| {found[worst]:.1f} % ({', '.join(worst)}) | {above} of {len(found)} |"
            )
    return lines


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print("\n".join(table([reports(run) for run in sys.argv[1:]])))
