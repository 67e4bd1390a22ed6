"""What the page says about changes to a run: the plan that makes it fit, what each change saves, and how far a device goes.

The answers are `advice`'s, the solver's and the sweep's; here they become sentences and small tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from . import catalog, configs, matrix, solver
from .advice import Plan, Remedy, advise, cheapest_plan, uses_host
from .catalog import Device
from .estimate import estimate
from .links import METHODS
from .remedies import GIVES_UP
from .scenario import Scenario, ScenarioError
from .summary import verdict
from .timing import REFERENCE, SOURCE, describe_ratio, duration
from .units import BYTE_UNITS, format_bytes, format_count, format_tokens

STRICTER = 0.97
"""A tight run's plan is asked for with this much less memory each time the band's high end still does not fit."""

TRIES = 4

AXES = {
    "sequence_length": "Sequence length",
    "micro_batch_size": "Micro batch",
    "lora_rank": "LoRA rank",
    "model": "Model size",
}
"""What memory can be drawn against."""
SHORT_AXES = {"sequence_length": "Length", "micro_batch_size": "Batch", "lora_rank": "Rank", "model": "Model size"}
AXIS_UNITS = {
    "sequence_length": "tokens",
    "micro_batch_size": "sequences per GPU",
    "lora_rank": "columns",
    "model": "parameters of a Llama-shaped model",
}

PER_OCTAVE = 3
"""Lengths between two powers of two at which the frontier is asked for."""

EXACT_BATCHES = (1, 2, 3, 4)
"""Batches whose longest length is drawn exactly."""

SHORTEST, LONGEST = 128, 2**20
MOST_BATCH = 4096
LARGEST_RANK = 1024
MODEL_SIZES = tuple(int(1e8 * 2 ** (k / 2)) for k in range(27))
"""From 100 million to 800 billion parameters."""


# ---- what makes it fit


@lru_cache(maxsize=1024)
def remedies(run: Scenario, device: Device) -> tuple[Remedy, ...]:
    return tuple(advise(run, device))


@lru_cache(maxsize=1024)
def plan_to_fit(run: Scenario, device: Device) -> Plan | None:
    """The cheapest set of changes that makes a run fit; for a tight one, even at the band's high end. None where no set does."""
    now = estimate(run)
    v = verdict(now, device)
    if v.word != "tight":
        return cheapest_plan(run, device)
    budget = v.has * v.needs / v.high
    for _ in range(TRIES):
        plan = cheapest_plan(run, replace(device, usable_bytes=budget))
        if plan is None or verdict(estimate(plan.run), device).word == "fits":
            return plan
        budget *= STRICTER
    return None


def plan_sentence(run: Scenario, plan: Plan, device: Device, unit: str = "GiB") -> str:
    """What the plan changes, what that brings and what it costs; Markdown."""
    labels = [_inside(remedy.label) if i else remedy.label for i, remedy in enumerate(plan.remedies)]
    now, then = (format_bytes(n, unit) for n in (float(estimate(run).device), plan.needs))
    word = verdict(estimate(plan.run), device).word
    aim = "To be sure it fits" if verdict(estimate(run), device).word == "tight" else "To make it fit"
    return f"{aim}: **{' + '.join(labels)}**: {now} → {then}, {word}. {price(plan)}"


def _inside(label: str) -> str:
    """As it reads inside a sentence: "Lower rank" as "lower rank", "QLoRA" as it is."""
    return label[:1].lower() + label[1:] if label[1:2].islower() else label


def price(plan: Plan) -> str:
    """What a plan costs: time, and the dearest thing it gives up."""
    time = describe_ratio(plan.time_ratio)
    dearest = max((remedy.gives_up for remedy in plan.remedies), key=GIVES_UP.index)
    if dearest == GIVES_UP[0]:
        host = "; takes some of the PC's memory" if uses_host(plan.run) else ""
        return f"Gives up nothing, about as fast{host}." if time == "about as fast" else f"Costs only time: {time}{host}."
    return f"Gives up {dearest}; {time}."


def nothing_helps(run: Scenario, device: Device, unit: str = "GiB") -> tuple[str, Device | None]:
    """What to say where no set of changes makes it fit, and the smallest device on which the run fits as it is."""
    name = matrix.smallest(run)
    larger = catalog.devices()[name] if name else None
    gpus = solver.fewest_gpus(run, device) if run.gpus_of_a_replica == 1 else None
    ways = []
    if gpus:
        ways.append(f"with everything sharded it takes {gpus:,} of this device")
    if larger:
        ways.append(f"as it is it fits on {larger.label} ({format_bytes(larger.usable_bytes, unit)})")
    elsewhere = f" {'; '.join(ways)[:1].upper()}{'; '.join(ways)[1:]}." if ways else " Nor does any device of the catalog."
    return f"No three changes together make it fit here.{elsewhere}", larger


