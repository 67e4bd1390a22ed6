"""The figures of the Accuracy view: measured runs beside their estimates."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from . import accuracy
from .figures import CAPACITY, INK, named_rows
from .units import BYTE_UNITS
from .validation import METHODS

SOURCE_COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE7733", "#009988")
"""P. Tol's bright scheme: none of the colours of a term, and told apart with every common colour vision."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
GLYPHS = ("●", "■", "◆", "▲", "✚", "✖", "★", "⬢")
BAND = 0.10
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def styles(frame: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Colour, symbol and glyph of each source, in the order in which the sources come."""
    return {s: tuple(each[i % len(each)] for each in (SOURCE_COLORS, SYMBOLS, GLYPHS)) for i, s in enumerate(dict.fromkeys(frame["source"]))}


def legend(frame: pd.DataFrame, every: pd.DataFrame) -> str:
    """The sources of some runs with their symbols as HTML that wraps; `every` run decides which symbol is whose."""
    shown = set(frame["source"])
    item = '<span style="white-space:nowrap"><span style="color:{};margin-right:0.35em">{}</span>{}</span>'
    items = [item.format(color, glyph, source) for source, (color, _, glyph) in styles(every).items() if source in shown]
    return f'<div style="display:flex;flex-wrap:wrap;gap:0.2em 1.1em;font-size:0.875rem">{"".join(items)}</div>'


def measured_and_estimated(frame: pd.DataFrame, every: pd.DataFrame, similar: tuple[str, ...] = (), unit: str = "GiB") -> go.Figure:
    """Estimate against measurement on logarithmic axes: the line where they are equal, 10 % around it, and a ring round similar runs."""
    size = BYTE_UNITS[unit]
    sizes = pd.concat([frame["measured"], frame["estimated"]]) / size
    low, high = float(sizes.min()) / 1.25, float(sizes.max()) * 1.25
    ends = np.array([low, high])
    quiet = dict(type="scatter", mode="lines", x=ends, hoverinfo="skip", showlegend=False)
    data = [
        quiet | dict(y=ends * (1 - BAND), line=dict(width=0)),
        quiet | dict(y=ends * (1 + BAND), line=dict(width=0), fill="tonexty", fillcolor="rgba(128,132,149,0.22)"),
        quiet | dict(y=ends, line=dict(color=INK, width=1.5, dash="dash")),
    ]
    for source, (color, symbol, _) in styles(every).items():
        rows = frame[frame["source"] == source]
        if rows.empty:
            continue
        data.append(
            dict(
                type="scatter",
                mode="markers",
                name=source,
                x=(rows["measured"] / size).to_numpy(),
                y=(rows["estimated"] / size).to_numpy(),
                marker=dict(color=color, symbol=symbol, size=8, opacity=0.85),
                hovertext=[accuracy.hover(row, unit) for row in rows.itertuples(index=False)],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    near = frame[frame["id"].isin(similar)]
    ring = dict(symbol="circle-open", size=15, color=CAPACITY, line=dict(width=2))
    where = dict(x=(near["measured"] / size).to_numpy(), y=(near["estimated"] / size).to_numpy())
    data.append(dict(type="scatter", mode="markers", name="like this run", hoverinfo="skip", marker=ring) | where)
    ticks = [t for t in TICKS if low <= t <= high]
    axis = dict(type="log", range=[math.log10(low), math.log10(high)], tickvals=ticks, ticktext=[f"{t:,}" for t in ticks], fixedrange=True)
    layout = dict(
        height=440,
        margin=dict(l=8, r=8, t=8, b=8),
        showlegend=False,
        hovermode="closest",
        xaxis=axis | dict(title=dict(text=f"Measured ({unit})", standoff=6)),
        yaxis=axis | dict(title=dict(text=f"Estimated ({unit})", standoff=6)),
    )
    return go.Figure(data=data, layout=layout)


def errors_by_source(frame: pd.DataFrame, every: pd.DataFrame) -> go.Figure:
    """The error of every run, one line for each source and method; left of zero the estimate was too low."""
    groups = list(frame.groupby(["source", "method"], sort=False))
    reach = max(0.06, float(frame["error"].abs().max()) * 1.08)
    names = [f"{source}|{method}" for (source, method), _ in groups]
    labels = [f"{_short(source)}<br>{METHODS[method]}" for (source, method), _ in groups]
    looks = styles(every)
    data = []
    for name, ((source, _), rows) in zip(names, groups, strict=True):
        color, symbol, _ = looks[source]
        data.append(
            dict(
                type="scatter",
                mode="markers",
                name=source,
                x=(100 * rows["error"]).to_numpy(),
                y=[name] * len(rows),
                marker=dict(color=color, symbol=symbol, size=8, opacity=0.6, line=dict(color=color, width=1)),
                hovertext=[accuracy.hover(row) for row in rows.itertuples(index=False)],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
        median = float(rows["error"].median()) * 100
        data.append(
            dict(
                type="scatter",
                mode="markers",
                x=[median],
                y=[name],
                showlegend=False,
                marker=dict(symbol="line-ns", size=18, line=dict(color=INK, width=2.5)),
                hovertemplate=f"median {median:+.2f} %<extra></extra>",
            )
        )
    layout = dict(
        height=max(440, 90 + 34 * len(names)),
        margin=dict(l=8, r=8, t=8, b=8),
        showlegend=False,
        hovermode="closest",
        xaxis=dict(
            title=dict(text="Error (%), too low to too high", standoff=6),
            range=[-100 * reach, 100 * reach],
            fixedrange=True,
            zeroline=True,
            zerolinecolor=INK,
            zerolinewidth=1.5,
        ),
        yaxis=named_rows(names, labels),
        shapes=[
            dict(
                type="rect",
                x0=-100 * BAND,
                x1=100 * BAND,
                yref="paper",
                y0=0,
                y1=1,
                line=dict(width=0),
                fillcolor="rgba(128,132,149,0.14)",
                layer="below",
            )
        ],
    )
    return go.Figure(data=data, layout=layout)


def _short(source: str, letters: int = 26) -> str:
    """The source as an axis has room for it."""
    words = source.split(" (")[0].split()
    short = words[0]
    for word in words[1:]:
        if len(short) + len(word) + 1 > letters:
            break
        short += f" {word}"
    return short
