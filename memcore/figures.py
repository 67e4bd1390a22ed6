"""Tables to Plotly figures. Nothing is computed here but where things are drawn; every axis says its unit."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .summary import GROUPS
from .units import BYTE_UNITS, format_bytes

COLORS = {
    "weights": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "activations": "#CC79A7",
    "logits": "#56B4E9",
    "overhead": "#6B6B6B",
}
"""One colour per group, the same in every figure; told apart with every common colour vision."""

CAPACITY = "#D55E00"
INK = "#808495"
"""Readable on white and on black."""
QUIET = 0.4
MARGIN = dict(l=8, r=8, t=8, b=40)
LEGEND = dict(orientation="h", x=0, xanchor="left", y=1.02, yanchor="bottom", itemclick=False, itemdoubleclick=False, traceorder="normal", title=None)
CONFIG = {"displayModeBar": False, "scrollZoom": False}


def where_it_goes(stacks: pd.DataFrame, capacity: float, chosen: str, labels: dict[str, str], unit: str = "GiB") -> go.Figure:
    """One stacked bar per method with the capacity as a line; the chosen method in full strength.

    `stacks` has method, group, bytes, and for each method total, low and high (bytes).
    """
    size = BYTE_UNITS[unit]
    methods = list(labels)
    names = [labels[m] for m in methods]
    opacity = [1.0 if m == chosen else QUIET for m in methods]
    wide = stacks.pivot(index="method", columns="group", values="bytes").reindex(methods)
    ends = stacks.drop_duplicates("method").set_index("method").reindex(methods)
    data: list[dict[str, Any]] = [
        dict(
            type="bar", orientation="h", name=GROUPS[g], y=names, x=(wide[g] / size).to_numpy(), meta=g,
            marker=dict(color=COLORS[g], opacity=opacity, line=dict(width=0)),
            customdata=[format_bytes(v, unit) for v in wide[g]], hovertemplate="%{y}, " + GROUPS[g] + ": %{customdata}<extra></extra>",
        )
        for g in GROUPS
    ]  # fmt: skip
    reach = max(float(ends["high"].max()), capacity) / size
    data.append(
        dict(
            type="scatter", mode="markers", name="band", y=names, x=(ends["total"] / size).to_numpy(), showlegend=False,
            marker=dict(size=1, color=INK, opacity=opacity), hoverinfo="skip",
            error_x=dict(type="data", symmetric=False, array=((ends["high"] - ends["total"]) / size).to_numpy(), arrayminus=((ends["total"] - ends["low"]) / size).to_numpy(), color=INK, thickness=1.5, width=5),
        )
    )  # fmt: skip
    notes = [
        dict(x=ends["high"][m] / size, y=labels[m], text=f"<b>{format_bytes(ends['total'][m], unit)}</b>" if m == chosen else format_bytes(ends["total"][m], unit), showarrow=False, xanchor="left", xshift=6)
        for m in methods
    ]
    notes.append(_capacity_note(capacity, size, unit, "y domain"))
    layout = dict(
        barmode="stack", bargap=0.35, height=250, margin=MARGIN | dict(t=30), legend=LEGEND,
        xaxis=dict(title=f"Memory at the peak ({unit})", range=[0, reach * 1.18], fixedrange=True, zeroline=False),
        yaxis=dict(type="category", categoryorder="array", categoryarray=names[::-1], fixedrange=True, automargin=True),
        shapes=[_capacity_line(capacity / size, vertical=True)], annotations=notes, hovermode="closest",
    )  # fmt: skip
    return go.Figure(data=data, layout=layout)


def _capacity_note(capacity: float, size: float, unit: str, ref: str) -> dict[str, Any]:
    return dict(x=capacity / size, y=0, yref=ref, text=f"usable {format_bytes(capacity, unit)}", showarrow=False, xanchor="left", yanchor="bottom", xshift=4, font=dict(color=CAPACITY, size=12))


def _capacity_line(at: float, vertical: bool) -> dict[str, Any]:
    across = dict(x0=at, x1=at, yref="paper", y0=0, y1=1) if vertical else dict(y0=at, y1=at, xref="paper", x0=0, x1=1)
    return dict(type="line", line=dict(color=CAPACITY, width=2, dash="dash"), **across)


def over_one_step(phases: pd.DataFrame, usable: float, unit: str = "GiB") -> go.Figure:
    """Live memory by phase of a step, stacked by group; the largest phase is marked.

    `phases` has phase, label, group, bytes, total and peak; `usable` is what is left for tensors on the device (bytes).
    """
    size = BYTE_UNITS[unit]
    order = list(dict.fromkeys(phases["label"]))
    wide = phases.pivot(index="label", columns="group", values="bytes").reindex(order)
    totals = phases.drop_duplicates("phase").set_index("label").reindex(order)
    opacity = [1.0 if p else 0.65 for p in totals["peak"]]
    data = [
        dict(
            type="bar", name=GROUPS[g], x=order, y=(wide[g] / size).to_numpy(), meta=g, marker=dict(color=COLORS[g], opacity=opacity, line=dict(width=0)),
            customdata=[format_bytes(v, unit) for v in wide[g]], hovertemplate="%{x}, " + GROUPS[g] + ": %{customdata}<extra></extra>",
        )
        for g in GROUPS
    ]  # fmt: skip
    notes = [
        dict(x=label, y=row.total / size, text=f"<b>peak<br>{format_bytes(row.total, unit)}</b>" if row.peak else format_bytes(row.total, unit), showarrow=False, yanchor="bottom")
        for label, row in zip(order, totals.itertuples(), strict=True)
    ]
    notes.append(dict(x=1, xref="paper", y=usable / size, text=f"room for tensors {format_bytes(usable, unit)}", showarrow=False, xanchor="right", yanchor="bottom", font=dict(color=CAPACITY, size=12)))
    top = max(float(totals["total"].max()), usable) / size
    layout = dict(
        barmode="stack", bargap=0.3, height=340, margin=MARGIN | dict(t=30), legend=LEGEND,
        yaxis=dict(title=f"Live tensors ({unit})", range=[0, top * 1.2], fixedrange=True, zeroline=False),
        xaxis=dict(type="category", fixedrange=True, tickangle=0, automargin=True),
        shapes=[_capacity_line(usable / size, vertical=False)], annotations=notes, hovermode="closest",
    )  # fmt: skip
    return go.Figure(data=data, layout=layout)
