"""A grid of runs as a table: `estimate`, fed arrays."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .estimate import MemoryBreakdown, estimate
from .scenario import FIELDS, LARGEST, NUMERIC, Scenario, ScenarioError

if TYPE_CHECKING:
    import pandas as pd

RESULTS = {
    "allocated": lambda b: b.allocated,
    "reserved": lambda b: b.reserved,
    "device": lambda b: b.device,
    "device_low": lambda b: b.device_band[0],
    "device_high": lambda b: b.device_band[1],
    "peak_phase": lambda b: b.peak_phase,
    "trainable_parameters": lambda b: b.trainable_parameters,
}
"""The columns of a sweep beside its grids. [bytes]"""


def sweep(run: Scenario, **grids: Any) -> pd.DataFrame:
    """Estimate every combination of some fields' values, one row each, the last field's values changing fastest.

    Parameters
    ----------
    run : Scenario
        What all the runs have in common.
    **grids : list or array
        A Scenario field and its values, for as many fields as wanted: sizes, or choices such as
        `method=["full", "lora", "qlora"]`, or models.

    Returns
    -------
    DataFrame
        The fields swept over, then the columns of `RESULTS`. Memory is in bytes.

    Examples
    --------
    >>> table = sweep(Scenario(model="Qwen/Qwen3-4B"), sequence_length=[1024, 2048], micro_batch_size=[1, 2])
    >>> len(table), list(table.columns[:3])
    (4, ['sequence_length', 'micro_batch_size', 'allocated'])
    """
    import pandas as pd

    values = {field: _values(field, given) for field, given in grids.items()}
    shape = tuple(len(v) for v in values.values())
    sizes = {field: _along(np.asarray(v), axis, len(shape)) for axis, (field, v) in enumerate(values.items()) if field in NUMERIC}
    choices = [[(field, i, v) for i, v in enumerate(vs)] for field, vs in values.items() if field not in NUMERIC]
    results: dict[str, np.ndarray] = {}
    for chosen in product(*choices):
        place = {field: i for field, i, _ in chosen}
        where = tuple(slice(place[field], place[field] + 1) if field in place else slice(None) for field in values)
        breakdown = estimate(run.replace(**{field: v for field, _, v in chosen}, **sizes))
        _put(results, breakdown, where, shape)
    columns = {field: _along(_labels(v), axis, len(shape)) for axis, (field, v) in enumerate(values.items())}
    return pd.DataFrame({name: np.broadcast_to(column, shape).ravel() for name, column in (columns | results).items()})


def _put(results: dict[str, np.ndarray], breakdown: MemoryBreakdown, where: tuple[slice, ...], shape: tuple[int, ...]) -> None:
    for name, of in RESULTS.items():
        value = np.asarray(of(breakdown))
        if name not in results:
            results[name] = np.empty(shape, dtype=object if value.dtype.kind in "US" else value.dtype)
        results[name][where] = value


def _values(field: str, given: Any) -> list[Any]:
    """The values of one field, in a list, whole numbers as such."""
    if field not in FIELDS:
        raise ScenarioError(f"a Scenario has no field {field!r}; its fields are {', '.join(FIELDS)}")
    values = given.tolist() if isinstance(given, np.ndarray) else list(given) if isinstance(given, (list, tuple, range)) else [given]
    if not values:
        raise ScenarioError(f"{field} ([]) must have at least one value to sweep over")
    return [int(v) if field in LARGEST and isinstance(v, float) and v.is_integer() else v for v in values]


def _labels(values: list[Any]) -> np.ndarray:
    """As they stand in a column: models by name, several modules as one text."""
    shown = [v.name if hasattr(v, "layers") else " ".join(v) if isinstance(v, tuple) else v for v in values]
    return np.array(shown, dtype=object if isinstance(shown[0], str) else None)


def _along(values: np.ndarray, axis: int, axes: int) -> np.ndarray:
    """The values along one of several axes, to broadcast against the others."""
    return values.reshape([-1 if i == axis else 1 for i in range(axes)])
