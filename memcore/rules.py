"""The two published answers, exactly as published: the rule of thumb and the ledger of bytes per parameter.

Both know only the number of parameters. They are shown beside the estimate, which knows the architecture and the run,
and the page says why they differ. Sizes are decimal gigabytes, as in the texts they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .scenario import Numeric
from .units import GB

RULE = {
    # bytes per parameter, and bytes on top
    ("full", False): (12, 4 * GB),
    ("full", True): (16, 4 * GB),
    ("lora", False): (2, 3 * GB),
    ("qlora", False): (0.72, 3 * GB),
}
"""The rule of thumb by (method, float32 master copy): a straight line in the number of parameters.

For QLoRA only points are published, 9 GB at 8B, 22 at 27B and 26 at 32B. 0.72 bytes per parameter and LoRA's 3 GB on top is
the line of two round numbers that gives all three when rounded."""

UNIFIED_MEMORY_SHARE = 0.75
"""What a machine with unified memory lets its GPU have, about: 27 of 36 GB (Apple's default working-set limit)."""

QLORA_WEIGHT_BYTES = 0.5
"""Four bits, as the ledger has it; the block scales that come on top are the estimate's business."""


@dataclass(frozen=True, kw_only=True)
class ParameterLedger:
    """Bytes a training run holds for its parameters alone, before any activation."""

    weights: Numeric
    """The working copy."""
    gradients: Numeric
    master_weights: Numeric
    """The float32 copy that mixed precision steps on."""
    first_moment: Numeric
    second_moment: Numeric
    """Adam's two running means."""

    @property
    def moments(self) -> Numeric:
        return self.first_moment + self.second_moment

    @property
    def optimizer(self) -> Numeric:
        """What the optimizer keeps: its master copy and moments."""
        return self.master_weights + self.moments

    @property
    def bookkeeping(self) -> Numeric:
        """All but the weights themselves."""
        return self.gradients + self.optimizer

    @property
    def total(self) -> Numeric:
        return self.weights + self.bookkeeping

    def to_dict(self) -> dict[str, Numeric]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def rule_of_thumb(method: str, parameters: Numeric, master_copy: bool = False) -> Numeric:
    """Memory to train a model of so many parameters, by the rule of thumb. [bytes]

    In billions of parameters and decimal GB: LoRA 2P + 3, full 12P + 4 (16P + 4 with a float32 master copy),
    QLoRA 0.72P + 3. A master copy is a matter of full fine-tuning only.

    Examples
    --------
    >>> rule_of_thumb("lora", 8_000_000_000) / 1e9
    19.0
    """
    slope, intercept = _line(method, master_copy)
    return slope * _positive("parameters", parameters) + intercept


def largest_by_rule(method: str, available: Numeric, master_copy: bool = False) -> Numeric:
    """The most parameters that `rule_of_thumb` lets fit into so many bytes; 0 where not even the constant part does."""
    slope, intercept = _line(method, master_copy)
    room = _positive("available", available) - intercept
    return np.maximum(room, 0) / slope


def fits_by_rule(method: str, parameters: Numeric, available: Numeric, master_copy: bool = False) -> bool | np.ndarray:
    """Whether the rule of thumb's answer is within so many bytes."""
    return rule_of_thumb(method, parameters, master_copy) <= _positive("available", available)


def available_memory(memory: Numeric, unified: bool) -> Numeric:
    """Memory a training run may take: three quarters of a unified machine's RAM, all of a card's own; never the PC's RAM. [bytes]"""
    return _positive("memory", memory) * (UNIFIED_MEMORY_SHARE if unified else 1)


def parameter_ledger(
    parameters: Numeric, recipe: str = "bf16-master", method: str = "full", trainable_parameters: Numeric = 0
) -> ParameterLedger:
    """Bytes for weights, gradients, master weights and Adam's moments.

    Parameters
    ----------
    parameters : int or array
        Parameters of the model.
    recipe : str
        A row of precisions.csv: bf16-master is 2 + 2 + 4 + 8 = 16 bytes per parameter, bf16-fp32-states 12.
    method : str
        "full" pays all of it for every parameter. "lora" pays the weights for every one and the rest for the
        adapters alone; so does "qlora", at half a byte for each frozen weight.
    trainable_parameters : int or array
        Parameters of the adapters, for "lora" and "qlora".
    """
    from . import catalog

    recipes = catalog.precisions()
    if recipe not in recipes:
        raise ValueError(f"recipe ({recipe!r}) must be one of {', '.join(recipes)}")
    _line(method, False)
    row, base = recipes[recipe], _positive("parameters", parameters)
    trained = base if method == "full" else _positive("trainable_parameters", trainable_parameters, smallest=0)
    if method == "full":
        weights = row.weight_bytes * base
    else:
        weights = (row.weight_bytes if method == "lora" else QLORA_WEIGHT_BYTES) * base + row.weight_bytes * trained
    return ParameterLedger(
        weights=weights,
        gradients=row.gradient_bytes * trained,
        master_weights=row.master_bytes * trained,
        first_moment=row.moment_bytes * trained,
        second_moment=row.moment_bytes * trained,
    )


def _line(method: str, master_copy: bool) -> tuple[float, int]:
    if method not in ("full", "lora", "qlora"):
        raise ValueError(f"method ({method!r}) must be one of full, lora, qlora")
    return RULE[method, bool(master_copy) and method == "full"]


def _positive(name: str, value: Numeric, smallest: float = 1) -> Numeric:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array) & (array >= smallest)):
        raise ValueError(f"{name} ({value!r}) must be a finite number of at least {smallest}")
    return array.astype(np.float64) if array.ndim else value
