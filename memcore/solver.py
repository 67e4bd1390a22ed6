"""Inverse questions, answered by asking `estimate`: the largest batch, length, rank or model, the smallest device, the fewest GPUs.

A question about one size is answered by estimating many sizes at once and closing in. Every answer is an estimate's;
`at_least` is a bound below it, which only spares asking of models far too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import catalog, configs, program
from .architecture import Block, Linear, ModelArchitecture
from .catalog import Device
from .estimate import basis_of, estimate, evaluate
from .scenario import LARGEST, NUMERIC, Numeric, Scenario, ScenarioError
from .tape import BASIS
from .units import FLOAT32, HALF

FIELDS = ("micro_batch_size", "sequence_length", "lora_rank")
"""The fields `largest` answers for."""

EACH_UP_TO = 8
"""Sizes up to here are all estimated, beyond them every doubling, before closing in."""

MOST_GPUS = 1024

CUSTOM_SIZES = tuple(int(1e6 * 2 ** (k / 4)) for k in range(84))
"""Sizes from a million to two trillion parameters between which the continuous answer is interpolated."""

LOGIT_BYTES = HALF + FLOAT32
"""16-bit logits and their float32 copy exist at once in every library, unless its loss is fused with the head or chunked."""


def largest(run: Scenario, field: str, budget: Numeric) -> int | np.ndarray:
    """The largest value of a field with which the run fits.

    The answer fits and one more does not. Memory grows with each of these fields, save for a step down where another
    kernel takes over (a sliding window that the sequence reaches): the answer is then the largest value that fits, even
    if some below it do not.

    Parameters
    ----------
    run : Scenario
        The run; its own value of `field` does not matter. Where other fields are arrays, so is the answer.
    field : str
        "micro_batch_size", "sequence_length" or "lora_rank".
    budget : float or array
        What `estimate(run).device` may be. [bytes]

    Returns
    -------
    int, or array of int64
        0 where not even 1 fits; the largest value a Scenario takes (`scenario.LARGEST`) where that fits too.
    """
    if field not in FIELDS:
        raise ScenarioError(f"field ({field!r}) must be one of {', '.join(FIELDS)}")
    budget = _bytes(budget)
    shape = np.broadcast_shapes(budget.shape, *(np.shape(getattr(run, name)) for name in NUMERIC if name != field))

    def fit(sizes: np.ndarray) -> np.ndarray:
        return estimate(run.replace(**{field: sizes})).device <= budget

    sizes = _first_look(run.model, field).reshape(-1, *(1,) * len(shape))
    low, high = _around_last_fit(np.broadcast_to(sizes, (len(sizes), *shape)), fit(sizes), LARGEST[field] + 1.0)
    parts = 64 if not shape else 8
    steps = np.arange(1, parts).reshape(-1, *(1,) * len(shape)) / parts
    while (high - low > 1).any():
        sizes = np.clip(np.floor(low + (high - low) * steps), np.maximum(low, 1), np.maximum(high - 1, 1))
        between_low, between_high = _around_last_fit(sizes, fit(sizes), high)
        low, high = np.maximum(low, between_low), between_high
    return low.astype(np.int64) if shape else int(low)


def _bytes(budget: Numeric) -> np.ndarray:
    """A budget, or several, as numbers that can be compared with."""
    given = np.asarray(budget)
    if given.dtype.kind not in "iuf" or not (given >= 0).all():
        raise ScenarioError(f"budget ({budget!r}) must be a number of bytes, 0 or more")
    return given.astype(np.float64)


def _around_last_fit(sizes: np.ndarray, fit: np.ndarray, end: Numeric) -> tuple[np.ndarray, np.ndarray]:
    """The last size along the first axis that fits (0: none does) and the next one, `end` after the last."""
    fit = np.broadcast_to(fit, sizes.shape)
    low = np.where(fit, sizes, 0).max(axis=0)
    high = np.where(sizes > low, sizes, np.inf).min(axis=0)
    return low, np.minimum(high, end)


@lru_cache(maxsize=512)
def _first_look(model: ModelArchitecture, field: str) -> np.ndarray:
    """Sizes between which memory only grows: a few, and both sides of every sliding window."""
    limit = LARGEST[field]
    grid = {*range(1, EACH_UP_TO + 1), *(2**k for k in range(limit.bit_length())), limit}
    if field == "sequence_length":
        windows = {block.attention.sliding_window for block in model.distinct_layers if block.attention is not None}
        grid |= {window + i for window in windows for i in (-1, 0, 1)}
    return np.array(sorted(n for n in grid if 1 <= n <= limit), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class LargestModel:
    """The largest model that can be trained within a budget."""

    model: ModelArchitecture | None
    """Of the catalog, by parameters; None where none fits."""
    needs: float
    """What that model needs on the device; where none fits, what `smallest` needs. [bytes]"""
    parameters: float
    """Size of a Llama-shaped model that would just fit; 0 where none does."""
    smallest: ModelArchitecture | None = None
    """The catalog model that needs least, where none fits."""


def largest_model(run: Scenario, budget: float) -> LargestModel:
    """The largest model that `run.method` can train within so many bytes, everything else as in `run`.

    Of models of equal size, the one listed first. With named `lora_target_modules` only models that have all of them are
    considered.
    """
    budget = float(_bytes(budget))
    models, bounds = bounded(run)
    for i in np.flatnonzero(bounds <= budget):
        needs = float(estimate(run.replace(model=models[i])).device)
        if needs <= budget:
            return LargestModel(model=models[i], needs=needs, parameters=continuous_size(run, budget))
    smallest, needs = smallest_need(run)
    return LargestModel(model=None, needs=needs, parameters=continuous_size(run, budget), smallest=smallest)


def smallest_need(run: Scenario) -> tuple[ModelArchitecture | None, float]:
    """The catalog model that needs least under these settings, and how much. [bytes]"""
    models, bounds = bounded(run)
    best, model = np.inf, None
    for i in np.argsort(bounds, kind="stable"):
        if bounds[i] >= best:
            break
        needs = float(estimate(run.replace(model=models[i])).device)
        if needs < best:
            best, model = needs, models[i]
    return model, best


def continuous_size(run: Scenario, budget: float) -> float:
    """Parameters of a Llama-shaped model (`configs.custom_model`) that would just fit, everything else as in the run.

    Between two sizes of a ladder, one that fits and the next that does not, along a straight line; 0 where none fits.
    """
    ladder = [candidate for size in CUSTOM_SIZES if (candidate := _custom(run, size)) is not None]

    def needs(i: int) -> float:
        return float(estimate(ladder[i]).device)

    low, high = -1, len(ladder)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) <= budget else (low, middle)
    if low < 0:
        return 0.0
    size = ladder[low].model.parameters
    if high == len(ladder):
        return float(size)
    below, above = needs(low), needs(high)
    return size + (ladder[high].model.parameters - size) * (budget - below) / (above - below)


def at_least(run: Scenario) -> float:
    """Bytes the run cannot do with less of, found without running its operations: far too large a model is told by this.

    What is stored, and as the backward pass begins the 16-bit inputs of all layers but the first, and the logits.
    """
    if run.objective == "reward":  # without the head that is counted among what is stored
        return 0.0
    return float(np.min(evaluate(program.stored(run), basis_of(run)) + run.tokens * _width(run)))


def _width(run: Scenario) -> int:
    """Bytes per token of that."""
    if run.gpus_of_a_replica > 1 or run.activation_offload:
        return 0
    logits = LOGIT_BYTES * run.model.vocab_size if run.loss == "full-logits" else 0
    inputs = HALF * run.model.hidden_size * (len(run.model.layers) - 1)
    return logits + (inputs if run.gradient_checkpointing != "none" else _kept_at_least(run.model))


def bounded(run: Scenario) -> tuple[tuple[ModelArchitecture, ...], np.ndarray]:
    """Every model the run could have, largest first, and `at_least` of each, all at once."""
    models, stored, widths = _bounds(*(getattr(run, name) for name in program.CHOICES if name != "model"))
    if run.objective == "reward":
        return models, np.zeros(len(models))
    return models, evaluate(stored, basis_of(run)) + run.tokens * widths


@lru_cache(maxsize=64)
def _bounds(*choices: object) -> tuple[tuple[ModelArchitecture, ...], np.ndarray, np.ndarray]:
    given = dict(zip([name for name in program.CHOICES if name != "model"], choices, strict=True))
    runs = []
    for model in _by_size():
        try:
            runs.append(Scenario(model=model, **given))
        except ScenarioError:  # its modules have other names
            continue
    stored = np.array([program.stored(run) for run in runs]).reshape(len(runs), len(BASIS))
    return tuple(run.model for run in runs), stored, np.array([_width(run) for run in runs], dtype=np.float64)


@lru_cache(maxsize=1024)
def _kept_at_least(model: ModelArchitecture) -> int:
    """Bytes per token that all layers but one keep without checkpointing, whatever the method and kernels: q, k and v, which every
    kernel of attention keeps; and both factors of a gated MLP's product, or the input of an activation alone."""
    kept = {block: HALF * (_projected(block) + _activated(block)) for block in model.distinct_layers}
    return sum(kept[block] for block in model.layers) - max(kept.values(), default=0)


