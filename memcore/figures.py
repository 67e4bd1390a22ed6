"""Tables to Plotly figures. Nothing is computed here but where things are drawn; every axis says its unit."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .links import METHODS
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
ON_COLORS = {
    "weights": "#ffffff",
    "gradients": "#1b2430",
    "optimizer": "#ffffff",
    "activations": "#1b2430",
    "logits": "#1b2430",
    "overhead": "#ffffff",
}

CAPACITY = "#D55E00"
INK = "#808495"
"""Readable on white and on black."""
QUIET = 0.45
CROSSED = 0.05
"""A line nearer to the middle of a number than this share of the width crosses it on a phone."""
LEAST_LABELLED = 0.07
"""Share of the axis from which a part of a bar has room for its number."""
LABELLED = tuple(g for g in GROUPS if g != "overhead")
"""Groups whose number is written into the bar; at its end is the band."""
CONFIG = {"displayModeBar": False, "scrollZoom": False}


def where_it_goes(stacks: pd.DataFrame, usable: float, chosen: str, unit: str = "GiB") -> go.Figure:
    """One stacked bar per method with what the device can give as a line; the chosen method in full strength.

    `stacks` has method, group, bytes, and for each method total, low and high; `usable` is in bytes too.
    """
    size = BYTE_UNITS[unit]
    methods = [m for m in METHODS if m in set(stacks["method"])]
    ends = stacks.drop_duplicates("method").set_index("method").loc[methods]
    reach = max(float(ends["high"].max()), usable) / size * 1.04
    names = [METHODS[m] for m in methods]
    data = stacked(stacks, "method", methods, names, [m == chosen for m in methods], reach, unit, [usable] * len(names))
    data.append(_band(METHODS[chosen], *(float(ends.loc[chosen, part]) for part in ("low", "total", "high")), unit))
    labels = [
        bold(f"{name}<br>{format_bytes(total, unit)}", m == chosen) for m, name, total in zip(methods, names, ends["total"], strict=True)
    ]
    return horizontal(
        data,
        names,
        labels,
        f"Memory a card must provide ({unit})",
        reach,
        usable / size,
        f"this device: {format_bytes(usable, unit)}",
        height=230,
    )


def over_one_step(phases: pd.DataFrame, room: float, unit: str = "GiB") -> go.Figure:
    """Live memory in each phase of a step, first to last, stacked by group; the largest phase is marked.

    `phases` has phase, label, group, bytes, total and peak; `room` is what the device leaves for live tensors (bytes).
    """
    size = BYTE_UNITS[unit]
    ends = phases.drop_duplicates("phase")
    reach = max(float(ends["total"].max()), room) / size * 1.04
    names = list(ends["label"])
    data = stacked(phases, "phase", list(ends["phase"]), names, list(ends["peak"]), reach, unit, [room] * len(names))
    labels = [
        bold(f"{row.label}<br>{format_bytes(row.total, unit)}{', the peak' if row.peak else ''}", row.peak) for row in ends.itertuples()
    ]
    return horizontal(
        data,
        names,
        labels,
        f"Live tensors ({unit})",
        reach,
        room / size,
        f"room for tensors: {format_bytes(room, unit)}",
        height=80 + 44 * len(names),
    )


def stacked(
    table: pd.DataFrame,
    key: str,
    keys: list[str],
    names: list[str],
    strong: list[bool],
    reach: float,
    unit: str,
    limits: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """One trace per group, one bar per key; the strong ones in full colour, with numbers where there is room, beside the line at
    the bar's limit. [bytes]"""
    size = BYTE_UNITS[unit]
    wide = table.pivot(index=key, columns="group", values="bytes").loc[keys]

    def number(value: float, group: str, is_strong: bool) -> str:
        has_room = is_strong and group in LABELLED and value / size > LEAST_LABELLED * reach
        return format_bytes(value, unit).removesuffix(f" {unit}") if has_room else ""

    middles = wide[list(GROUPS)].cumsum(axis=1) - wide[list(GROUPS)] / 2

    def side(group: str) -> str:
        """Where in its part a number stands: at the end away from a line that would cross it."""
        for value, middle, limit, is_strong in zip(wide[group], middles[group], limits or [inf] * len(keys), strong, strict=True):
            if number(value, group, is_strong) and abs(limit - middle) < CROSSED * reach * size:
                return "start" if limit >= middle else "end"
        return "middle"

    return [
        dict(
            type="bar",
            orientation="h",
            name=GROUPS[g],
            meta=g,
            y=names,
            x=(wide[g] / size).to_numpy(),
            marker=dict(color=COLORS[g], opacity=[1.0 if s else QUIET for s in strong], line=dict(width=0)),
            text=[number(v, g, s) for v, s in zip(wide[g], strong, strict=True)],
            textposition="inside",
            insidetextanchor=side(g),
            textangle=0,
            constraintext="none",
            textfont=dict(color=ON_COLORS[g], size=12),
            customdata=[format_bytes(v, unit) for v in wide[g]],
            hovertemplate="%{y}<br>" + GROUPS[g] + ": %{customdata}<extra></extra>",
        )
        for g in GROUPS
    ]


