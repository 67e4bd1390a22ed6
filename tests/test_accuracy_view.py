"""The Accuracy view: what it shows is what validation found, run by run."""

import io

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest
from test_dashboard import SCRIPT, chart

import memcore
from memcore import accuracy, export, figures_accuracy, links, validation
from memcore.units import GiB


@pytest.fixture(scope="module")
def frame():
    return accuracy.runs()


@pytest.fixture
def view(open_app):
    return open_app(view="Accuracy")


def points(spec):
    """Traces of measured runs: those with text to hover."""
    return [trace for trace in spec["data"] if trace.get("hovertext")]


def test_the_view_opens_from_its_link(view):
    assert not view.exception
    assert view.metric[0].label == "Measured runs" and view.metric[0].value == str(len(validation.validate()))


def test_every_measured_run_is_a_point(frame):
    figure = figures_accuracy.measured_and_estimated(frame, frame)
    shown = sorted(x for trace in figure.data if trace.hovertext for x in trace.x)
    assert shown == pytest.approx(sorted(frame["measured"] / GiB))
    assert len(figures_accuracy.styles(frame)) == frame["source"].nunique()


def test_the_line_is_where_both_agree_and_the_band_ten_percent_wide(frame):
    below, above, line = figures_accuracy.measured_and_estimated(frame, frame).data[:3]
    assert list(line.x) == list(line.y)
    assert np.array(below.y) == pytest.approx(0.9 * np.array(below.x)) and np.array(above.y) == pytest.approx(1.1 * np.array(above.x))


def test_a_point_says_the_runs_settings_and_both_numbers(frame):
    row = next(frame.itertuples(index=False))
    text = accuracy.hover(row)
    assert row.id in text and row.source in text and "measured" in text and "estimated" in text
    assert all(part in text for part in row.settings.split(", "))


def test_runs_like_the_one_on_the_page_are_ringed(frame):
    similar = validation.similar(memcore.Scenario(model=links.DEFAULT_MODEL))
    figure = figures_accuracy.measured_and_estimated(frame, frame, similar.ids)
    (rings,) = [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    rows = frame[frame["id"].isin(similar.ids)]
    assert len(rings.x) == len(similar.ids) > 0 and list(rings.x) == pytest.approx(list(rows["measured"] / GiB))


def test_the_error_chart_has_a_line_for_each_source_and_method(frame):
    figure = figures_accuracy.errors_by_source(frame, frame)
    groups = frame.groupby(["source", "method"], sort=False)
    assert len(figure.layout.yaxis.tickvals) == groups.ngroups
    assert sum(len(trace.x) for trace in figure.data if trace.hovertext) == len(frame)


def test_the_head_counts_what_validation_counts(frame):
    said = {figure.label: figure.value for figure in accuracy.headline(frame)}
    assert said["Within the device band"] == f"{100 * validation.band().holds:.0f} %"
    assert said["Over 5 % too low"] == validation.percent(float((frame["error"] < -0.05).mean()))


def test_every_miss_is_named_with_its_reason_or_none(frame):
    lines = accuracy.worst(frame, most=1000)
    missed = frame[frame["miss"]].sort_values("error", key=abs, ascending=False)
    assert all(any(note in line for line in lines) for note in set(missed["note"]))
    assert missed.iloc[0]["id"] in lines[0] and accuracy.unbroken(accuracy.signed_percent(missed.iloc[0]["error"])) in lines[0]


def test_one_method_at_a_time_can_be_looked_at(view, frame):
    view.get_by_key("accuracy_method").set_value("full").run()
    assert not view.exception
    full = frame[frame["method"] == "full"]
    assert view.metric[0].value == str(len(full))
    assert sum(len(t["hovertext"]) for t in points(chart(view, "measured_and_estimated"))) == len(full)


def test_the_unit_changes_axes_and_table(view):
    view.get_by_key("unit").set_value("GB").run()
    spec = chart(view, "measured_and_estimated")
    assert spec["layout"]["xaxis"]["title"]["text"] == "Measured (GB)"
    assert "Measured (GB)" in view.dataframe[0].value.columns


def test_the_csv_has_every_run_with_its_settings(frame):
    table = pd.read_csv(io.BytesIO(export.to_csv(frame)))
    assert len(table) == len(frame) and {"id", "measured", "estimated", "error", "sequence_length", "address"} <= set(table.columns)


def test_the_page_says_how_well_runs_like_it_were_predicted():
    run = memcore.Scenario(model=links.DEFAULT_MODEL)
    found = validation.similar(run)
    said = f"{len(found.ids)} similar measured runs, each by its own meter: median error {validation.percent(found.median)}"
    assert accuracy.sentence(run).startswith(said)


def test_the_estimate_says_it_below_the_verdict():
    app = AppTest.from_file(str(SCRIPT), default_timeout=60).run()
    said = accuracy.sentence(memcore.Scenario(model=links.DEFAULT_MODEL))
    assert any(said.removesuffix(".") in caption.value for caption in app.caption)
