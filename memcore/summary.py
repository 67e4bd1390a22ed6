"""What the page says about an estimate, in words and small tables: verdict, methods side by side, phases, rules beside it.

Everything shown comes from here or from a table made here, so that the page itself does no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from . import catalog, rules
from .architecture import ModelArchitecture
from .catalog import Device
from .estimate import PHASE_LABELS, MemoryBreakdown
from .ledger import LEDGER
from .links import METHODS
from .scenario import QLORA_QUANTIZATION, Scenario
from .units import BYTE_UNITS, GB, GiB, format_bytes, format_count, format_tokens

IN_WORDS = {"full": "Full fine-tuning"}
"""Methods whose name does not stand alone in a sentence."""

GROUPS = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer": "Optimizer",
    "activations": "Activations",
    "logits": "Logits and loss",
    "overhead": "Overhead",
}
"""What the terms add up to: the colours of the charts, in the order they are stacked."""

LARGEST_PART = {"optimizer": "the optimizer's"}

PER_PARAMETER = ("weights", "gradients", "optimizer")
"""Groups that a number of bytes per parameter can describe."""

MEASURED = "calibrated on data/measured_runs.csv"
OUTSIDE = {
    "allocator_slack": (
        "Allocator slack",
        "Held by the caching allocator beyond the live tensors: rounding and fragmentation.",
        f"torch.cuda.max_memory_reserved(), {MEASURED}",
    ),
    "cuda_context": (
        "CUDA context",
        "Kernels and libraries that the driver loads before the first tensor.",
        f"nvidia-smi less reserved memory, {MEASURED}",
    ),
}
"""What a card must provide beyond live tensors: label, meaning, source."""


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
    """The verdict on a run in one sentence, to follow its word."""
    sequences = "1 sequence" if run.micro_batch_size == 1 else f"{run.micro_batch_size:,} sequences"
    method = IN_WORDS.get(run.method, METHODS[run.method])
    what = f"{method} of {short_name(run.model)}, {sequences} of {format_tokens(run.sequence_length)} tokens"
    name = f"{device.label[:1].lower()}{device.label[1:]} device" if device.kind == "custom" else device.label
    where = f"each of {run.gpus:,} {name}" if run.gpus > 1 else f"{'a' if device.kind == 'custom' else 'the'} {name}"
    needs, has, high = (format_bytes(n, unit) for n in (v.needs, v.has, v.high))
    if v.word == "fits":
        return f"{what}, needs {needs} of the {has} that {where} can give; {format_bytes(v.spare, unit)} to spare."
    if v.word == "tight":
        return f"{what}, needs about {needs} of the {has} that {where} can give, but may take up to {high}."
    return f"{what}, needs {needs}; that is {format_bytes(-v.spare, unit)} more than the {has} that {where} can give."


def peak_sentence(breakdown: MemoryBreakdown, unit: str = "GiB") -> str:
    """Where in the step the peak is, and what it mostly is."""
    sums = group_sums(breakdown, breakdown.peak_phase)
    group = max(sums, key=sums.__getitem__)
    part = f"{LARGEST_PART.get(group, GROUPS[group].lower())} ({format_bytes(sums[group], unit)})"
    return f"Its peak comes in “{PHASE_LABELS[breakdown.peak_phase]}”; its largest part is {part}."


def beside_the_card(breakdown: MemoryBreakdown, unit: str = "GiB") -> str:
    """What else the run needs: memory of the host, for each GPU; empty where it needs none."""
    host = float(breakdown.host)
    return f"For each GPU the host's memory holds another {format_bytes(host, unit)}." if host else ""


def short_name(model: ModelArchitecture) -> str:
    """The model's name without its owner."""
    return model.name.rpartition("/")[2]


def change(now: float, before: float | None) -> float | None:
    """How much more is needed than before the last move; None where there was none."""
    return None if before is None or now == before else now - before


def signed(value: float, unit: str = "GiB") -> str:
    """With its sign: "+1.20 GiB", "-0.300 GiB"."""
    return f"{'+' if value >= 0 else '-'}{format_bytes(abs(value), unit)}"