def _band(name: str, low: float, typical: float, high: float, unit: str) -> dict[str, Any]:
    size = BYTE_UNITS[unit]
    ends = dict(type="data", symmetric=False, array=[(high - typical) / size], arrayminus=[(typical - low) / size])
    return dict(
        type="scatter",
        mode="markers",
        name="Band",
        y=[name],
        x=[typical / size],
        showlegend=False,
        marker=dict(size=1, color=INK),
        error_x=ends | dict(color=INK, thickness=1.5, width=6),
        hovertemplate=f"Between {format_bytes(low, unit)} and {format_bytes(high, unit)}<extra></extra>",
    )


def bold(text: str, strong: bool) -> str:
    return f"<b>{text}</b>" if strong else text


def named_rows(names: list[str], labels: list[str]) -> dict[str, Any]:
    """The vertical axis of a chart with one row a name, from top to bottom."""
    return dict(
        type="category",
        categoryorder="array",
        categoryarray=names[::-1],
        tickvals=names,
        ticktext=labels,
        fixedrange=True,
        automargin=True,
    )


def horizontal(
    data: list[dict[str, Any]], names: list[str], labels: list[str], title: str, reach: float, limit: float, limit_text: str, height: int
) -> go.Figure:
    """Bars from top to bottom with a line across them at the device's limit, named above the bars."""
    above = dict(
        x=1,
        xref="paper",
        y=1,
        yref="paper",
        text=f"╎ {limit_text}",
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        font=dict(color=CAPACITY, size=13),
    )
    layout = dict(
        barmode="stack",
        bargap=0.3,
        height=height,
        margin=dict(l=8, r=8, t=26, b=8),
        hovermode="closest",
        showlegend=False,
        xaxis=dict(title=dict(text=title, standoff=6), range=[0, reach], fixedrange=True, zeroline=False),
        yaxis=named_rows(names, labels),
        shapes=[dict(type="line", x0=limit, x1=limit, yref="paper", y0=0, y1=1, line=dict(color=CAPACITY, width=2, dash="dash"))],
        annotations=[above],
    )
    return go.Figure(data=data, layout=layout)


def legend() -> str:
    """The groups and their colours as HTML that wraps: one legend for all figures."""
    square = '<span style="display:inline-block;width:0.8em;height:0.8em;border-radius:2px;margin-right:0.4em;background:{}"></span>{}'
    items = [f'<span style="white-space:nowrap">{square.format(color, GROUPS[group])}</span>' for group, color in COLORS.items()]
    return f'<div style="display:flex;flex-wrap:wrap;gap:0.2em 1.1em;font-size:0.875rem">{"".join(items)}</div>'