def _projected(block: Block) -> int:
    """Widths of q, k and v together."""
    shape = block.attention
    return shape.query_size + shape.key_size + shape.value_size if shape is not None and "attention" in block.mixers else 0


def _activated(block: Block) -> int:
    """Width of the MLP, twice where it is gated."""
    by_role = {m.role: m for m in block.modules if isinstance(m, Linear)}
    return by_role["down"].in_features * (2 if "gate" in by_role else 1) if "down" in by_role else 0


@lru_cache(maxsize=1)
def _by_size() -> tuple[ModelArchitecture, ...]:
    """The catalog's models, largest first; of equal ones the first listed first."""
    return tuple(sorted(readable_models(), key=lambda model: -model.parameters))


def readable_models() -> Iterator[ModelArchitecture]:
    """The catalog's models whose config memcore understands, in its order."""
    for name in catalog.models():
        try:
            yield catalog.model(name)
        except configs.ConfigError:
            continue


def _with_model(run: Scenario, model: ModelArchitecture) -> Scenario | None:
    try:
        return run.replace(model=model)
    except ScenarioError:  # its modules have other names
        return None


@lru_cache(maxsize=512)
def _custom_model(size: int) -> ModelArchitecture:
    return configs.custom_model(size)


def _custom(run: Scenario, size: int) -> Scenario | None:
    """The run with a Llama-shaped model; adapters of its attention stand for target modules it has not."""
    model = _custom_model(size)
    candidate = _with_model(run, model)
    if candidate is None and run.lora_target_modules != "all-linear":
        candidate = _with_model(run.replace(lora_target_modules="all-linear"), model)
        return candidate and candidate.replace(lora_target_modules=("q_proj", "v_proj"))
    return candidate


def smallest_device(run: Scenario, kinds: tuple[str, ...] = ()) -> Device | None:
    """The catalog's device with the least usable memory on which the run fits, of some kinds or of all; None if none."""
    needs = float(estimate(run).device)
    enough = [d for d in catalog.devices().values() if d.usable_bytes >= needs and (not kinds or d.kind in kinds)]
    return min(enough, key=lambda device: device.usable_bytes, default=None)


def fewest_gpus(run: Scenario, device: Device) -> int | None:
    """The fewest such devices on which the run fits, with everything sharded among them; None where no number of them is enough.

    Each keeps the run's micro batch, so the global batch grows with them.
    """
    if estimate(run.replace(data_parallel_size=1, sharding="none")).device <= device.usable_bytes:
        return 1
    sharding = run.sharding if catalog.shardings()[run.sharding].shards_weights else "fsdp"
    gpus = np.arange(2.0, MOST_GPUS + 1)
    fit = np.broadcast_to(estimate(run.replace(data_parallel_size=gpus, sharding=sharding)).device <= device.usable_bytes, gpus.shape)
    return int(gpus[fit.argmax()]) if fit.any() else None