def by_method(run: Scenario, quantization: str = QLORA_QUANTIZATION) -> dict[str, Scenario]:
    """The same run with each method; `quantization` is how qlora stores its weights."""
    return {method: run.replace(method=method, quantization=quantization if method == "qlora" else "none") for method in METHODS}


def group_sums(breakdown: MemoryBreakdown, phase: str) -> dict[str, float]:
    """Live bytes of a phase by group."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for key, value in breakdown.phases[phase].items():
        sums[LEDGER[key].group] += float(value)
    return sums


def terms(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """All that a card must provide at the peak, one row per term; the shares are of what the run needs."""
    frame = breakdown.to_frame()
    table = frame[frame["peak"]].drop(columns=["peak"])
    phase, label = breakdown.peak_phase, PHASE_LABELS[breakdown.peak_phase]
    allocated, reserved, device = (float(n) for n in (breakdown.allocated, breakdown.reserved, breakdown.device))
    sizes = {
        "allocator_slack": (reserved, allocated, "reserved", "allocated"),
        "cuda_context": (device, reserved, "on the device", "reserved"),
    }
    beyond = []
    for key, (whole, part, of, less) in sizes.items():
        name, meaning, source = OUTSIDE[key]
        formula = f"{whole:,.0f} {of} - {part:,.0f} {less}"
        beyond.append(
            {
                "phase": phase,
                "phase_label": label,
                "term": key,
                "label": name,
                "group": "overhead",
                "bytes": whole - part,
                "formula": formula,
                "meaning": meaning,
                "source": source,
            }
        )
    table = pd.concat([table, pd.DataFrame(beyond)], ignore_index=True)
    table["share"] = table["bytes"] / table["bytes"].sum()
    table.insert(table.columns.get_loc("bytes") + 1, "gib", table["bytes"] / GiB)
    return table


def stacks(breakdowns: dict[str, MemoryBreakdown]) -> pd.DataFrame:
    """Bytes by method and group at each method's own peak, with what it needs and the band: what the bars show."""
    rows = []
    for method, b in breakdowns.items():
        sums = group_sums(b, b.peak_phase)
        sums["overhead"] += float(b.device - b.allocated)
        low, high = (float(end) for end in b.device_band)
        rows += [{"method": method, "group": g, "bytes": v, "total": float(b.device), "low": low, "high": high} for g, v in sums.items()]
    return pd.DataFrame(rows)


