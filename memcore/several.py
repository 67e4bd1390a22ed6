"""What a run on several GPUs says of itself: what they divide and what each holds whole, stage by stage, and in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from . import catalog, parallel, solver, summary
from .catalog import Device
from .estimate import MemoryBreakdown, basis_of, estimate, stages
from .ledger import TERMS
from .links import METHODS
from .scenario import LARGEST, Scenario, ScenarioError
from .summary import GROUPS
from .tape import BASIS
from .units import GiB, format_bytes

KINDS = {
    "divided": "Divided among them",
    "whole": "Whole on each",
    "tokens": "For its own tokens",
}
"""What becomes of a part when there are more GPUs: it shrinks, it stays, it stays because each has its own micro batch."""
DIVIDED, WHOLE = ("1/n", "rank/n"), ("1", "1, n>1", "rank")
USUAL_RAM = tuple(size * GiB for size in (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192))
"""Machines are sold with so much memory."""
MOST_BARS = 12
NOTHING = 0.001
"""Of what a run needs: a smaller change is none."""


def kind_of(basis: str) -> str:
    """What becomes of what grows with a size of BASIS."""
    return "divided" if basis in DIVIDED else "whole" if basis in WHOLE else "tokens"


def by_kind(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """Live bytes at the peak by kind and group: kind, label, group, bytes, total of the kind."""
    coefficients = breakdown.coefficients(breakdown.peak_phase)
    sums = {(kind, group): 0.0 for kind in KINDS for group in GROUPS}
    for row, term in zip(coefficients, TERMS, strict=True):
        for c, name, value in zip(row, BASIS, basis_of(breakdown.run), strict=True):
            sums[kind_of(name), term.group] += float(c) * float(value)
    totals = {kind: sum(size for (k, _), size in sums.items() if k == kind) for kind in KINDS}
    return pd.DataFrame([{"kind": k, "label": KINDS[k], "group": g, "bytes": size, "total": totals[k]} for (k, g), size in sums.items()])


def totals(breakdown: MemoryBreakdown) -> dict[str, float]:
    """Live bytes at the peak by kind."""
    return by_kind(breakdown).groupby("kind", sort=False)["bytes"].sum().to_dict()


def stage_name(run: Scenario, index: int) -> str:
    """A pipeline stage in words: "Stage 1: embedding, layers 1 to 16"."""
    first, stop = parallel.stage_span(len(run.model.layers), index, run.pipeline_parallel_size)
    layers = f"layer {stop}" if stop - first == 1 else f"layers {first + 1} to {stop}"
    ends = ("embedding, " if index == 0 else "", ", head" if index == run.pipeline_parallel_size - 1 else "")
    return f"Stage {index + 1}: {ends[0]}{layers}{ends[1]}"


def by_stage(run: Scenario) -> dict[str, MemoryBreakdown]:
    """One GPU of each pipeline stage, by its name."""
    return {stage_name(run, i): breakdown for i, breakdown in enumerate(stages(run))}


def shown(found: Mapping[str, MemoryBreakdown]) -> dict[str, MemoryBreakdown]:
    """As many stages as a chart has room for: the first, the last and those between at equal steps."""
    names = list(found)
    if len(names) <= MOST_BARS:
        return dict(found)
    kept = sorted({round(i * (len(names) - 1) / (MOST_BARS - 1)) for i in range(MOST_BARS)})
    return {names[i]: found[names[i]] for i in kept}


def stage_table(found: Mapping[str, MemoryBreakdown], unit: str = "GiB") -> pd.DataFrame:
    """Every stage with what it needs, as the page prints it."""
    rows = []
    for name, b in found.items():
        sums = summary.group_sums(b, b.peak_phase)
        low, high = (format_bytes(float(end), unit) for end in b.device_band)
        needs = {"Needs": format_bytes(float(b.device), unit), "Band": f"{low} to {high}"}
        rows.append({"Stage": name} | needs | {GROUPS[g]: format_bytes(sums[g], unit) for g in GROUPS})
    return pd.DataFrame(rows)


def kind_table(breakdown: MemoryBreakdown, unit: str = "GiB") -> pd.DataFrame:
    """`by_kind` as the page prints it."""
    wide = by_kind(breakdown).pivot(index="label", columns="group", values="bytes").loc[list(KINDS.values()), list(GROUPS)]
    table = wide.rename(columns=GROUPS)
    table.insert(0, "Together", wide.sum(axis=1))
    return table.map(lambda size: format_bytes(size, unit)).rename_axis("At the peak").reset_index()


def together(run: Scenario) -> str:
    """What the GPUs do together: "16 GPUs, 2 copies of the model on 8 each: 2 divide every layer, in 4 stages"."""
    inside = [
        f"{run.tensor_parallel_size} divide every layer" if run.tensor_parallel_size > 1 else "",
        f"{run.pipeline_parallel_size} stages hold consecutive layers" if run.pipeline_parallel_size > 1 else "",
        f"{run.context_parallel_size} divide every sequence" if run.context_parallel_size > 1 else "",
    ]
    said = ", ".join(part for part in inside if part)
    gpus = f"{run.gpus:,} GPUs"
    if not said:
        return f"{gpus}, each with its own micro batch"
    replicas = int(run.data_parallel_size)
    copies = f"{replicas:,} replicas of {run.gpus_of_a_replica:,} with a micro batch each" if replicas > 1 else "which share each micro batch"
    return f"{gpus}, {copies}: {said}"


def twice_as_many(run: Scenario, unit: str = "GiB") -> str:
    """What twice as many GPUs, each with its own micro batch, would change on one of them."""
    before, parts = estimate(run), totals(estimate(run))
    n = int(run.data_parallel_size)
    if 2 * n > LARGEST["data_parallel_size"]:
        return ""
    more = run.replace(data_parallel_size=2 * n)
    after = estimate(more)
    saved = float(before.device) - float(after.device)
    counts = f"{more.gpus:,} GPUs instead of {run.gpus:,}"
    tokens, whole = (format_bytes(parts[kind], unit) for kind in ("tokens", "whole"))
    if saved <= NOTHING * float(before.device):
        return f"{counts} change nothing on each: {_why_nothing(run)}. They get through the data faster, with a global batch twice as large."
    fallen = parts["divided"] - totals(after)["divided"]
    return (
        f"{counts}: each needs {format_bytes(float(after.device), unit)} instead of {format_bytes(float(before.device), unit)}. "
        f"What is divided falls by {format_bytes(fallen, unit)}; {tokens} for its own tokens and {whole} that each holds whole stay."
    )


def _why_nothing(run: Scenario) -> str:
    if run.sharding == "hsdp":
        return "they divide within a machine only"
    if run.sharding == "none":
        return "nothing is divided among them"
    offloaded = run.offload != "none" or catalog.shardings()[run.sharding].offloads
    return "what they divide is in the host's memory" if offloaded else "next to nothing of what they hold at the peak is divided"


def sharded_instead(run: Scenario, unit: str = "GiB") -> str:
    """What full sharding would change where the GPUs copy weights; empty where they do not, or it goes with nothing else."""
    if int(run.data_parallel_size) < 2 or run.sharding not in ("none", "zero1", "zero2"):
        return ""
    try:
        needs = float(estimate(run.replace(sharding="fsdp")).device)
    except ScenarioError:
        return ""
    return f"With everything divided (FSDP, ZeRO-3) each of the {run.gpus:,} would need {format_bytes(needs, unit)}."


@dataclass(frozen=True, kw_only=True)
class Host:
    """What one machine's own memory must hold. [bytes]"""

    needs: float
    gpus: int
    """Of one machine."""
    machine: float | None
    """The smallest usual size that is enough; None where none is."""
    too_small: float | None
    """The largest usual size that is not."""


