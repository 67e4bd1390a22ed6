"""How close the estimates are: every published run that was measured, estimated again.

`validate` has one row per run of `data/measured_runs.csv`, `summary` its errors by source, and `similar` says how well runs
like a given one were predicted. A run is compared with what its source measured: live tensors, reserved or driver's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from . import catalog
from .architecture import Experts
from .estimate import MemoryBreakdown, estimate
from .scenario import FIELDS, Scenario

if TYPE_CHECKING:
    import pandas as pd

LIVE = ("allocated", "active")
"""Meters of live tensors; the others also see what the allocator holds free, and nvidia-smi the CUDA context."""
MISS = {True: 0.01, False: 0.05}
"""The error from which a row is called a miss: live tensors are physics, the rest is a typical value."""
NOT_EXPLAINED = "not explained"
UNDER = 0.05
"""An estimate lower than this share below the measurement has let somebody run out of memory."""
ENOUGH_RUNS = 3
"""Fewer similar runs than this and the comparison is widened."""


def validate() -> pd.DataFrame:
    """One row per measured run, as it was estimated just now.

    id, group, source, address, device; the Scenario's fields, `model` by name; `settings` in a line; `gpus`; `meter`,
    `meter_label`, `measured`, `estimated` (bytes), `error` (signed, of the measurement); the driver's bytes where known
    with `low`, `high` (bytes) of the device band and whether it `holds`; `miss`, and `note` with its reason where it is one.
    """
    return _validated().copy()


@cache
def _validated() -> pd.DataFrame:
    import pandas as pd

    notes = known_misses()
    return pd.DataFrame([_row(measured, notes.get(name, NOT_EXPLAINED)) for name, measured in catalog.measured_runs().items()])


def _row(measured: catalog.MeasuredRun, note: str) -> dict[str, Any]:
    run, breakdown = _estimated(measured.id)
    estimated = float(getattr(breakdown, ANSWERS[measured.meter]))
    error = estimated / measured.measured_bytes - 1
    driver = driver_bytes(measured)
    low, high = (float(end) for end in breakdown.device_band)
    holds = None if np.isnan(driver) else low <= driver <= high
    live = measured.meter in LIVE
    miss = abs(error) > MISS[live] or holds is False
    fields = {name: getattr(run, name) for name in FIELDS} | {"model": run.model.name}
    return {
        "id": measured.id, "group": measured.group, "source": measured.source, "address": measured.address, "device": measured.device,
        **{name: " ".join(v) if isinstance(v, tuple) else v for name, v in fields.items()},
        "settings": settings(run), "gpus": _gpus(run), "meter": measured.meter, "meter_label": METERS[measured.meter],
        "measured": float(measured.measured_bytes), "estimated": estimated, "error": error,
        "driver": driver, "device_error": float(breakdown.device) / driver - 1,
        "low": low, "high": high, "holds": holds, "miss": miss, "note": note if miss else "",
    }  # fmt: skip


@cache
def _estimated(name: str) -> tuple[Scenario, MemoryBreakdown]:
    run = Scenario(**catalog.measured_runs()[name].scenario)
    return run, estimate(run)


METERS = {"allocated": "live tensors", "active": "live tensors", "reserved": "reserved by the allocator", "nvidia-smi": "driver"}
ANSWERS = {"allocated": "allocated", "active": "allocated", "reserved": "reserved", "nvidia-smi": "device"}
"""The figure of a breakdown that a meter shows."""


def driver_bytes(measured: catalog.MeasuredRun) -> float:
    """What the driver showed for a run; nan where that is not known."""
    shown = measured.measured_bytes if measured.meter == "nvidia-smi" else measured.nvidia_smi_bytes
    return float("nan") if shown is None else float(shown)


def known_misses() -> dict[str, str]:
    """Why runs are missed, by id, where it is known: `data/known_misses.csv`."""
    return {name: row["reason"] for row in catalog._rows("known_misses.csv") for name in row["runs"].split()}


NO = {"none": "no"}


def settings(run: Scenario) -> str:
    """A run in one line: "LoRA r16, 4 × 4,096 tokens, fused-linear loss, full-reentrant checkpointing, fsdp on 2 GPUs"."""
    method = METHODS[run.method] + ("" if run.method == "full" else f" r{run.lora_rank:.0f}")
    size = f"{run.micro_batch_size:,.0f} × {run.sequence_length:,.0f} tokens"
    parts = [method, size, f"{run.loss} loss", f"{NO.get(run.gradient_checkpointing, run.gradient_checkpointing)} checkpointing"]
    parts += [run.quantization] if run.quantization != "none" else []
    parts += [f"{run.sharding} on {run.data_parallel_size:.0f} GPU{'s' if run.data_parallel_size > 1 else ''}"] if run.sharding != "none" else []
    return ", ".join(parts)


# ---- errors of many runs


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed relative errors of some rows, summed up as `summary` and the README show them."""

    n: int
    median: float
    p90: float
    worst: float
    under: float
    """Share of the rows estimated more than 5 % too low."""


