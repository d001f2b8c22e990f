"""Plots of one curve, or of several over the same time, as SVG, with only the standard library.

Owns: axes, ticks, the drawing. Must never enter: which data is drawn, files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 74, 56
#: Height of one of several panels, and the part of it that separates two panels.
PANEL, PANEL_GAP = 150, 50
INK, MUTED, GRID, LINE, FITTED = "#1f2430", "#667085", "#e4e7ec", "#2563eb", "#d97706"
_STYLE = f"""<style>
text {{ font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: {MUTED}; }}
.title {{ font-size: 15px; font-weight: 600; fill: {INK}; }} .value {{ fill: {INK}; }}
</style>"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """A scale from ``low`` to ``high``, logarithmic or linear, onto pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (self._scaled(value) - self._scaled(self.low)) / (
            self._scaled(self.high) - self._scaled(self.low)
        )
        return self.start + share * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self) -> list[float]:
        """Return round values within the axis."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1) if self.low <= 10.0**power <= self.high]
        step = _round_step((self.high - self.low) / 5)
        return [
            step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]


def axis_of(values: Sequence[float], start: float, end: float, *, log: bool) -> Axis:
    """Return an axis that contains all ``values``: whole decades, or from 0 with space above."""
    if log:
        low, high = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
        return Axis(low, high if high > low else low * 10, start, end, True)
    return Axis(0.0, max(values) * 1.25 or 1.0, start, end, False)


def _round_step(rough: float) -> float:
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough)


def short(value: float) -> str:
    """Return a figure in its shortest readable form."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Plot:
    """The data of a plot: the measured ``points``, joined, and the ``fitted`` curve, dashed.

    ``text`` and ``note`` are a line each below the title, ``x`` and ``y`` name the axes with their units.
    """

    title: str
    text: str
    note: str
    x: str
    y: str
    points: Points
    fitted: Callable[[float], float]


def drawn(plot: Plot) -> str:
    """Return the plot as SVG. Sizes are on a logarithmic axis; so are costs that span more than a decade."""
    costs = [cost for _, cost in plot.points]
    across = axis_of([size for size, _ in plot.points], LEFT, WIDTH - RIGHT, log=True)
    up = axis_of(costs, HEIGHT - BOTTOM, TOP, log=max(costs) > 10 * min(costs))
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_quoted(plot.title)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        _STYLE,
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        _text(LEFT, 24, plot.title, "title"),
        _text(LEFT, 42, plot.text),
        _text(LEFT, 58, plot.note),
        *_grid(across, up),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, plot.x, anchor="middle"),
        _upwards(18, (TOP + HEIGHT - BOTTOM) / 2, plot.y),
        _path(_smooth(across, plot.fitted), across, up, FITTED, ' stroke-dasharray="5 4"'),
        _path(plot.points, across, up, LINE, ""),
        *(part for size, cost in plot.points for part in _mark(across.at(size), up.at(cost), short(cost))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class Panel:
    """One of several plots over the same time: a ``name``, its ``unit`` after a blank, a verdict."""

    name: str
    unit: str
    text: str
    points: Points


def draw_panels(title: str, text: str, x: str, panels: Sequence[Panel]) -> str:
    """Return panels one below the other, each from 0 on its own axis, all over the same linear ``x``."""
    height = TOP + len(panels) * PANEL + BOTTOM - PANEL_GAP
    across = Axis(0.0, max(at for panel in panels for at, _ in panel.points), LEFT, WIDTH - RIGHT, False)
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_quoted(title)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        _STYLE,
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        _text(LEFT, 24, title, "title"),
        _text(LEFT, 42, text),
        _text((LEFT + WIDTH - RIGHT) / 2, height - 14, x, anchor="middle"),
    ]
    for number, panel in enumerate(panels):
        top = TOP + number * PANEL
        values = [value for _, value in panel.points]
        up = axis_of(values, top + PANEL - PANEL_GAP, top, log=False)
        parts += _grid(across, up)
        parts.append(_path(panel.points, across, up, LINE, ""))
        parts.append(
            _text(LEFT, top - 6, f"{panel.name}{panel.unit and f' ({panel.unit.strip()})'}", "value")
        )
        parts.append(_text(WIDTH - RIGHT, top - 6, panel.text, anchor="end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(across: Axis, up: Axis) -> list[str]:
    parts = []
    for value in across.ticks():
        at = across.at(value)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{up.end}" y2="{up.start}" stroke="{GRID}"/>')
        parts.append(_text(at, up.start + 18, short(value), anchor="middle"))
    for value in up.ticks():
        at = up.at(value)
        parts.append(
            f'<line x1="{across.start}" x2="{across.end}" y1="{at:.1f}" y2="{at:.1f}" stroke="{GRID}"/>'
        )
        parts.append(_text(across.start - 8, at + 4, short(value), anchor="end"))
    return parts


def _smooth(across: Axis, fitted: Callable[[float], float]) -> Points:
    low, high = math.log10(across.low), math.log10(across.high)
    sizes = [10 ** (low + (high - low) * step / 60) for step in range(61)]
    return [(size, fitted(size)) for size in sizes]


def _path(points: Points, across: Axis, up: Axis, colour: str, more: str) -> str:
    seen = [(size, cost) for size, cost in points if up.low <= cost <= up.high and cost > 0]
    corners = " ".join(f"{across.at(size):.1f},{up.at(cost):.1f}" for size, cost in seen)
    return f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"{more}/>'


def _mark(x: float, y: float, label: str) -> list[str]:
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{LINE}" stroke="#ffffff" stroke-width="1.5"/>',
        _text(min(x, WIDTH - RIGHT - 12), y - 10, label, "value", anchor="middle"),
    ]


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _upwards(x: float, y: float, text: str) -> str:
    turn = f'transform="rotate(-90 {x:.1f} {y:.1f})"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {turn}>{escape(text)}</text>'


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})