def effect(remedy: Remedy, device: Device, unit: str = "GiB") -> str:
    """What a change brings, in figures."""
    verb = "saves" if remedy.saves >= 0 else "takes another"
    word = verdict(estimate(remedy.run), device).word
    return f"{verb} {format_bytes(abs(remedy.saves), unit)}, then needs {format_bytes(remedy.needs, unit)}: {word}"


def cost(remedy: Remedy) -> str:
    """What a change costs: time, what is given up, and its price in words."""
    time = describe_ratio(remedy.time_ratio)
    said = "" if time in remedy.price.lower() else f"{time[:1].upper()}{time[1:]}. "
    given_up = "" if remedy.gives_up == GIVES_UP[0] else f"Gives up {remedy.gives_up}: "
    rest = _inside(remedy.price) if given_up else remedy.price
    return f"{said}{given_up}{rest}"


def remedies_table(found: Sequence[Remedy]) -> pd.DataFrame:
    """Every remedy as a row, for the file. [bytes]"""
    return pd.DataFrame(
        [
            {
                "remedy": r.key,
                "label": r.label,
                "changes": " ".join(f"{k}={v.name if hasattr(v, 'name') else v}" for k, v in r.changes.items()),
                "needs_bytes": r.needs,
                "saves_bytes": r.saves,
                "fits": r.fits,
                "helps": r.helps,
                "reason": r.reason,
                "price": r.price,
                "time_ratio": r.time_ratio,
                "gives_up": r.gives_up,
                "time_source": r.time_source,
                "source": r.source,
            }
            for r in found
        ]
    )


# ---- how far it goes


def frontier_lengths(run: Scenario, budget: float) -> np.ndarray:
    """Lengths to ask for: from short to far beyond the run's own, some to each octave, its own, and both sides of every step of the
    small batches."""
    last = min(max(16 * int(run.sequence_length), 2**15), LONGEST)
    grid = np.round(2 ** np.arange(np.log2(SHORTEST), np.log2(last) + 1e-9, 1 / PER_OCTAVE))
    edges = np.asarray(solver.largest(run.replace(micro_batch_size=np.array(EXACT_BATCHES, dtype=np.float64)), "sequence_length", budget))
    steps = np.concatenate([edges, edges + 1])
    return np.unique(np.concatenate([grid, steps[(steps > SHORTEST) & (steps < last)], [float(run.sequence_length)]]))


def frontier(runs: dict[str, Scenario], budget: float) -> pd.DataFrame:
    """The largest micro batch that fits at each length, for each method: 0 where not even one sequence does."""
    lengths = np.unique(np.concatenate([frontier_lengths(run, budget) for run in runs.values()]))
    batches = [solver.largest(run.replace(sequence_length=lengths), "micro_batch_size", budget) for run in runs.values()]
    return pd.DataFrame(
        {
            "method": np.repeat(list(runs), len(lengths)),
            "sequence_length": np.tile(lengths.astype(np.int64), len(runs)),
            "micro_batch_size": np.concatenate([np.broadcast_to(b, lengths.shape) for b in batches]),
        }
    )


def furthest(run: Scenario, budget: float) -> str:
    """How far the sizes of a run can be raised, one at a time, in one sentence."""
    length = solver.largest(run, "sequence_length", budget)
    batch = solver.largest(run, "micro_batch_size", budget)
    method, own_batch, own_length = (
        METHODS[run.method],
        f"micro batch {run.micro_batch_size:,}",
        f"{format_tokens(run.sequence_length)} tokens",
    )
    if not (length or batch):
        return f"{method} does not fit here: not with {own_batch} at any length, nor with {own_length} at any micro batch."
    if not batch:
        return f"{method} does not fit here with {own_length}, whatever the micro batch; with {own_batch} it fits up to {length:,} tokens."
    if not length:
        return f"{method} does not fit here with {own_batch}, however short the sequences; with {own_length} it fits up to micro batch {batch:,}."
    return f"{method} fits here with {own_length} up to micro batch {batch:,}, and with {own_batch} up to {length:,} tokens."


def shown_frontier(table: pd.DataFrame, own: int) -> pd.DataFrame:
    """The largest micro batch at the powers of two and at the run's own length, a column for each method."""
    rows = table[[_is_power_of_two(n) or n == own for n in table["sequence_length"]]]
    wide = rows.pivot(index="sequence_length", columns="method", values="micro_batch_size")
    shown = pd.DataFrame({"Sequence length": [format_tokens(n) for n in wide.index]})
    for method in METHODS:
        shown[METHODS[method]] = [f"{n:,}" if n else "none" for n in wide[method]]
    return shown


def curves(runs: dict[str, Scenario], axis: str) -> pd.DataFrame:
    """What each method needs as one thing grows: length, micro batch, rank, or the size of a Llama-shaped model. [bytes]"""
    return pd.concat([pd.DataFrame({"method": m} | _curve(run, axis)) for m, run in runs.items()], ignore_index=True)


