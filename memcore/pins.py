"""Runs put side by side: each a name and the part of a link that makes it, so that a comparison fits into an address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import pandas as pd

from . import catalog, configs, export, links, summary
from .architecture import ModelArchitecture
from .catalog import Device
from .estimate import PHASE_LABELS, MemoryBreakdown, estimate
from .links import CUSTOM, METHODS
from .scenario import FIELDS, Scenario
from .summary import GROUPS, verdict
from .units import format_bytes, format_count, format_tokens, one_line, parse_count

MOST = links.MOST_PINS
BETWEEN = "|"
LONGEST_NAME = 40


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A run with its device and a name."""

    name: str
    run: Scenario
    device: Device
    values: Mapping[str, Any]
    """Of the controls."""

    @property
    def breakdown(self) -> MemoryBreakdown:
        return estimate(self.run)


def write(name: str, values: Mapping[str, Any]) -> str:
    """A pin as text: its name, and the query of the link to its run."""
    return f"{clean(name)}{BETWEEN}{links.write({k: v for k, v in values.items() if k not in links.ELSEWHERE})}"


def can_pin(values: Mapping[str, Any]) -> bool:
    """Whether a link can hold the run: an uploaded model is not in it."""
    return values["model"] == CUSTOM or values["model"] in catalog.models()


def readable(values: Mapping[str, Any]) -> bool:
    """Whether a pin of these choices could be read back: a custom size or device may be none."""
    try:
        read(write("", values))
    except ValueError:
        return False
    return True


def clean(name: str) -> str:
    """A name that is one line of moderate length; never empty."""
    return one_line(name.replace(BETWEEN, " "), LONGEST_NAME).strip() or "Unnamed"


def rename(text: str, name: str) -> str:
    return f"{clean(name)}{BETWEEN}{text.partition(BETWEEN)[2]}"


def read(text: str) -> Pinned:
    """The run of a pin; a ValueError says why there is none."""
    name, between, query = text.partition(BETWEEN)
    if not between:
        raise ValueError(f"a pin is a name, {BETWEEN} and the settings of a run")
    given, notices = links.read(parse_qs(query, keep_blank_values=True))
    given = {key: value for key, value in given.items() if key not in links.ELSEWHERE}
    if notices:
        raise ValueError(notices[0])
    values = {key: control.default for key, control in links.controls().items() if key not in links.ELSEWHERE} | given
    if not can_pin(values):
        raise ValueError("its model is not in the catalog")
    return Pinned(name=clean(name), run=_run(values), device=_device(values), values=values)


def read_all(texts: Iterable[str]) -> tuple[list[Pinned], list[str]]:
    """Every pin that can be read, with names told apart, and a sentence for each that cannot."""
    found: list[Pinned] = []
    problems = []
    for text in texts:
        try:
            pin = read(text)
        except ValueError as error:
            problems.append(f"{clean(text.partition(BETWEEN)[0])} could not be opened: {error}")
            continue
        found.append(pin)
    return found, problems


def _run(values: Mapping[str, Any]) -> Scenario:
    model: str | ModelArchitecture = values["model"]
    if model == CUSTOM:
        model = configs.custom_model(parse_count(values["custom_parameters"]))
    chosen = {name: values[name] for name in FIELDS if name not in ("model", "quantization")}
    chosen["lora_target_modules"] = chosen["lora_target_modules"] or "all-linear"
    return Scenario(model=model, quantization=values["quantization"] if values["method"] == "qlora" else "none", **chosen)


def _device(values: Mapping[str, Any]) -> Device:
    if values["device"] == CUSTOM:
        return catalog.custom_device(f"{values['custom_memory']:.12g}", values["custom_memory_unit"], values["custom_unified"])
    return catalog.devices()[values["device"]]


def suggest_name(run: Scenario, taken: Iterable[str]) -> str:
    """Such as "Llama-3.1-8B QLoRA 4 × 4K", with a number where that name is taken."""
    name = clean(f"{summary.short_name(run.model)[:22]} {METHODS[run.method]} {run.micro_batch_size} × {format_tokens(run.sequence_length)}")
    taken = set(taken)
    return next(n for n in (name, *(f"{name[: LONGEST_NAME - 4]} ({i})" for i in range(2, 99))) if n not in taken)


def labels(pins: Sequence[Pinned]) -> list[str]:
    """Names by which a table and a chart can tell the runs apart, even where two are called the same."""
    found: list[str] = []
    for pin in pins:
        found.append(next(n for n in (pin.name, *(f"{pin.name} ({i})" for i in range(2, 99))) if n not in found))
    return found


# ---- tables


def stacks(pins: Sequence[Pinned]) -> pd.DataFrame:
    """Bytes by run and group at each run's own peak, with what it needs and what its device gives."""
    parts = []
    for name, pin in zip(labels(pins), pins, strict=True):
        table = summary.stacks({pin.run.method: pin.breakdown})
        parts.append(table.assign(name=name, usable=float(pin.device.usable_bytes)))
    return pd.concat(parts, ignore_index=True)


def differences(pins: Sequence[Pinned], unit: str = "GiB") -> pd.DataFrame:
    """What differs between the runs, and what comes of it: a row for each thing, a column for each run. Text."""
    columns = {name: _settings(pin) | _results(pin, unit) for name, pin in zip(labels(pins), pins, strict=True)}
    rows = list(next(iter(columns.values())))
    results = set(_results(pins[0], unit))
    kept = [row for row in rows if row in results or len({column[row] for column in columns.values()}) > 1]
    return pd.DataFrame({"": kept} | {name: [column[row] for row in kept] for name, column in columns.items()})


def _settings(pin: Pinned) -> dict[str, str]:
    known = links.controls()
    said = {"Model": pin.run.model.name, "Device": pin.device.label, "Method": METHODS[pin.run.method]}
    for field in FIELDS:
        if field in ("model", "method"):
            continue
        value = getattr(pin.run, field)
        text = value if isinstance(value, str) else known[field].write(value)
        said[field.replace("_", " ").capitalize()] = (", ".join(text) if isinstance(text, list) else text) or "none"
    return said


def _results(pin: Pinned, unit: str) -> dict[str, str]:
    breakdown = pin.breakdown
    v = verdict(breakdown, pin.device)
    said = {
        "Needs": format_bytes(v.needs, unit),
        "Between": f"{format_bytes(v.low, unit)} and {format_bytes(v.high, unit)}",
        "Device gives": format_bytes(v.has, unit),
        "Spare": format_bytes(v.spare, unit) if v.spare >= 0 else f"{format_bytes(-v.spare, unit)} over",
        "Verdict": v.word,
        "Peak": PHASE_LABELS[breakdown.peak_phase],
        "Trainable parameters": format_count(float(breakdown.trainable_parameters)),
    }
    sums = summary.group_sums(breakdown, breakdown.peak_phase)
    sums["overhead"] += float(breakdown.device - breakdown.allocated)
    return said | {f"{group}, at the peak": format_bytes(sums[key], unit) for key, group in GROUPS.items()}


def every_term(pins: Sequence[Pinned]) -> pd.DataFrame:
    """All terms of all runs, each row with its run's name, scenario and device: the file. [bytes]"""
    parts = []
    for name, pin in zip(labels(pins), pins, strict=True):
        v = verdict(pin.breakdown, pin.device)
        table = export.with_scenario(summary.terms(pin.breakdown), pin.run, pin.device)
        table.insert(0, "scenario", name)
        table.insert(1, "needs_bytes", v.needs)
        table.insert(2, "verdict", v.word)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)
