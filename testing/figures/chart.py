"""Charts of Fig. 10 and Fig. 11: grouped bars, the profile hybrid beside the profile verb."""

import dataclasses

from report import REDIS_GAINS
from svg import GRID, MUTED, Picture, fit, scale

WIDTH, LEFT, RIGHT = 1080, 84, 24
# Height of the bars' area, and distances below it and between panels.
PLOT, LABELS, GAP = 190, 40, 44
COLORS = {"hybrid": "#0072b2", "verb": "#e69f00", "throughput": "#56b4e9", "mean latency": "#009e73", "p99": "#cc79a7"}
TITLES = {
    "fig10": "Fig. 10: Redis with paged memory, hybrid batching beside plain verbs",
    "fig11": "Fig. 11: training of models with paged memory, hybrid batching beside plain verbs",
}
PROVIDERS = {"tcp": "TCP", "shm": "shared memory", "model": "modelled card"}
PROGRAMS = {
    "logistic": "logistic regression", "boosting": "gradient boosting", "kmeans": "k-means",
    "textrank": "TextRank"}
# Largest share of a group's width that a bar takes, and the largest width of a bar.
BAR, WIDEST = 0.4, 44


@dataclasses.dataclass(frozen=True)
class Panel:
    """Groups of bars over one axis. A group has two lines of text, and a value for each series."""

    title: str
    unit: str
    groups: list[tuple[str, str, dict[str, float]]]
    # A line that marks a value, such as a gain of 1.
    mark: float | None = None


def profiles(entry):
    """Returns the values of both profiles."""
    return {"hybrid": entry.hybrid, "verb": entry.verb}


def redis_panels(entries):
    """Returns the panels of Fig. 10: the rate, and the gains of all quantities."""
    rates, gains = [], {}
    for entry in entries:
        place = (f"{entry.program}, {entry.share} %", PROVIDERS.get(entry.provider, entry.provider))
        gains.setdefault(place, {})[REDIS_GAINS[entry.quantity][0]] = entry.gain
        if entry.quantity == "ops_per_s" and entry.hybrid and entry.verb:
            rates.append((*place, profiles(entry)))
    gain = "Gain of hybrid over verb: throughput of hybrid over that of verb, latencies of verb over those of hybrid"
    return [
        Panel("Requests per second by load and local memory, more is better", "requests/s", rates),
        Panel(gain, "gain", [(*place, values) for place, values in gains.items()], 1.0)]


def model_panels(entries):
    """Returns the panels of Fig. 11: one for each provider."""
    panels = {}
    for entry in entries:
        if entry.hybrid and entry.verb:
            title = f"{PROVIDERS.get(entry.provider, entry.provider)}: time of the training, less is better"
            place = (PROGRAMS.get(entry.program, entry.program), f"{entry.share} % local, gain {entry.gain:.2f}")
            panels.setdefault(title, []).append((*place, profiles(entry)))
    return [Panel(title, "seconds", groups) for title, groups in panels.items()]


def value(number):
    """Returns a value as text."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2f}"


def tick(number):
    """Returns a number of an axis as text."""
    return f"{number:,.0f}" if number >= 100 else f"{number:g}"


def draw_axis(picture, panel, top, step, limit):
    """Draws the lines of a panel, their numbers, the unit and the title."""
    base = top + PLOT
    picture.text(LEFT, top - 18, panel.title, 14, weight=600)
    picture.text(22, top + PLOT / 2, panel.unit, 11, MUTED, "middle", turned=True)
    for count in range(round(limit / step) + 1):
        y = base - count * step / limit * PLOT
        picture.line(LEFT, y, WIDTH - RIGHT, y, GRID if count else MUTED)
        # Products of a step such as 0.2 are not exact.
        picture.text(LEFT - 8, y + 4, tick(round(count * step, 10)), 11, MUTED, "end")
    if panel.mark is not None:
        y = base - panel.mark / limit * PLOT
        picture.line(LEFT, y, WIDTH - RIGHT, y, MUTED)


def draw_panel(picture, panel, top):
    """Draws a panel below `top`."""
    values = [number for *_, group in panel.groups for number in group.values()]
    step, limit = scale(max(values))
    draw_axis(picture, panel, top, step, limit)
    base, room = top + PLOT, (WIDTH - LEFT - RIGHT) / len(panel.groups)
    for place, (first, second, group) in enumerate(panel.groups):
        middle = LEFT + (place + 0.5) * room
        width = min(BAR * room, 0.84 * room / len(group), WIDEST)
        x = middle - width * len(group) / 2
        for series, number in group.items():
            height = number / limit * PLOT
            tip = f"{first}, {second}, {series}: {value(number)} {panel.unit}"
            picture.bar(x + 1, base - height, width - 2, height, COLORS[series], tip)
            size = fit(value(number), 11, width - 2)
            picture.text(x + width / 2, base - height - 3, value(number), size, anchor="middle")
            x += width
        picture.text(middle, base + 16, first, fit(first, 11, room - 6), anchor="middle")
        picture.text(middle, base + 30, second, fit(second, 10.5, room - 6), MUTED, "middle")


def draw_legend(picture, report, panels, y):
    """Draws the colour of each series, and switches of profiles. Returns the next free line."""
    for series in dict.fromkeys(series for panel in panels for *_, group in panel.groups for series in group):
        switches = report.profiles.get(series, "").replace(",", ", ")
        picture.bar(LEFT, y - 10, 12, 12, COLORS[series])
        gain = f"gain of {series}" if series not in report.profiles else series
        picture.text(LEFT + 18, y, f"{gain}: {switches}" if switches else gain)
        y += 18
    return y


def draw(report):
    """Returns the chart of a report. Raises ValueError if the report has nothing to draw."""
    panels = (redis_panels if report.figure == "fig10" else model_panels)(report.entries)
    panels = [panel for panel in panels if panel.groups]
    if not panels:
        raise ValueError("the report has no values to draw")
    picture = Picture()
    picture.text(LEFT, 30, TITLES[report.figure], 19, weight=600)
    y = 50
    for line in report.source:
        picture.text(LEFT, y, line, fill=MUTED)
        y += 17
    y = draw_legend(picture, report, panels, y + 10) + GAP - 8
    for panel in panels:
        draw_panel(picture, panel, y)
        y += PLOT + LABELS + GAP
    return picture.svg(WIDTH, y - GAP + 12)