def _curve(run: Scenario, axis: str) -> dict[str, Sequence[float]]:
    if axis == "model":
        sized = [(model.parameters, changed) for model in _llamas() if (changed := _with(run, model)) is not None]
        return {"value": [size for size, _ in sized], "bytes": [float(estimate(changed).device) for _, changed in sized]}
    largest = {"sequence_length": LONGEST, "micro_batch_size": MOST_BATCH, "lora_rank": LARGEST_RANK}[axis]
    smallest = SHORTEST if axis == "sequence_length" else 1
    grid = np.unique(np.round(2 ** np.arange(np.log2(smallest), np.log2(largest) + 1e-9, 0.5)))
    values = np.unique(np.append(grid, float(getattr(run, axis))))
    return {"value": values, "bytes": np.broadcast_to(estimate(run.replace(**{axis: values})).device, values.shape)}


@lru_cache(maxsize=1)
def _llamas() -> tuple:
    return tuple(configs.custom_model(size) for size in MODEL_SIZES)


def _with(run: Scenario, model: object) -> Scenario | None:
    """With adapters of a Llama's own modules: the names of another family's mean nothing to it."""
    try:
        return run.replace(model=model, lora_target_modules="all-linear")
    except ScenarioError:
        return None


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of `curves` worth drawing: up to a few times what the device has."""

    low: float
    high: float
    last: float
    """The largest value at which a method is still within it."""


def window(table: pd.DataFrame, needs: float, has: float) -> Window:
    high = 4 * max(needs, has)
    seen = table[table["bytes"] <= high]
    last = float(seen["value"].max()) if len(seen) else float(table["value"].max())
    return Window(low=float(min(table["bytes"].min(), has)) / 1.3, high=high, last=last)


def shown_curves(table: pd.DataFrame, axis: str, own: float, unit: str = "GiB") -> pd.DataFrame:
    """The curves at round values and at the run's own, a column for each method."""
    rows = table if axis == "model" else table[[_is_power_of_two(int(n)) or n == own for n in table["value"]]]
    wide = rows.pivot(index="value", columns="method", values="bytes")
    shown = pd.DataFrame({AXES[axis]: [axis_label(axis, n) for n in wide.index]})
    for method in METHODS:
        shown[f"{METHODS[method]} ({unit})"] = ["" if np.isnan(n) else f"{n / BYTE_UNITS[unit]:,.2f}" for n in wide[method]]
    return shown


def axis_label(axis: str, value: float) -> str:
    """A value of an axis as its tick says it."""
    if axis == "model":
        return format_count(value)
    return format_tokens(int(value)) if axis == "sequence_length" else f"{int(value):,}"


def own_value(run: Scenario, axis: str) -> float:
    """Where a run stands on an axis."""
    return float(run.model.parameters if axis == "model" else getattr(run, axis))


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


# ---- how long it takes


def durations(runs: dict[str, Scenario], tokens: float, device: Device, utilisation: float, price: float) -> pd.DataFrame:
    """Estimated hours and cost of a number of tokens with each method."""
    rows = []
    for method, run in runs.items():
        plan = duration(run, tokens, device, utilisation, price)
        per_second = tokens / (plan.hours * 3600) if plan.hours else 0.0
        rows.append({"method": method, "tokens_per_second": per_second, "hours": plan.hours, "gpu_hours": plan.gpu_hours, "cost": plan.cost})
    return pd.DataFrame(rows)


def shown_durations(table: pd.DataFrame) -> pd.DataFrame:
    shown = {
        "Method": table["method"].map(METHODS),
        "Tokens per second": table["tokens_per_second"].map("{:,.0f}".format),
        "Hours": table["hours"].map(format_hours),
        "GPU hours": table["gpu_hours"].map(format_hours),
    }
    if (table["cost"] > 0).any():
        shown["Cost"] = table["cost"].map("{:,.2f}".format)
    return pd.DataFrame(shown)


def format_hours(hours: float) -> str:
    """Two digits: an estimate has no more."""
    return f"{hours:,.0f}" if hours >= 9.5 else f"{hours:.2g}"


def speed_note(device: Device, utilisation: float) -> str:
    """What the hours rest on."""
    share = f"{utilisation:.0%} of its data sheet's speed"
    if device.bf16_dense_tflops and device.bandwidth_gb_s:
        on = f"{device.label} at {share} ({device.bf16_dense_tflops:,.4g} TFLOPS in 16 bits, {device.bandwidth_gb_s:,.4g} GB/s)"
    else:
        other = catalog.devices()[REFERENCE]
        on = f"{other.label} at {share}, because the speed of {device.label} is not known"
    known = "The published runs it was held against reach 45 to 56 %; small batches and small GPUs reach less."
    return f"An estimate for {on}, from {SOURCE}. {known} Loading, evaluation and waiting are left out."
