"""A report of Fig. 10 or Fig. 11: medians beside the paper's values, as a table and as JSON."""

import dataclasses
import json
import math

# The paper's largest gains over plain verbs, of all applications for latencies (Section VI-A1).
REDIS_GAINS = {"ops_per_s": ("throughput", 4.72), "mean_us": ("mean latency", 6.47), "p99_us": ("p99", 68)}
# Completion times of plain verbs over RDMAbox (Section VI-A2).
MODEL_GAINS = {"logistic": 3.69, "boosting": 1.53, "kmeans": 2.62, "textrank": 6.44}
NOISE = 0.03


@dataclasses.dataclass(frozen=True)
class Entry:
    """The medians of a quantity of a program with both profiles. The gain is that of hybrid."""

    program: str
    provider: str
    share: int
    quantity: str
    # None if only the gain was recorded.
    hybrid: float | None
    verb: float | None
    gain: float
    # Largest less smallest value over the median, of each profile. None for a single round.
    spread: tuple[float | None, float | None] = (None, None)


@dataclasses.dataclass(frozen=True)
class Report:
    """The entries of a figure. `source` says how, where and when they were measured."""

    figure: str
    source: list[str]
    profiles: dict[str, str]
    entries: list[Entry]
    # The result of each run, and of each program with all its memory local.
    samples: list[dict] = dataclasses.field(default_factory=list)
    own: dict = dataclasses.field(default_factory=dict)
    # Bytes.
    peaks: dict = dataclasses.field(default_factory=dict)
    dilation: int | None = None

    def text(self):
        """Returns the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def parse(text):
    """Returns the report of a JSON text. Raises ValueError if the text is no report."""
    try:
        data = json.loads(text)
        entries = [Entry(**entry | {"spread": tuple(entry.get("spread", (None, None)))}) for entry in data["entries"]]
        report = Report(**data | {"entries": entries})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no report of Fig. 10 or Fig. 11: {error!r}") from error
    for entry in entries:
        paper_gain(entry)
        if not is_number(entry.gain) or not all(v is None or is_number(v) for v in (entry.hybrid, entry.verb)):
            raise ValueError(f"an entry has something else than positive numbers: {entry}")
    return report


def is_number(value):
    """Returns true for a positive number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def paper_gain(entry):
    """Returns the paper's largest gain."""
    if entry.quantity == "seconds" and entry.program in MODEL_GAINS:
        return MODEL_GAINS[entry.program]
    if entry.quantity not in REDIS_GAINS:
        raise ValueError(f"the paper has no {entry.quantity} of {entry.program}")
    return REDIS_GAINS[entry.quantity][1]


def shape(gain, paper):
    """Compares a gain with the paper's largest one."""
    if gain <= 1 + NOISE:
        return "DOES NOT HOLD"
    return "in range" if gain <= paper else "direction only"


def number(value, form):
    """Returns a number as text."""
    return "-" if value is None else format(value, form)


def columns(entry):
    """Returns the last columns of an entry."""
    paper = paper_gain(entry)
    spreads = "/".join(number(value, ".0%") for value in entry.spread)
    return f"{entry.gain:.2f} | up to {paper} | {shape(entry.gain, paper)} | {spreads} |"


def model_rows(entries):
    """Yields the rows of Fig. 11."""
    yield "| model | provider | local | hybrid s | verb s | verb / hybrid | paper | shape | spread |"
    for entry in entries:
        values = f"{number(entry.hybrid, '.2f')} | {number(entry.verb, '.2f')}"
        yield f"| {entry.program} | {entry.provider} | {entry.share} % | {values} | {columns(entry)}"


def redis_rows(entries):
    """Yields the rows of Fig. 10."""
    yield "| load | provider | local | quantity | hybrid | verb | gain | paper | shape | spread |"
    for entry in entries:
        title = REDIS_GAINS[entry.quantity][0]
        values = f"{number(entry.hybrid, '.0f')} | {number(entry.verb, '.0f')}"
        yield f"| {entry.program} | {entry.provider} | {entry.share} % | {title} | {values} | {columns(entry)}"


def table(report):
    """Returns a table of Markdown."""
    heading, *rest = (redis_rows if report.figure == "fig10" else model_rows)(report.entries)
    return "\n".join([heading, "|" + "-|" * (heading.count("|") - 1), *rest])
