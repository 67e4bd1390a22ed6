"""Devices against methods: which of them a run fits, with how much to spare, and the largest model each can train."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from . import catalog, solver
from .catalog import Device
from .estimate import estimate
from .links import METHODS
from .scenario import Scenario
from .summary import short_name, verdict
from .units import BYTE_UNITS, format_bytes, format_count

IN_A_FILE = {"device": "on_device", "method": "with_method", "model": "largest_model"}
"""Names of columns beside those of the scenario, which has a device, a method and a model of its own."""

MARKS = {"fits": "✓", "tight": "!", "does not fit": "✗"}


def fit(runs: dict[str, Scenario], devices: Sequence[Device]) -> pd.DataFrame:
    """Each device and method: what the run needs, what the device gives, the difference, and the verdict. [bytes]"""
    rows = []
    for method, run in runs.items():
        breakdown = estimate(run)
        for device in devices:
            v = verdict(breakdown, device)
            rows.append(
                _about(device)
                | {"method": method, "needs_bytes": v.needs, "low_bytes": v.low, "high_bytes": v.high, "spare_bytes": v.spare, "verdict": v.word}
            )
    return pd.DataFrame(rows)


def _about(device: Device) -> dict[str, object]:
    return {
        "device": device.name,
        "label": device.label,
        "class": device.kind,
        "vendor": device.vendor,
        "memory_bytes": float(device.memory_bytes),
        "usable_bytes": float(device.usable_bytes),
    }


def summary(table: pd.DataFrame, method: str) -> tuple[int, int, int, str | None]:
    """On how many devices a method fits, on how many more tightly, of how many; and the name of the one with least memory on which
    it fits, or tightly where it fits on none; None where there is none."""
    rows = table[table["method"] == method]
    fits, tight = rows[rows["verdict"] == "fits"], rows[rows["verdict"] == "tight"]
    best = tight if fits.empty else fits
    least = None if best.empty else str(best.loc[best["usable_bytes"].idxmin(), "device"])
    return len(fits), len(tight), len(rows), least


def smallest(run: Scenario) -> str | None:
    """The name of the catalog's device with least memory on which a run fits, parts of devices apart; None where none is."""
    kinds = {device.kind for device in catalog.devices().values()} - {"slice"}
    found = solver.smallest_device(run, tuple(sorted(kinds)))
    return found and found.name


def _by_device(table: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Each device once, the one that gives most first."""
    first = table.drop_duplicates("device").set_index("device")
    shown = pd.DataFrame({"Device": first["label"], "Class": first["class"], f"Gives ({unit})": first["usable_bytes"] / BYTE_UNITS[unit]})
    return shown.sort_values(f"Gives ({unit})", ascending=False, kind="stable")


def shown_fit(table: pd.DataFrame, unit: str = "GiB") -> pd.DataFrame:
    """A row for each device: numbers, to be sorted by, and the verdicts."""
    shown = _by_device(table, unit)
    for method in METHODS:
        rows = table[table["method"] == method].set_index("device")
        shown[METHODS[method]] = rows["verdict"].map(MARKS) + " " + rows["verdict"]
        shown[f"{METHODS[method]}: spare ({unit})"] = rows["spare_bytes"] / BYTE_UNITS[unit]
    return shown.reset_index(drop=True)


@lru_cache(maxsize=256)
def largest_models(run: Scenario, budgets: tuple[float, ...]) -> tuple[solver.LargestModel, ...]:
    """`solver.largest_model` for many budgets at once, without the size between the known models: each model is estimated once."""
    models, bounds = solver.bounded(run)
    needs: dict[int, float] = {}

    def largest(budget: float) -> solver.LargestModel:
        for i in np.flatnonzero(bounds <= budget):
            if i not in needs:
                needs[i] = float(estimate(run.replace(model=models[i])).device)
            if needs[i] <= budget:
                return solver.LargestModel(model=models[i], needs=needs[i], parameters=0.0)
        return solver.LargestModel(model=None, needs=0.0, parameters=0.0)

    found = {budget: largest(budget) for budget in sorted(set(budgets), reverse=True)}
    return tuple(found[budget] for budget in budgets)


def largest(runs: dict[str, Scenario], devices: Sequence[Device]) -> pd.DataFrame:
    """Each device and method: the largest model of the catalog that fits, and what it needs; no name where none does. [bytes]"""
    rows = []
    for method, run in runs.items():
        found = largest_models(run, tuple(float(device.usable_bytes) for device in devices))
        for device, answer in zip(devices, found, strict=True):
            model = answer.model
            rows.append(
                _about(device)
                | {
                    "method": method,
                    "model": model.name if model else "",
                    "parameters": model.parameters if model else 0,
                    "needs_bytes": answer.needs,
                }
            )
    return pd.DataFrame(rows)


def shown_largest(table: pd.DataFrame, unit: str = "GiB") -> pd.DataFrame:
    """A row for each device: the largest model's name and size, by method."""
    shown = _by_device(table, unit)
    for method in METHODS:
        rows = table[table["method"] == method].set_index("device")
        shown[METHODS[method]] = rows["model"].map(lambda name: name.rpartition("/")[2] or "none")
        shown[f"{METHODS[method]}: billions"] = rows["parameters"] / 1e9
    return shown.reset_index(drop=True)


def fit_cell(row: object, unit: str = "GiB") -> tuple[str, str]:
    """What a cell of the heat map says, and what it says when pointed at."""
    spare = format_bytes(abs(row.spare_bytes), unit)
    number = spare.removesuffix(f" {unit}")
    over = row.spare_bytes < 0
    said = f"{METHODS[row.method]} on {row.label}: {row.verdict}<br>{_of(row, unit)}"
    return f"{MARKS[row.verdict]} {'−' if over else ''}{number}", f"{said}<br>{spare} {'over' if over else 'to spare'}"


def _of(row: object, unit: str) -> str:
    return f"needs {format_bytes(row.needs_bytes, unit)} of {format_bytes(row.usable_bytes, unit)}"


def largest_cell(row: object, unit: str = "GiB") -> tuple[str, str]:
    """The same for the largest model."""
    if not row.model:
        return "none", f"{METHODS[row.method]} on {row.label}: no known model fits"
    name = row.model.rpartition("/")[2]
    said = f"{METHODS[row.method]} on {row.label}: {name}<br>{_of(row, unit)}"
    return format_count(row.parameters), said


def sentence(table: pd.DataFrame, run: Scenario, method: str) -> str:
    """On how many of these devices a method fits."""
    fits, tight, of, _ = summary(table, method)
    return f"{METHODS[method]} of {short_name(run.model)} fits on {fits:,} of {of:,}, tight on {tight:,}"
