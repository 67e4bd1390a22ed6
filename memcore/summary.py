"""What the page says about an estimate, in words and small tables: verdict, methods side by side, phases, rules beside it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from . import rules
from .catalog import Device
from .estimate import MemoryBreakdown, estimate
from .ledger import LEDGER, TERMS
from .links import METHODS
from .scenario import QLORA_QUANTIZATION, Scenario
from .units import format_bytes, format_count, format_tokens

GROUPS = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer": "Optimizer",
    "activations": "Activations",
    "logits": "Logits and loss",
    "overhead": "Overhead",
}
"""The chart's colours, in the order they are stacked."""

PHASES = {
    "forward": "Forward",
    "loss": "Loss",
    "backward_loss": "Backward: loss",
    "backward_last_layer": "Backward: last layer",
    "backward_first_layer": "Backward: first layer",
    "backward_embedding": "Backward: embedding",
    "optimizer_step": "Optimizer step",
}

ALLOCATOR = "allocator"
CONTEXT = "context"
OUTSIDE = {
    ALLOCATOR: ("Allocator slack", "reserved - allocated", "Memory the caching allocator holds beyond the live tensors: rounding and fragmentation.", "torch.cuda.max_memory_reserved; calibrated on measured runs"),
    CONTEXT: ("CUDA context", "device - reserved", "Kernels, libraries and workspaces the driver loads before the first tensor.", "nvidia-smi less reserved; calibrated on measured runs"),
}
"""What a card must provide beyond the live tensors of the largest phase."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run fits, and by how much. [bytes]"""

    word: str
    """"fits", "tight" or "does not fit"."""
    needs: float
    low: float
    high: float
    has: float

    @property
    def spare(self) -> float:
        """Negative where it does not fit."""
        return self.has - self.needs


def verdict(breakdown: MemoryBreakdown, device: Device) -> Verdict:
    """Fits: even the band's high end does. Tight: the typical value does, the high end does not."""
    low, high = (float(end) for end in breakdown.device_band)
    needs, has = float(breakdown.device), float(device.usable_bytes)
    word = "fits" if high <= has else "tight" if needs <= has else "does not fit"
    return Verdict(word=word, needs=needs, low=low, high=high, has=has)


def sentence(v: Verdict, run: Scenario, device: Device, unit: str = "GiB") -> str:
    """The verdict in one sentence."""
    what = f"{METHODS[run.method]} on {short_name(run.model.name)}, {_count(run.micro_batch_size, 'sequence')} of {format_tokens(run.sequence_length)} tokens"
    where = f"{device.label}{'' if run.data_parallel_size == 1 else f' (each of {run.data_parallel_size})'}"
    needs, has = format_bytes(v.needs, unit), format_bytes(v.has, unit)
    if v.word == "fits":
        return f"{what}: needs {needs} of the {has} that a run may take on {where}; {format_bytes(v.spare, unit)} to spare."
    if v.word == "tight":
        return f"{what}: about {needs} of {has} on {where}, but it may take up to {format_bytes(v.high, unit)}."
    return f"{what}: needs {needs}, {format_bytes(-v.spare, unit)} more than the {has} that a run may take on {where}."


def short_name(name: str) -> str:
    return name.rpartition("/")[2]


def _count(n: int, word: str) -> str:
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def by_method(run: Scenario, quantization: str = QLORA_QUANTIZATION) -> dict[str, Scenario]:
    """The same run with each method; `quantization` is how qlora stores its weights."""
    return {method: run.replace(method=method, quantization=quantization if method == "qlora" else "none") for method in METHODS}


