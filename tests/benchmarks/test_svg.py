"""A plot is well-formed, and its points match the axes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.svg import Axis, Panel, Plot, draw_panels, drawn, short

SVG = "{http://www.w3.org/2000/svg}"


def plot(*points: tuple[float, float], title: str = "A request") -> ElementTree.Element:
    return ElementTree.fromstring(drawn(Plot(title, "how", "note", "ids", "us", points, lambda size: 5.0)))


def test_plot_is_xml_with_a_mark_within_it_and_a_label_for_each_point() -> None:
    root = plot((10, 90.0), (1_000, 120.0), (128_000, 1_285.0))
    assert root.tag == f"{SVG}svg"
    marks = [
        (float(mark.get("cx", "-1")), float(mark.get("cy", "-1"))) for mark in root.findall(f"{SVG}circle")
    ]
    assert len(marks) == 3 and all(0 <= x <= 640 and 0 <= y <= 400 for x, y in marks)
    labels = [text.text for text in root.findall(f"{SVG}text")]
    assert {"A request", "how", "note", "ids", "us", "90", "120", "1.28k"} <= set(labels)


def test_words_with_markup_in_them_are_shown_as_they_are() -> None:
    root = plot((1, 1.0), (10, 2.0), title='a < b & "c"')
    assert root.get("aria-label") == 'a < b & "c"'
    assert 'a < b & "c"' in [text.text for text in root.findall(f"{SVG}text")]


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(1, 1000, 0, 90, True), [1, 10, 100, 1000]),
        (Axis(0, 100, 0, 90, False), [0, 20, 40, 60, 80, 100]),
        (Axis(0, 0.5, 0, 90, False), [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_ticks_are_round(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(("value", "shown"), [(0.5, "0.5"), (128_000, "128k"), (2e6, "2M"), (93.24, "93.2")])
def test_figures_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


def test_panels_lie_below_one_another_each_with_its_own_curve() -> None:
    """All panels have the same time axis, whatever the sizes of their values."""
    report = [
        Panel("memory", " MiB", "flat", [(1, 60.0), (600, 61.0)]),
        Panel("files", "", "flat", [(1, 2e3), (600, 2e3)]),
    ]
    root = ElementTree.fromstring(draw_panels("A soak", "how", "seconds", report))
    corners = [line.get("points", "").split() for line in root.findall(f"{SVG}polyline")]
    places = [[tuple(map(float, corner.split(","))) for corner in line] for line in corners]
    assert [x for x, _ in places[0]] == [x for x, _ in places[1]]
    assert max(y for _, y in places[0]) < min(y for _, y in places[1])
    assert {"memory (MiB)", "files", "flat"} <= {text.text for text in root.findall(f"{SVG}text")}
