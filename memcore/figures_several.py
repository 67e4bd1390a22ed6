"""The figures of several GPUs: what they divide and what each holds whole, and a bar for each pipeline stage."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from .figures import bold, horizontal, stacked
from .units import BYTE_UNITS, format_bytes


def divided_and_whole(parts: pd.DataFrame, unit: str = "GiB") -> go.Figure:
    """A bar for what is divided, one for what is whole on each GPU, one for what its own tokens need; `parts` is `several.by_kind`."""
    size = BYTE_UNITS[unit]
    ends = parts.drop_duplicates("kind")
    reach = max(float(ends["total"].max()) / size * 1.04, 1e-9)
    names = list(ends["label"])
    data = stacked(parts, "kind", list(ends["kind"]), names, [True] * len(names), reach, unit)
    labels = [f"{row.label}<br>{format_bytes(row.total, unit)}" for row in ends.itertuples()]
    figure = horizontal(data, names, labels, f"Live at the peak ({unit})", reach, reach, "", height=80 + 44 * len(names))
    figure.layout.shapes = figure.layout.annotations = ()  # no device to compare one part with
    return figure.update_layout(margin_t=8)


def by_stage(stacks: pd.DataFrame, usable: float, unit: str = "GiB") -> go.Figure:
    """A bar for one GPU of each pipeline stage with the device as a line, the busiest in full strength; `stacks` is `summary.stacks`."""
    size = BYTE_UNITS[unit]
    ends = stacks.drop_duplicates("method")
    reach = max(float(ends["total"].max()), usable) / size * 1.04
    names = list(ends["method"])
    strong = list(ends["total"] == ends["total"].max())
    data = stacked(stacks, "method", names, names, strong, reach, unit, [usable] * len(names))
    labels = [
        bold(f"{row.method.replace(': ', '<br>')}<br>{format_bytes(row.total, unit)}", is_strong)
        for row, is_strong in zip(ends.itertuples(), strong, strict=True)
    ]
    title, limit = f"One card must provide ({unit})", f"this device: {format_bytes(usable, unit)}"
    return horizontal(data, names, labels, title, reach, usable / size, limit, height=90 + 56 * len(names))
