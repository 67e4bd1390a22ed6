"""Tables of `whatif` to Plotly figures: how far a device goes, one line for each method, its capacity across them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from . import matrix
from .figures import CAPACITY, INK, named_rows, stacked
from .links import METHODS
from .units import BYTE_UNITS, format_bytes
from .whatif import AXES, AXIS_UNITS, Window, axis_label

ACCENT = "#2F81D8"
"""The chosen method's line; readable on white and on black."""
DASHES = {"full": "dash", "lora": "dot", "qlora": "dashdot"}
"""What tells the other methods apart, without colour."""
HEIGHT = 340
MARGIN = dict(l=8, r=8, t=30, b=8)


def how_far(table: pd.DataFrame, own: tuple[int, int], fits: bool, chosen: str) -> go.Figure:
    """The largest micro batch that fits at each length, a line for each method; what fits lies on it and below.

    `table` has method, sequence_length and micro_batch_size (0: none); `own` is the run's length and micro batch.
    """
    length, batch = own
    top = max(int(table["micro_batch_size"].max()), batch, 8)
    data = []
    for method in _chosen_last(chosen):
        rows = table[table["method"] == method]
        drawn = rows[rows["micro_batch_size"] > 0]
        style = _line(method, method == chosen, shape="hv")
        if method == chosen:
            style |= dict(fill="tozeroy", fillcolor="rgba(47,129,216,0.10)")
        data.append(
            style
            | dict(
                x=drawn["sequence_length"].to_numpy(),
                y=drawn["micro_batch_size"].to_numpy(dtype=np.float64),
                hovertemplate=METHODS[method] + ": up to %{y:,.0f}<extra></extra>",
            )
        )
    data.append(_here(length, batch, fits, f"this run: {batch:,} × {axis_label('sequence_length', length)}"))
    last = float(table["sequence_length"].max())
    reached = table[table["micro_batch_size"] > 0]["sequence_length"].max()
    last = min(last, 2 * max(float(reached) if reached == reached else 0.0, length))
    layout = dict(
        xaxis=_log_axis("Sequence length (tokens)", float(table["sequence_length"].min()), last, "sequence_length")
        | dict(unifiedhovertitle=dict(text="%{x:,} tokens")),
        yaxis=_log_axis("Largest micro batch (sequences)", 0.8, top * 1.5, "micro_batch_size"),
        annotations=_nothing(data),
    )
    return _figure(data, layout)


def curves(table: pd.DataFrame, axis: str, own: tuple[float, float], has: float, chosen: str, window: Window, unit: str = "GiB") -> go.Figure:
    """What each method needs as one thing grows, with what the device can give across it.

    `table` has method, value and bytes; `own` is where the run stands: the value and the bytes it needs.
    """
    size = BYTE_UNITS[unit]
    data = []
    for method in _chosen_last(chosen):
        rows = table[table["method"] == method]
        data.append(
            _line(method, method == chosen)
            | dict(
                x=rows["value"].to_numpy(dtype=np.float64),
                y=rows["bytes"].to_numpy(dtype=np.float64) / size,
                customdata=[format_bytes(n, unit) for n in rows["bytes"]],
                hovertemplate=METHODS[method] + ": %{customdata}<extra></extra>",
            )
        )
    value, needs = own
    data.append(_here(value, needs / size, needs <= has, f"this run: {format_bytes(needs, unit)}"))
    first = float(table["value"].min())
    limit = dict(type="line", xref="paper", x0=0, x1=1, y0=has / size, y1=has / size, line=dict(color=CAPACITY, width=2, dash="dash"))
    above = dict(
        x=0.01,
        xref="paper",
        y=np.log10(has / size),
        text=f"this device: {format_bytes(has, unit)}",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        font=dict(color=CAPACITY, size=13),
    )
    layout = dict(
        xaxis=_log_axis(f"{AXES[axis]} ({AXIS_UNITS[axis]})", first, max(window.last, value) * 1.1, axis)
        | dict(unifiedhovertitle=dict(text=f"{AXES[axis]} %{{x:,.3~s}}" if axis == "model" else f"{AXES[axis]} %{{x:,}}")),
        yaxis=_log_bytes(f"Memory a card must provide ({unit})", window.low / size, window.high / size),
        shapes=[limit],
        annotations=[above],
    )
    return _figure(data, layout)


def _chosen_last(chosen: str) -> list[str]:
    """So that its line lies on top."""
    return sorted(METHODS, key=lambda method: method == chosen)