def host(breakdown: MemoryBreakdown) -> Host | None:
    """The second verdict, where states, weights or layer inputs live in host memory."""
    each = float(breakdown.host)
    if not each:
        return None
    gpus = int(min(breakdown.run.gpus_per_node, breakdown.run.gpus))
    needs = each * gpus
    enough = [size for size in USUAL_RAM if size >= needs]
    less = [size for size in USUAL_RAM if size < needs]
    return Host(needs=needs, gpus=gpus, machine=enough[0] if enough else None, too_small=less[-1] if less else None)


def host_sentence(found: Host, unit: str = "GiB") -> str:
    """The second verdict in words."""
    gpus = "its GPU" if found.gpus == 1 else f"its {found.gpus} GPUs"
    need = f"Each machine's own memory must hold {format_bytes(found.needs, unit)} of what is offloaded from {gpus}"
    if found.machine is None:
        return f"{need}: more than machines are sold with."
    less = f"; {found.too_small / GiB:,.0f} GiB would not" if found.too_small else ""
    return f"{need}, beside the system and the data: a machine with {found.machine / GiB:,.0f} GiB would do{less}."


def fewest(by_method: Mapping[str, Scenario], device: Device, unit: str = "GiB") -> pd.DataFrame:
    """The fewest such devices for each method, everything divided among them, as the page prints it."""
    rows = []
    for method, run in by_method.items():
        plain = run.replace(offload="none", sharding="fsdp" if run.sharding == "fsdp-offload" else run.sharding)
        count = solver.fewest_gpus(plain, device)
        if count is None:
            rows.append({"Method": METHODS[method], "Fewest": "no number is enough", "Each then needs": "–"})
            continue
        fitting = plain.replace(data_parallel_size=count, sharding="none" if count == 1 else _sharding(plain))
        of_replica = int(fitting.gpus_of_a_replica)
        total = f"{count * of_replica:,}" + (f" ({count} × {of_replica})" if of_replica > 1 else "")
        each = format_bytes(float(estimate(fitting).device), unit)
        rows.append({"Method": METHODS[method], "Fewest": total, "Each then needs": f"{each} of {format_bytes(device.usable_bytes, unit)}"})
    return pd.DataFrame(rows)


def fewest_sentence(run: Scenario, device: Device) -> str:
    """How many such devices a run takes where one is not enough; empty where it is."""
    count = solver.fewest_gpus(run.replace(offload="none", sharding="fsdp" if run.sharding == "fsdp-offload" else run.sharding), device)
    if count is None:
        return "This model would not fit on any number of this device"
    total = count * int(run.gpus_of_a_replica)
    return f"This model would fit on {total:,} of this device, sharded" if total > 1 else ""


def _sharding(run: Scenario) -> str:
    """As `solver.fewest_gpus` divides."""
    return run.sharding if catalog.shardings()[run.sharding].shards_weights else "fsdp"
