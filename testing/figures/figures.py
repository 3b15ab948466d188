"""Fig. 10 and Fig. 11 of the RDMAbox paper: programs whose memory is paged by `rfs-paging run`.

Usage: figures.py fig10|fig11 --bin DIRECTORY [options], or figures.py fig10|fig11 --from REPORT to
draw the chart of a report that --out has written; --help lists the options. The paper limits
programs to 50 % and 25 % of their memory, and compares RDMAbox with plain verbs. Here both are
rfs-paging, with a profile of switches each. Fig. 10 has Redis under a load like YCSB's; Fig. 11 has
the training of models. Rounds are interleaved, and the tables have medians.

The provider "model" is TCP with a modelled card, whose time is longer than the machine's by the
dilation. The program runs by the machine's clock, so a time with the card counts as the program's
own time, all local, and the rest divided by the dilation:
seconds = own + (measured - own) / dilation.
"""

import argparse
import contextlib
import dataclasses
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import chart
from report import MODEL_GAINS, REDIS_GAINS, Entry, Report, parse, table

HERE = pathlib.Path(__file__).parent
MIB = 1 << 20

# Section VI-A compares with plain verbs, and VI-B calls them single I/O without admission control;
# Section V-A has hybrid batching and a window of about 7 MB, and V-B one queue pair per peer for
# single I/O. Polling of plain verbs is not stated: busy polling is the fastest for one peer
# (Fig. 9).
PROFILES = {
    "hybrid": "batch=hybrid,queue-pairs=4,polling=adaptive,window=7m",
    "verb": "batch=single,queue-pairs=1,polling=busy,window=1g",
}
# Shares of writes (Section VI-A1).
LOADS = {"ETC": 0.05, "SYS": 0.25}
# Parts of the figures that no machine runs with this program.
NOT_HERE = {
    "fig10": "MongoDB and VoltDB are not measured: Debian has neither. Accelio is not measured: it is no switch "
    "of the pager",
    "fig11": "Accelio is not measured: it is no switch of the pager. The data are random, and not those of the paper",
}
# Programs most of whose memory is in small allocations.
SMALL = {*LOADS, "textrank"}
# Seconds in which a lender or a paged server ends after SIGTERM.
END_S = 60


class Refusal(Exception):
    """A program or provider that cannot run here, with the reason."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its local memory, and how its pages move."""

    program: str
    provider: str
    share: int
    profile: str


class Stopped(Exception):
    """This program got SIGTERM."""


def stop_on_sigterm():
    """Makes an exception of SIGTERM, so that no lender and no Redis is left behind."""

    def stop(*_):
        # A second signal does not disturb the code that ends the others.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


def end(process):
    """Ends a program, or kills it if it needs too long. Returns the rest of a piped stderr."""
    process.terminate()
    try:
        return process.communicate(timeout=END_S)[1]
    except subprocess.TimeoutExpired:
        say(f"{process.args[0]} did not end within {END_S} s, and was killed")
        process.kill()
        return process.communicate()[1]
    except BaseException:
        process.kill()
        raise


@contextlib.contextmanager
def lender(options, provider, scratch):
    """Runs a lender. Yields its address."""
    listen = f"unix:{scratch}/lend.sock" if provider == "shm" else "tcp:127.0.0.1:0"
    command = [options.paging, "lend", "--memory", options.memory, "--listen", listen, "--allow-without-keys"]
    environment = os.environ | {"RUST_LOG": "warn"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = process.stdout.readline().strip()
        if not process.stdout.readline().startswith("ready:"):
            raise Refusal(f"no lender over {provider}: {' '.join(command)} ended")
        yield address
    finally:
        end(process)


def paged(options, case, address, local, program):
    """Returns the command of a program whose memory is paged."""
    switches = PROFILES[case.profile] + ("" if case.provider == "shm" else ",provider=tcp")
    # All local, a program gives the time of its own.
    if case.provider == "model" and case.share < 100:
        switches += f",card=cx3@{options.dilation}"
    command = [options.paging, "run", "--local", str(local), "--server", address, "--switches", switches, "--stats"]
    small = ["--small", "16g"] if case.program in SMALL else []
    return [*command, *small, "--", *program]


def peak_resident(stderr):
    """Returns the largest number of bytes in local memory, from the counters of a run."""
    found = re.search(r"max_resident: (\d+)", stderr)
    if not found:
        raise Refusal(f"the program did not page:\n{stderr[-2000:]}")
    return int(found[1]) * 4096


def run_model(options, case, address, local):
    """Trains a model once. Returns its result, and the bytes that it had in local memory."""
    scale = str(options.scale)
    program = ["textrank.py", scale] if case.program == "textrank" else ["learn.py", case.program, scale]
    command = paged(options, case, address, local, [sys.executable, str(HERE / program[0]), *program[1:]])
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    environment = os.environ | one_thread | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=options.timeout, check=False)
    if done.returncode:
        raise Refusal(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout), peak_resident(done.stderr)


