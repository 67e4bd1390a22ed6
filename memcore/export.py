"""A table as CSV that a colleague can open: it carries the scenario, and no cell that a spreadsheet would run."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from .catalog import Device
from .scenario import Scenario
from .units import one_line

RUNS_IN_A_SPREADSHEET = ("=", "+", "-", "@", "\t", "\r", "\n")
ASCII = str.maketrans({"×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "²": "^2", "“": '"', "”": '"', "’": "'"})
BYTE_ORDER_MARK = "\ufeff"


def with_scenario(table: pd.DataFrame, run: Scenario, device: Device) -> pd.DataFrame:
    """The table, with the run and its device in columns of their own, equal in every row."""
    about = {
        **run.to_dict(),
        "device": device.name if device.kind != "custom" else device.label,
        "device_memory_bytes": device.memory_bytes,
        "device_usable_bytes": device.usable_bytes,
    }
    return table.assign(**{column: _cell(value) for column, value in about.items()})


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def to_csv(table: pd.DataFrame) -> bytes:
    """As UTF-8. Text that a spreadsheet would take for a formula is preceded by an apostrophe."""
    safe = table.rename(columns=_safe)
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(_safe)
    text = safe.to_csv(index=False, lineterminator="\r\n")
    return (text if text.isascii() else BYTE_ORDER_MARK + text).encode()


def _safe(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = one_line(value.translate(ASCII), len(value))
    return f"'{text}" if text.startswith(RUNS_IN_A_SPREADSHEET) else text


def file_name(run: Scenario) -> str:
    """Such as memcore-Llama-3.1-8B-qlora.csv."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", run.model.name.rpartition("/")[2]).strip("-.")[:60]
    return f"memcore-{name or 'model'}-{run.method}.csv"
