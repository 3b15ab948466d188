"""SVG elements of the pictures in this folder, and round scales."""

import html
import math

TEXT, MUTED, GRID = "#2b2f36", "#6b7078", "#e4e6ea"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
# Pixels of a character of 12 pixels, on average, and the width of wide ones over their size.
CHARACTER, WIDE = 6.6, 0.58


class Picture:
    """The lines of an SVG file."""

    def __init__(self):
        self.lines = []

    def text(self, x, y, text, size=12, fill=TEXT, anchor="start", weight=400, turned=False):
        """Adds text. `anchor` selects the part of the text at x, y. Turned text runs upwards."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}" '
            f'font-weight="{weight}"{turn}>{html.escape(text)}</text>')

    def bar(self, x, y, width, height, fill, tip=None):
        """Adds a filled rectangle, with a tooltip."""
        end = "/>" if tip is None else f"><title>{html.escape(tip)}</title></rect>"
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" fill="{fill}"{end}')

    def line(self, x1, y1, x2, y2, stroke=GRID):
        """Adds a thin straight line."""
        self.lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>')

    def svg(self, width, height):
        """Returns the file: a white picture of this size."""
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'height="{height:.0f}" font-family="{FONT}">',
            f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>', *self.lines, "</svg>", ""])


def fit(text, size, width):
    """Returns the font size, at most `size`, at which a text takes at most `width` pixels."""
    return round(min(size, width / (WIDE * max(len(text), 1))), 1)


def scale(largest):
    """Returns the step of grid lines (1, 2 or 5 times a power of ten) and the top of an axis."""
    if not 0 < largest < math.inf:
        return 1.0, 1.0
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    return step, math.ceil(largest / step) * step