def run_redis(options, case, address, local):
    """Runs a load on Redis once. Returns its result, and the bytes of Redis in local memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/redis.sock"
        redis = ["redis-server", "--port", "0", "--save", "", "--unixsocket", path, "--dir", folder, "--loglevel", "warning"]
        server = subprocess.Popen(
            paged(options, case, address, local, redis), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            for _ in range(300):
                if os.path.exists(path) or server.poll() is not None:
                    break
                time.sleep(0.1)
            records = str(int(options.records * options.scale))
            load = [sys.executable, str(HERE / "ycsb.py"), path, records, records, str(LOADS[case.program])]
            done = subprocess.run(load, capture_output=True, text=True, timeout=options.timeout, check=False)
        finally:
            stderr = end(server)
    if done.returncode:
        raise Refusal(f"the load {case.program} failed:\n{done.stderr[-1000:]}\n{stderr[-2000:]}")
    return json.loads(done.stdout), peak_resident(stderr)


def by_model_time(value, own, dilation):
    """Returns a time with the modelled card: the program's own, and the rest in the card's time."""
    return own + max(value - own, 0) / dilation


def spread(values):
    """Returns the difference of the largest and the smallest value, over the median."""
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else None


def with_card(options, provider, value, own):
    """Returns a time of a run: with the modelled card as `by_model_time`, else as measured."""
    return by_model_time(value, own, options.dilation) if provider == "model" else value


def quantity_of(options, provider, key, results, own):
    """Returns a quantity of each run."""
    if key == "ops_per_s":
        # The eight connections share Redis, so its time for a query is that between two replies.
        return [1 / with_card(options, provider, 1 / result[key], 1 / own[key]) for result in results]
    return [with_card(options, provider, result[key], own[key]) for result in results]


def entries(results, own, options):
    """Yields the medians of each place with results of both profiles."""
    for program, provider, share in places(options):
        runs = {profile: results.get(Case(program, provider, share, profile), []) for profile in PROFILES}
        if not all(runs.values()):
            continue
        for key in REDIS_GAINS if options.figure == "fig10" else ["seconds"]:
            values = [quantity_of(options, provider, key, all_of, own[program]) for all_of in runs.values()]
            hybrid, verb = map(statistics.median, values)
            gain = hybrid / verb if key == "ops_per_s" else verb / hybrid
            yield Entry(program, provider, share, key, hybrid, verb, gain, tuple(map(spread, values)))


def places(options):
    """Yields each program with each provider and share of local memory."""
    for program in options.programs:
        for provider in options.providers:
            for share in options.local:
                yield program, provider, share


def check(options):
    """Refuses options that cannot run here."""
    if options.figure == "fig10" and not shutil.which("redis-server"):
        raise Refusal("Fig. 10 needs redis-server: install Debian's package redis-server")
    if options.figure == "fig11" and set(options.programs) - {"textrank"}:
        try:
            import sklearn  # noqa: F401
        except ImportError:
            raise Refusal("Fig. 11 needs scikit-learn: pip install scikit-learn, or --programs textrank") from None
    if "rdma" in options.providers:
        devices = "there is" if glob.glob("/sys/class/infiniband/*") else "there is no RDMA device here, nor"
        raise Refusal(f"{devices} a lender for RDMA in this program: start one by hand, and use rfs-paging run")
    for program in (options.paging, options.paging.with_name("librfs_paging_preload.so")):
        if not program.exists():
            raise Refusal(f"{program} is missing: cargo build --release -p rfs-paging -p rfs-paging-preload")


def measure(options, scratch):
    """Runs everything. Returns results of cases, and of programs all local, and peak memory."""
    run = run_redis if options.figure == "fig10" else run_model
    with contextlib.ExitStack() as stack:
        servers = {p: stack.enter_context(lender(options, p, scratch)) for p in options.providers}
        peaks, own, results = {}, {}, {}
        for program in options.programs:
            case = Case(program, options.providers[0], 100, "hybrid")
            own[program], peaks[program] = run(options, case, servers[case.provider], 1 << 40)
            say(f"{program}: {peaks[program] / MIB:.0f} MiB, all local: {own[program]}")
        cases = [Case(*place, profile) for place in places(options) for profile in PROFILES]
        for number in range(options.rounds):
            # Every second round has the other order.
            for case in cases if number % 2 == 0 else cases[::-1]:
                local = max(peaks[case.program] * case.share // 100, MIB)
                result, _ = run(options, case, servers[case.provider], local)
                say(f"round {number + 1}: {case.program} {case.provider} {case.share} % {case.profile}: {result}")
                results.setdefault(case, []).append(result)
    return results, own, peaks


def say(line):
    """Prints a line of progress."""
    print(line, file=sys.stderr, flush=True)


def numbers(text):
    """Parses a list of shares."""
    shares = [int(part) for part in text.split(",")]
    if not all(0 < share < 100 for share in shares):
        raise argparse.ArgumentTypeError("shares are 1 to 99 percent")
    return shares


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["fig10", "fig11"])
    parser.add_argument("--bin", type=pathlib.Path, help="folder of rfs-paging and its preload library")
    parser.add_argument(
        "--providers", type=lambda text: text.split(","), default=["tcp", "shm"], help="tcp, shm, model [tcp,shm]"
    )
    parser.add_argument("--dilation", type=int, default=20, help="dilation of the modelled card's time [20]")
    parser.add_argument("--local", type=numbers, default=[50, 25], help="local memory in percent of the peak [50,25]")
    parser.add_argument("--programs", type=lambda text: text.split(","), help="some of the programs [all]")
    parser.add_argument("--rounds", type=int, help="interleaved rounds [3, with --quick 1]")
    parser.add_argument("--scale", type=float, help="size of the data [1, with --quick 0.05]")
    parser.add_argument("--records", type=int, default=300_000, help="records and queries of Redis [300000]")
    parser.add_argument("--memory", default="4g", help="memory of the lender [4g]")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for one run [1800]")
    parser.add_argument("--quick", action="store_true", help="one small round: does it work here?")
    parser.add_argument("--out", type=pathlib.Path, help="file for all results as JSON; the chart is beside it")
    parser.add_argument("--from", type=pathlib.Path, dest="report", help="measure nothing: show this report of --out")
    parser.add_argument("--chart", type=pathlib.Path, help="file for the chart, an SVG [that of the report, as .svg]")
    options = parser.parse_args()
    if not options.bin and not options.report:
        parser.error("--bin FOLDER or --from REPORT is missing")
    json_file = options.report or options.out
    options.chart = options.chart or (json_file and json_file.with_suffix(".svg"))
    if json_file and options.chart == json_file:
        parser.error(f"{json_file} is the report: choose another file for the chart")
    known = list(LOADS if options.figure == "fig10" else MODEL_GAINS)
    options.programs = options.programs or known
    if set(options.programs) - set(known):
        parser.error(f"programs of {options.figure} are {', '.join(known)}")
    if set(options.providers) - {"tcp", "shm", "rdma", "model"}:
        parser.error("providers are tcp, shm and model")
    if options.dilation < 1:
        parser.error("a dilation is a number from 1 on")
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.scale = options.scale or (0.05 if options.quick else 1.0)
    options.paging = options.bin and options.bin / "rfs-paging"
    return options


def machine():
    """Returns processors, memory and system of this machine, without its name."""
    try:
        found = re.search(r"model name\s*: (.+)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    processor = found[1] if found else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{processor}, {os.cpu_count()} cores, {memory:.1f} GiB, {platform.system()} {platform.release()}"


def report_of(options, results, own, peaks, loads):
    """Returns the report of a measurement. `loads` are the load averages at its start and end."""
    rounds = "1 round" if options.rounds == 1 else f"medians of {options.rounds} interleaved rounds"
    load = "load average {:.1f} at the start and {:.1f} at the end".format(*loads)
    records = f", {int(options.records * options.scale)} records" if options.figure == "fig10" else ""
    peak = ", ".join(f"{name} {peak / MIB:.0f} MiB" for name, peak in peaks.items())
    source = [
        f"{rounds}, scale {options.scale}{records}, {load}, {time.strftime('%Y-%m-%d')}",
        machine(),
        f"peak memory: {peak}",
    ]
    samples = [dataclasses.asdict(case) | {"rounds": rounds} for case, rounds in results.items()]
    medians = list(entries(results, own, options))
    return Report(options.figure, source, PROFILES, medians, samples, own, peaks, options.dilation)


def read(options):
    """Returns the report of a file."""
    try:
        report = parse(options.report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{options.report}: {error}") from error
    if report.figure != options.figure:
        raise Refusal(f"{options.report} is a report of {report.figure}, and not of {options.figure}")
    return report


def make_report(options):
    """Measures a figure, or reads its report. Returns the report."""
    if options.report:
        return read(options)
    check(options)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        results, own, peaks = measure(options, scratch)
    return report_of(options, results, own, peaks, (before, os.getloadavg()[0]))


def show(report, options):
    """Writes the files of a report, and prints it."""
    if options.out:
        options.out.write_text(report.text(), encoding="utf-8")
    if options.chart:
        try:
            picture = chart.draw(report)
        except ValueError as error:
            raise Refusal(f"no chart: {error}") from error
        options.chart.write_text(picture, encoding="utf-8")
    print("\n".join([f"{report.figure}: {report.source[0]}", *report.source[1:], f"{NOT_HERE[report.figure]}.\n"]))
    print(table(report))


def main():
    """Shows a figure. Ends with status 2 if something cannot run here."""
    options = arguments()
    stop_on_sigterm()
    try:
        show(make_report(options), options)
    except Refusal as refusal:
        say(f"figures.py: {refusal}")
        return 2
    except Stopped:
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    sys.exit(main())