def errors(signed: Iterable[float]) -> Errors:
    """Median, 90th percentile and worst of the absolute errors; the percentile is a value that occurs, not one in between.

    >>> errors([0.01, -0.02, -0.10]).median
    0.02
    """
    given = np.asarray(list(signed), dtype=float)
    if not given.size:
        raise ValueError("no errors to sum up")
    absolute = np.sort(np.abs(given))
    p90 = absolute[min(given.size - 1, int(0.9 * given.size))]
    return Errors(given.size, float(np.median(absolute)), float(p90), float(absolute[-1]), float(np.mean(given < -UNDER)))


def summary() -> pd.DataFrame:
    """Errors by source, method and meter: source, method, meter, n, median, p90, worst, under."""
    return by(_validated(), ["source", "method", "meter_label"])


def by(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Errors of the rows that share some columns: those columns, n, median, p90, worst, under."""
    import pandas as pd

    rows = []
    for values, part in frame.groupby(keys, sort=False):
        e = errors(part["error"])
        rows.append(dict(zip(keys, values, strict=True)) | {"n": e.n, "median": e.median, "p90": e.p90, "worst": e.worst, "under": e.under})
    return pd.DataFrame(rows)


@dataclass(frozen=True, slots=True)
class Band:
    """How well the device band holds the driver's figures."""

    n: int
    holds: float
    """Share of the figures within it."""
    width: float
    """Median of its width, as a share of the figure."""


def band() -> Band:
    """The device band against every driver's figure there is."""
    frame = _validated().dropna(subset=["driver"])
    return Band(len(frame), float(frame["holds"].astype(bool).mean()), float(((frame["high"] - frame["low"]) / frame["driver"]).median()))


def misses() -> pd.DataFrame:
    """The rows that are misses, worst first, with their reasons."""
    frame = _validated()
    return frame[frame["miss"]].sort_values("error", key=np.abs, ascending=False).reset_index(drop=True)


# ---- runs like this one

METHODS = {"full": "Full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
LOSSES = {
    "full-logits": "all logits at once",
    "triton": "a Triton loss",
    "fused-linear": "a fused linear loss",
    "chunked": "a chunked loss",
}
FAMILIES = {
    "none": "weights in 16 bits",
    "bitsandbytes": "bitsandbytes weights",
    "gptq": "GPTQ weights",
    "awq": "AWQ weights",
    "mlx": "MLX weights",
}


def _gpus(run: Scenario) -> int:
    return int(np.max(run.data_parallel_size))


def _structure(run: Scenario) -> str:
    mixers = {mixer for block in run.model.distinct_layers for mixer in block.mixers}
    if mixers - {"attention"}:
        return "layers that are not plain attention"
    return "a mixture of experts" if any(isinstance(m, Experts) for b in run.model.distinct_layers for m in b.modules) else "a dense model"


def _family(run: Scenario) -> str:
    return FAMILIES.get(family := catalog.quantizations()[run.quantization].family, f"{family} weights")


ALWAYS: dict[str, Callable[[Scenario], str]] = {
    "method": lambda run: METHODS[run.method],
    "structure": _structure,
    "attention": lambda run: "attention scores stored" if run.attention == "eager" else "attention scores never stored",
    "offload": lambda run: "offloaded weights" if catalog.shardings()[run.sharding].offloads else "weights on the GPU",
}
"""What a run must share with another to be compared with it at all; the words are what is compared."""
WHEN_THERE_ARE_ENOUGH: dict[str, Callable[[Scenario], str]] = {
    "quantization": _family,
    "gpus": lambda run: "several GPUs" if _gpus(run) > 1 else "one GPU",
    "loss": lambda run: LOSSES[run.loss],
    "checkpointing": lambda run: "no checkpointing" if run.gradient_checkpointing == "none" else "checkpointing",
}
"""What it should share too, the last given up first where fewer than ENOUGH_RUNS runs do."""


@dataclass(frozen=True)
class Similar:
    """How well measured runs like one run were predicted."""

    ids: tuple[str, ...]
    """The runs; none where nothing like it was measured."""
    shared: tuple[str, ...]
    """What they share with it, in words."""
    different: tuple[str, ...]
    """What was asked for first and given up, in words."""
    median: float | None
    """Of the absolute errors against what was measured."""
    worst: float | None
    in_band: tuple[int, int] | None
    """(held, known): driver's figures within the device band."""

    @property
    def sentence(self) -> str:
        """For the page: "12 similar runs (LoRA, one GPU): median error 1.2 %, worst 3.0 %"."""
        if not self.ids:
            return f"No measured run is like this one ({', '.join(self.shared)}): nothing is known about how close this estimate is."
        runs = "1 similar run" if len(self.ids) == 1 else f"{len(self.ids)} similar runs"
        closeness = (
            f"error {percent(self.median)}" if len(self.ids) == 1 else f"median error {percent(self.median)}, worst {percent(self.worst)}"
        )
        text = f"{runs} ({', '.join(self.shared)}): {closeness}"
        if self.in_band:
            text += f"; the driver's figure was within the band in {self.in_band[0]} of {self.in_band[1]}"
        return text + (f". Fewer than {ENOUGH_RUNS} share {' and '.join(self.different)} too." if self.different else ".")


def similar(run: Scenario) -> Similar:
    """Measured runs like this one, and how well they were predicted.

    Like it are runs of the same method on the same kind of model, with the same kind of weights, one or several GPUs, the
    same loss and checkpointing or not. Where fewer than ENOUGH_RUNS are, the last of these is given up, then the one before.
    """
    wanted = {name: say(run) for name, say in (ALWAYS | WHEN_THERE_ARE_ENOUGH).items()}
    kept = list(wanted)
    ids = _like(wanted, kept)
    while len(ids) < ENOUGH_RUNS and kept[-1] in WHEN_THERE_ARE_ENOUGH:
        kept.pop()
        ids = _like(wanted, kept)
    if not ids:
        return Similar((), tuple(wanted[name] for name in ALWAYS), (), None, None, None)
    rows = _validated().set_index("id").loc[list(ids)]
    e = errors(rows["error"])
    driver = rows["holds"].dropna()
    held = (int(driver.astype(bool).sum()), len(driver)) if len(driver) else None
    shared = tuple(wanted[name] for name in kept if name not in UNREMARKABLE or wanted[name] != UNREMARKABLE[name])
    return Similar(ids, shared, tuple(wanted[name] for name in wanted if name not in kept), e.median, e.worst, held)


UNREMARKABLE = {
    "structure": "a dense model",
    "attention": "attention scores never stored",
    "offload": "weights on the GPU",
    "quantization": "weights in 16 bits",
}
"""What goes without saying in a list of what runs share."""


def _like(wanted: dict[str, str], names: list[str]) -> tuple[str, ...]:
    return tuple(id for id, words in _words().items() if all(words[name] == wanted[name] for name in names))


@cache
def _words() -> dict[str, dict[str, str]]:
    return {id: {name: say(_estimated(id)[0]) for name, say in (ALWAYS | WHEN_THERE_ARE_ENOUGH).items()} for id in catalog.measured_runs()}


# ---- the README's table


def percent(share: float, decimals: int = 1) -> str:
    """The size of an error in words: "0.1 %", "4.2 %", "12 %", and "< 0.1 %" for what rounds to less."""
    share = abs(100 * share)
    if 0 < share < 0.5 * 10**-decimals:
        return f"< {10**-decimals:.{decimals}f} %"
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.{decimals}f} %"


def to_markdown() -> str:
    """`summary` and `band` as the README shows them."""
    lines = ["| source | method | measured | runs | median error | 90 % within | more than 5 % too low |", "|---|---|---|--:|--:|--:|--:|"]
    for row in summary().itertuples():
        figures = [str(row.n), percent(row.median), percent(row.p90), f"{row.under:.0%}".replace("%", " %")]
        lines.append(f"| {' | '.join([row.source, METHODS[row.method], row.meter_label, *figures])} |")
    b = band()
    held = f"The device band holds {100 * b.holds:.0f} % of the {b.n} driver's figures that are known"
    lines += ["", f"{held}, at a median width of {100 * b.width:.0f} % of the figure."]
    return "\n".join(lines)
