"""Figures show the numbers of their table, each with its unit, in the same colours everywhere."""

import pandas as pd
import pytest

from memcore import catalog, estimate, figures, summary
from memcore.ledger import TERMS
from memcore.links import METHODS
from memcore.scenario import Scenario
from memcore.summary import GROUPS
from memcore.units import BYTE_UNITS, GiB, format_bytes

DEVICE = catalog.devices()["NVIDIA GeForce RTX 4090"]


@pytest.fixture(scope="module")
def breakdowns():
    return {method: estimate(r) for method, r in summary.by_method(Scenario(model="meta-llama/Llama-3.1-8B")).items()}


@pytest.fixture(params=["GiB", "GB"])
def unit(request):
    return request.param


@pytest.fixture
def bars(breakdowns, unit):
    return figures.where_it_goes(summary.stacks(breakdowns), DEVICE.usable_bytes, "lora", unit)


@pytest.fixture
def steps(breakdowns, unit):
    return figures.over_one_step(summary.over_one_step(breakdowns["qlora"]), summary.room_for_tensors(breakdowns["qlora"], DEVICE), unit)


def stacked(figure):
    return [trace for trace in figure.data if trace.type == "bar"]


def test_each_bar_ends_at_what_its_method_needs(bars, breakdowns, unit):
    for i, (method, b) in enumerate(breakdowns.items()):
        assert stacked(bars)[0].y[i] == METHODS[method]
        assert sum(trace.x[i] for trace in stacked(bars)) == pytest.approx(float(b.device) / BYTE_UNITS[unit])


def test_the_chosen_method_is_in_full_strength_and_the_others_are_quieter(bars):
    for trace in stacked(bars):
        full, lora, qlora = trace.marker.opacity
        assert lora == 1 and full == qlora < 1


def test_the_line_is_at_what_the_device_can_give(bars, unit):
    (line,) = bars.layout.shapes
    assert line.x0 == line.x1 == DEVICE.usable_bytes / BYTE_UNITS[unit]
    assert format_bytes(DEVICE.usable_bytes, unit) in bars.layout.annotations[0].text


def test_every_bar_is_labelled_with_its_total(bars, breakdowns, unit):
    for b, label in zip(breakdowns.values(), bars.layout.yaxis.ticktext, strict=True):
        assert format_bytes(b.device, unit) in label


def test_the_largest_phase_is_marked(steps, breakdowns, unit):
    (marked,) = [label for label in steps.layout.yaxis.ticktext if "the peak" in label]
    assert format_bytes(breakdowns["qlora"].allocated, unit) in marked
    assert [trace.marker.opacity.count(1.0) for trace in stacked(steps)] == [1] * len(figures.COLORS)


@pytest.mark.parametrize("which", ["bars", "steps"])
def test_axes_say_their_unit_and_stay_where_they_are(which, unit, request):
    layout = request.getfixturevalue(which).layout
    assert f"({unit})" in layout.xaxis.title.text and layout.xaxis.fixedrange and layout.yaxis.fixedrange


@pytest.mark.parametrize("which", ["bars", "steps"])
def test_a_group_has_the_same_colour_in_every_figure(which, unit, request):
    assert {trace.meta: trace.marker.color for trace in stacked(request.getfixturevalue(which))} == figures.COLORS


def test_every_group_of_the_ledger_has_a_colour_and_there_are_at_most_seven():
    assert {term.group for term in TERMS} <= set(figures.COLORS) == set(summary.GROUPS)
    assert len(set(figures.COLORS.values())) == len(figures.COLORS) <= 7


def test_the_legend_names_every_colour():
    html = figures.legend()
    assert all(color in html for color in figures.COLORS.values()) and all(name in html for name in summary.GROUPS.values())


@pytest.mark.parametrize(("line", "side"), [(15 * GiB, "end"), (25 * GiB, "middle"), (16 * GiB, "start"), (5 * GiB, "middle")])
def test_a_number_steps_aside_for_the_line_that_would_cross_it(line, side):
    """Weights of 10 GiB and logits of 11 beside them: the middle of the logits is at 15.5 GiB."""
    parts = {"weights": 10 * GiB, "logits": 11 * GiB}
    table = pd.DataFrame([{"name": "a", "group": g, "bytes": parts.get(g, 0.0)} for g in GROUPS])
    traces = figures.stacked(table, "name", ["a"], ["a"], [True], 30.0, "GiB", [line])
    assert {t["meta"]: t["insidetextanchor"] for t in traces}["logits"] == side