def over_one_step(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """Live bytes by phase and group, and which phase is the largest."""
    peak = breakdown.peak_phase
    return pd.DataFrame(
        [
            {
                "phase": phase,
                "label": PHASE_LABELS[phase],
                "group": group,
                "bytes": value,
                "total": float(breakdown.totals[phase]),
                "peak": phase == peak,
            }
            for phase in breakdown.phases
            for group, value in group_sums(breakdown, phase).items()
        ]
    )


def room_for_tensors(breakdown: MemoryBreakdown, device: Device) -> float:
    """What the device leaves for live tensors once the allocator and the CUDA context of this run have theirs. [bytes]"""
    return max(float(device.usable_bytes - (breakdown.device - breakdown.allocated)), 0.0)


def published(breakdowns: dict[str, MemoryBreakdown]) -> pd.DataFrame:
    """The estimate and the rule of thumb for each method, and their ratio. [decimal GB, as published]"""
    rows = []
    for method, b in breakdowns.items():
        rule = float(rules.rule_of_thumb(method, b.parameters))
        rows.append({"method": method, "estimate_gb": float(b.device) / GB, "rule_gb": rule / GB, "ratio": float(b.device) / rule})
    return pd.DataFrame(rows)


def ledger(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """The ledger of bytes per parameter for this run's recipe, and what the estimate holds of the same things. [decimal GB]"""
    run = breakdown.run
    book = rules.parameter_ledger(run.model.parameters, run.precision, run.method, int(breakdown.trainable_parameters))
    held = {key: max(float(phase[key]) for phase in breakdown.phases.values()) for key in LEDGER}
    rows = [
        ("Weights", book.weights, held["weights"] + held["adapters"]),
        ("Gradients", book.gradients, held["gradients"]),
        ("Float32 master copy", book.master_weights, held["master_weights"]),
        ("Adam's two moments", book.moments, held["optimizer_states"]),
    ]
    rows.append(("Together", book.total, sum(row[2] for row in rows)))
    return pd.DataFrame(
        [
            {"part": p, "per_parameter": float(b) / run.model.parameters, "ledger_gb": float(b) / GB, "estimate_gb": e / GB}
            for p, b, e in rows
        ]
    )


def why_different(breakdown: MemoryBreakdown) -> list[str]:
    """Why the rule of thumb says something else here, from the numbers of this run; decimal GB, as the rule is published."""
    run, device = breakdown.run, float(breakdown.device)
    slope, constant = rules.RULE[run.method, False]
    rule = float(rules.rule_of_thumb(run.method, breakdown.parameters))
    sums = group_sums(breakdown, breakdown.peak_phase)
    per_parameter = sum(sums[g] for g in PER_PARAMETER) / breakdown.parameters
    tokens = sums["activations"] + sums["logits"]
    overhead = sums["overhead"] + float(breakdown.device - breakdown.allocated)
    recipe = (catalog.quantizations()[run.quantization] if run.method == "qlora" else catalog.precisions()[run.precision]).label
    batch = f"{run.micro_batch_size:,} × {format_tokens(run.sequence_length)} tokens"
    return [
        f"{_times(device / rule)} the rule of thumb: {format_bytes(device, 'GB')} against {format_bytes(rule, 'GB')}.",
        f"For each of the {format_count(breakdown.parameters)} parameters the rule counts {slope:g} bytes; "
        f"this run holds {per_parameter:.2f} at its peak ({recipe}).",
        f"On top the rule has {format_bytes(constant, 'GB')}, whatever the run; here {batch} take, at the peak, "
        f"{format_bytes(tokens, 'GB')} of activations and logits, and overhead {format_bytes(overhead, 'GB')}.",
    ]


def _times(ratio: float) -> str:
    if abs(ratio - 1) < 0.05:
        return "The estimate agrees with"
    return f"The estimate is {ratio:.1f} times" if ratio > 1 else f"The estimate is {1 - ratio:.0%} below"


def shown_terms(table: pd.DataFrame, unit: str = "GiB") -> pd.DataFrame:
    """`terms` as the page prints it."""
    return pd.DataFrame(
        {
            "Term": table["label"],
            unit: (table["bytes"] / BYTE_UNITS[unit]).map("{:,.3f}".format),
            "Share": table["share"].map("{:.1%}".format),
            "Bytes": table["bytes"].map("{:,.0f}".format),
            "Formula": table["formula"],
            "What it is, and source": [
                f"{meaning}  \n:gray[{source}]" for meaning, source in zip(table["meaning"], table["source"], strict=True)
            ],
        }
    )


def shown_published(breakdowns: dict[str, MemoryBreakdown]) -> pd.DataFrame:
    """`published` as the page prints it."""
    table = published(breakdowns)
    one = "{:,.1f}".format
    return pd.DataFrame(
        {
            "Method": table["method"].map(METHODS),
            "Estimate": table["estimate_gb"].map(one),
            "Rule of thumb": table["rule_gb"].map(one),
            "Ratio": table["ratio"].map("{:.2f}".format),
        }
    )


def shown_ledger(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """`ledger` as the page prints it."""
    table = ledger(breakdown)
    one = "{:,.1f}".format
    return pd.DataFrame(
        {
            "Part": table["part"],
            "Bytes per parameter": table["per_parameter"].map("{:.2f}".format),
            "Ledger": table["ledger_gb"].map(one),
            "This run": table["estimate_gb"].map(one),
        }
    )