def terms(breakdown: MemoryBreakdown, phase: str = "") -> pd.DataFrame:
    """What the card must provide in a phase (the largest, if none is named), one row per term, with the table's columns."""
    phase = phase or breakdown.peak_phase
    rows = [
        dict(phase=phase, term=t.key, label=t.label, group=t.group, bytes=float(breakdown.phases[phase][t.key]), formula=t.formula, source=t.source, meaning=t.meaning)
        for t in TERMS
    ]
    beyond = {ALLOCATOR: breakdown.reserved - breakdown.allocated, CONTEXT: breakdown.device - breakdown.reserved}
    for key, (label, formula, meaning, source) in OUTSIDE.items():
        rows.append(dict(phase=phase, term=key, label=label, group="overhead", bytes=float(beyond[key]), formula=formula, source=source, meaning=meaning))
    table = pd.DataFrame(rows)
    table["share"] = table["bytes"] / table["bytes"].sum()
    return table


def stacks(breakdowns: dict[str, MemoryBreakdown]) -> pd.DataFrame:
    """Bytes by method and group at each method's own peak, with its total and band: what the bars show."""
    frames = []
    for method, b in breakdowns.items():
        sums = terms(b).groupby("group", sort=False)["bytes"].sum().reindex(list(GROUPS), fill_value=0.0)
        low, high = b.device_band
        frames.append(pd.DataFrame({"method": method, "group": sums.index, "bytes": sums.to_numpy(), "total": float(b.device), "low": float(low), "high": float(high)}))
    return pd.concat(frames, ignore_index=True)


def over_one_step(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """Live bytes by phase and group, and which phase is the largest."""
    rows = []
    for phase, held in breakdown.phases.items():
        sums = dict.fromkeys(GROUPS, 0.0)
        for key, value in held.items():
            sums[LEDGER[key].group] += float(value)
        rows += [dict(phase=phase, label=PHASES.get(phase, phase), group=g, bytes=v, total=float(breakdown.totals[phase])) for g, v in sums.items()]
    table = pd.DataFrame(rows)
    table["peak"] = table["phase"] == breakdown.peak_phase
    return table


def largest_part(breakdown: MemoryBreakdown) -> tuple[str, float]:
    """The group that holds most at the peak, and its share of what the card must provide."""
    sums = terms(breakdown).groupby("group")["bytes"].sum()
    return str(sums.idxmax()), float(sums.max() / sums.sum())


def published(run: Scenario, breakdown: MemoryBreakdown) -> pd.DataFrame:
    """The rule of thumb and the ledger of bytes per parameter beside the estimate, for each method. [bytes]"""
    return pd.DataFrame()


def why_different(breakdown: MemoryBreakdown, unit: str = "GiB") -> list[str]:
    """Why the rule of thumb says something else here, from the numbers of this run."""
    run = breakdown.run
    rule = rules.rule_of_thumb(run.method, breakdown.parameters)
    table = terms(breakdown)
    by_group = table.groupby("group")["bytes"].sum()
    scaling = float(by_group.get("activations", 0) + by_group.get("logits", 0))
    known = float(breakdown.device) - scaling
    reasons = []
    ratio = float(breakdown.device) / float(rule)
    if abs(ratio - 1) < 0.1:
        reasons.append(f"Here they agree within {abs(ratio - 1):.0%}.")
    else:
        reasons.append(f"The estimate is {ratio:.1f} times the rule of thumb." if ratio >= 1 else f"The estimate is {1 - ratio:.0%} below the rule of thumb.")
    tokens = f"{run.micro_batch_size:,} × {format_tokens(run.sequence_length)} tokens"
    reasons.append(
        f"The rule knows only {format_count(breakdown.parameters)} parameters. This run's {tokens} add {format_bytes(scaling, unit)} of activations and logits, "
        f"where the rule has a constant {format_bytes(rules.RULE[run.method, False][1], unit)}; everything else is {format_bytes(known, unit)}, "
        f"where it has {format_bytes(float(rule) - rules.RULE[run.method, False][1], unit)}."
    )
    return reasons


def change(now: float, before: float | None) -> float | None:
    """How much more is needed than before the last move; None where nothing moved."""
    return None if before is None or now == before else now - before


def signed(value: float, unit: str = "GiB") -> str:
    """With its sign: "+1.2 GiB", "-0.3 GiB"."""
    return f"{'+' if value >= 0 else '-'}{format_bytes(abs(value), unit)}"