def _line(method: str, chosen: bool, shape: str = "linear") -> dict[str, Any]:
    line = dict(shape=shape) | (dict(color=ACCENT, width=3) if chosen else dict(color=INK, width=2, dash=DASHES[method]))
    return dict(type="scatter", mode="lines", name=METHODS[method], line=line, legendrank=list(METHODS).index(method))


def _here(x: float, y: float, fits: bool, text: str) -> dict[str, Any]:
    """The run itself: a disc where it fits, a cross where it does not."""
    marker = dict(size=12, symbol="circle" if fits else "x", color=ACCENT if fits else CAPACITY, line=dict(width=0))
    return dict(
        type="scatter",
        mode="markers",
        name="This run",
        x=[x],
        y=[y],
        marker=marker,
        hovertemplate=f"{text}<extra></extra>",
        legendrank=len(METHODS),
    )


def _nothing(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing fits: say so where the lines would be."""
    if any(len(trace["x"]) for trace in data[: len(METHODS)]):
        return []
    return [
        dict(
            x=0.5,
            y=0.5,
            xref="paper",
            yref="paper",
            text="No micro batch fits at any length",
            showarrow=False,
            font=dict(color=INK, size=14),
        )
    ]


def _log_axis(title: str, low: float, high: float, axis: str) -> dict[str, Any]:
    """Ticks at powers of two (of ten and halves for model sizes), as many as there is room for."""
    if axis == "model":
        ticks = [m * 10**e for e in range(6, 13) for m in (1, 3) if low <= m * 10**e <= high]
    else:
        powers = [2**k for k in range(28) if low <= 2**k <= high]
        ticks = powers[:: 1 + len(powers) // 9]
    return dict(
        type="log",
        title=dict(text=title, standoff=6),
        range=[np.log10(low), np.log10(high)],
        tickvals=ticks,
        ticktext=[axis_label(axis, n) for n in ticks],
        fixedrange=True,
        zeroline=False,
        automargin=True,
    )


def _log_bytes(title: str, low: float, high: float) -> dict[str, Any]:
    ticks = [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return dict(
        type="log",
        title=dict(text=title, standoff=6),
        range=[np.log10(low), np.log10(high)],
        tickvals=ticks,
        ticktext=[f"{n:,.12g}" for n in ticks],
        fixedrange=True,
        zeroline=False,
        automargin=True,
    )


def _figure(data: list[dict[str, Any]], layout: dict[str, Any]) -> go.Figure:
    legend = dict(orientation="h", x=0, xanchor="left", y=1, yanchor="bottom", itemclick=False, itemdoubleclick=False, font=dict(size=12))
    return go.Figure(data=data, layout=dict(height=HEIGHT, margin=MARGIN, hovermode="x unified", showlegend=True, legend=legend) | layout)


def side_by_side(stacks: pd.DataFrame, unit: str = "GiB") -> go.Figure:
    """One stacked bar per run, with what its own device gives as a mark on it.

    `stacks` has name, group, bytes, and for each name total, low, high and usable. [bytes]
    """
    size = BYTE_UNITS[unit]
    ends = stacks.drop_duplicates("name").set_index("name")
    names = list(ends.index)
    reach = float(max(ends["high"].max(), ends["usable"].max())) / size * 1.04
    data = stacked(stacks, "name", names, names, [True] * len(names), reach, unit, list(ends["usable"]))
    data.append(
        dict(
            type="scatter",
            mode="markers",
            name="What its device gives",
            y=names,
            x=(ends["usable"] / size).to_numpy(),
            marker=dict(symbol="line-ns", size=34, line=dict(color=CAPACITY, width=3)),
            customdata=[format_bytes(n, unit) for n in ends["usable"]],
            hovertemplate="%{y}<br>its device gives %{customdata}<extra></extra>",
        )
    )
    data.append(
        dict(
            type="scatter",
            mode="markers",
            name="Band",
            y=names,
            x=(ends["total"] / size).to_numpy(),
            marker=dict(size=1, color=INK),
            error_x=dict(
                type="data",
                symmetric=False,
                array=((ends["high"] - ends["total"]) / size).to_numpy(),
                arrayminus=((ends["total"] - ends["low"]) / size).to_numpy(),
                color=INK,
                thickness=1.5,
                width=6,
            ),
            hoverinfo="skip",
        )
    )
    labels = [f"{_two_lines(name)}<br><b>{format_bytes(total, unit)}</b>" for name, total in ends["total"].items()]
    layout = dict(
        barmode="stack",
        bargap=0.35,
        height=90 + 62 * len(names),
        margin=dict(l=8, r=8, t=26, b=8),
        hovermode="closest",
        showlegend=False,
        xaxis=dict(title=dict(text=f"Memory a card must provide ({unit})", standoff=6), range=[0, reach], fixedrange=True, zeroline=False),
        yaxis=named_rows(names, labels),
        annotations=[
            dict(
                x=1,
                xref="paper",
                y=1,
                yref="paper",
                text="| what its device gives",
                showarrow=False,
                xanchor="right",
                yanchor="bottom",
                font=dict(color=CAPACITY, size=13),
            )
        ],
    )
    return go.Figure(data=data, layout=layout)


def _two_lines(name: str, width: int = 20) -> str:
    """A long name broken near its middle, so that it leaves the bars their room; markup in it is shown as it is."""
    spaces = [i for i, letter in enumerate(name) if letter == " "]
    parts = [name]
    if len(name) > width and spaces:
        middle = min(spaces, key=lambda i: abs(i - len(name) / 2))
        parts = [name[:middle], name[middle + 1 :]]
    return "<br>".join(part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for part in parts)


VERDICT_COLORS = {"does not fit": "#6B7280", "tight": "#F0B429", "fits": "#00795C"}
VERDICT_INK = {"does not fit": "#ffffff", "tight": "#1b2430", "fits": "#ffffff"}
ROW_HEIGHT = 24


def fit_map(table: pd.DataFrame, unit: str = "GiB") -> go.Figure:
    """Devices by methods: a colour for each verdict, and the memory to spare written in. `table` is `matrix.fit`'s."""
    words = list(VERDICT_COLORS)
    steps = [(i + side) / len(words) for i in range(len(words)) for side in (0, 1)]
    colors = [color for color in VERDICT_COLORS.values() for _ in range(2)]
    cells = [matrix.fit_cell(row, unit) for row in table.itertuples()]
    z = table["verdict"].map(words.index).to_numpy(dtype=np.float64)
    return _map(table, z, cells, list(table["verdict"].map(VERDICT_INK)), list(zip(steps, colors, strict=True)), (-0.5, len(words) - 0.5))


def largest_map(table: pd.DataFrame, unit: str = "GiB") -> go.Figure:
    """Devices by methods: the size of the largest model, the brighter the larger. `table` is `matrix.largest`'s."""
    cells = [matrix.largest_cell(row, unit) for row in table.itertuples()]
    sizes = table["parameters"].to_numpy(dtype=np.float64)
    z = np.log10(sizes, where=sizes > 0, out=np.full(len(sizes), np.nan))
    low, high = (float(np.nanmin(z)), float(np.nanmax(z))) if (sizes > 0).any() else (0.0, 0.0)
    low = min(low, high - 1)
    ink = [INK if np.isnan(value) else "#1b2430" if value > (low + high) / 2 else "#ffffff" for value in z]
    return _map(table, z, cells, ink, "Cividis", (low, high))


def _map(table: pd.DataFrame, z: np.ndarray, cells: list[tuple[str, str]], ink: list[str], scale: Any, ends: tuple[float, float]) -> go.Figure:
    """A row for each device, the one with most memory on top, and a column for each method."""
    devices = table.drop_duplicates("device").sort_values("usable_bytes", ascending=False, kind="stable")
    rows = {name: i for i, name in enumerate(devices["device"])}
    columns = {method: i for i, method in enumerate(METHODS)}
    shape = (len(rows), len(columns))
    values, said = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    written = []
    for device, method, value, (text, hover), color in zip(table["device"], table["method"], z, cells, ink, strict=True):
        place = rows[device], columns[method]
        values[place], said[place] = value, hover
        written.append(dict(y=place[0], x=place[1], text=text, showarrow=False, font=dict(color=color, size=12)))
    heat = dict(
        type="heatmap",
        z=values,
        customdata=said,
        colorscale=scale,
        zmin=ends[0],
        zmax=ends[1],
        showscale=False,
        xgap=2,
        ygap=2,
        hovertemplate="%{customdata}<extra></extra>",
    )
    layout = dict(
        height=50 + ROW_HEIGHT * len(rows),
        margin=dict(l=8, r=8, t=30, b=8),
        annotations=written,
        xaxis=dict(side="top", tickvals=list(columns.values()), ticktext=list(METHODS.values()), fixedrange=True, showgrid=False),
        yaxis=dict(
            autorange="reversed",
            tickvals=list(rows.values()),
            ticktext=list(devices["label"]),
            fixedrange=True,
            automargin=True,
            showgrid=False,
            zeroline=False,
        ),
    )
    return go.Figure(data=[heat], layout=layout)
