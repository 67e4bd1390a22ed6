"""What to change when a run does not fit: each remedy is a changed Scenario, estimated, with its price.

`remedies` is the table of what there is. `advise` estimates its rows one by one; `cheapest_plan` looks for the cheapest set
that makes the run fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import log2

from . import catalog
from .architecture import ModelArchitecture
from .catalog import Device
from .estimate import PHASE_LABELS, MemoryBreakdown, estimate
from .remedies import GIVES_UP, REMEDIES, SHORTEST_SEQUENCE, Changes, Kind
from .scenario import Scenario, ScenarioError
from .solver import at_least, largest
from .timing import SOURCE, describe_ratio, measured_speeds, time_ratio
from .units import format_bytes

MOST_CHANGES = 3
HELPS_FROM = 0.01
"""A saving below this share of what the run needs is none."""

NEARLY = 0.8
"""Of several forms that do not fit, the mildest is shown that saves this share of what the strongest does."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change to a run: what it saves, and its price."""

    key: str
    label: str
    changes: Changes
    """Fields of the Scenario with their new values, for the controls."""
    run: Scenario
    """The changed run."""
    needs: float
    """What it needs on the device. [bytes]"""
    saves: float
    """How much less that is; negative where it is more. [bytes]"""
    fits: bool
    price: str
    time_ratio: float
    """How many times as long the same tokens take, by arithmetic (`timing`)."""
    time_source: str
    """Where that is from, with the ratios of published pairs of runs."""
    gives_up: str
    source: str
    reason: str = ""
    """Why it does not help here; empty where it does."""

    @property
    def helps(self) -> bool:
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cheapest set of changes that makes a run fit."""

    remedies: tuple[Remedy, ...]
    """Its changes, each applied to the run before it: `needs` and `saves` are what is left and what that step saves."""
    run: Scenario
    needs: float
    time_ratio: float
    """Of the whole set."""
    changes: Changes = field(default_factory=dict)
    """All of them, for the controls."""


def advise(run: Scenario, device: Device | str) -> list[Remedy]:
    """What could be changed, priced. First what makes the run fit by itself, the cheapest first; then what saves most; last
    what does not help here, and why.

    Each remedy is offered in its mildest form that fits, else in one that saves nearly as much as its strongest.
    """
    device = _device(device)
    now = estimate(run)
    found = [remedy for kind in REMEDIES if (remedy := _best_of(kind, run, now, device)) is not None]
    return sorted(found, key=lambda remedy: _rank(run, remedy))


def _rank(run: Scenario, remedy: Remedy) -> tuple:
    if remedy.helps and remedy.fits:
        return (0, GIVES_UP.index(remedy.gives_up), remedy.time_ratio, -remedy.saves)
    return (1 if remedy.helps else 2, -remedy.saves)


def _best_of(kind: Kind, run: Scenario, now: MemoryBreakdown, device: Device) -> Remedy | None:
    """A remedy in its mildest form that fits and helps; where none does, in the mildest that saves nearly as much as the strongest."""
    forms = []
    for changes in kind.offers(run):
        if (changed := _changed(run, changes)) is None:
            continue
        remedy = _remedy(kind, run, now, changes, changed, device)
        if remedy.fits and remedy.helps:
            return _longest_that_fits(kind, run, now, device) or remedy if kind.key == "shorter_sequences" else remedy
        forms.append(remedy)
    most = max((remedy.saves for remedy in forms), default=0.0)
    return next((remedy for remedy in forms if remedy.saves >= NEARLY * most), forms[0] if forms else None)


def _longest_that_fits(kind: Kind, run: Scenario, now: MemoryBreakdown, device: Device) -> Remedy | None:
    """Shorter sequences, no shorter than needed, as a round number."""
    length = round_length(largest(run, "sequence_length", device.usable_bytes))
    if not SHORTEST_SEQUENCE <= length < run.sequence_length:
        return None
    changes = {"sequence_length": length}
    return _remedy(kind, run, now, changes, run.replace(**changes), device)


def round_length(length: int) -> int:
    """The largest round length that is no longer: a multiple of a sixteenth of its power of two."""
    step = 2 ** max(length.bit_length() - 5, 0)
    return length // step * step


def _remedy(kind: Kind, run: Scenario, now: MemoryBreakdown, changes: Changes, changed: Scenario, device: Device) -> Remedy:
    then = estimate(changed)
    needs, saves = float(then.device), float(now.device - then.device)
    return Remedy(
        key=kind.key,
        label=kind.label(run, changed),
        changes=changes,
        run=changed,
        needs=needs,
        saves=saves,
        fits=needs <= device.usable_bytes,
        price=kind.price(run, changed),
        time_ratio=(ratio := time_ratio(run, changed, device)),
        time_source=_time_source(kind, ratio),
        gives_up=GIVES_UP[kind.gives_up],
        source=kind.source,
        reason="" if saves > HELPS_FROM * now.device else _reason(now, then),
    )


def _reason(now: MemoryBreakdown, then: MemoryBreakdown) -> str:
    """Why a change saves nothing at the peak."""
    more = float(then.device - now.device)
    if more > HELPS_FROM * now.device:
        return f"It would need {format_bytes(more)} more."
    saved = {phase: float(total - then.totals[phase]) for phase, total in now.totals.items() if phase in then.totals}
    phase = max(saved, key=saved.__getitem__)
    peak = PHASE_LABELS[now.peak_phase].lower()
    if saved[phase] > HELPS_FROM * now.totals[phase]:
        elsewhere = f"{format_bytes(saved[phase])} in “{PHASE_LABELS[phase].lower()}”"
        return f"The peak is in the phase “{peak}”: this saves {elsewhere}, which is not the largest."
    return f"The peak is in the phase “{peak}”, and this changes next to nothing in it."


def _time_source(kind: Kind, ratio: float) -> str:
    measured = [f"{row.ratio:.2g}× ({row.what})" for row in measured_speeds() if row.remedy == kind.key]
    return f"{describe_ratio(ratio)}, from {SOURCE}" + (f". Published: {'; '.join(measured)}" if measured else "")


def _device(device: Device | str) -> Device:
    return catalog.devices()[device] if isinstance(device, str) else device


def _changed(run: Scenario, changes: Changes) -> Scenario | None:
    """The changed run; None where the changes do not go with the rest of it (a smaller model without the named modules)."""
    try:
        return run.replace(**changes)
    except ScenarioError:
        return None


# ---- the cheapest set


def cheapest_plan(run: Scenario, device: Device | str, most: int = MOST_CHANGES) -> Plan | None:
    """The cheapest set of at most three changes that makes the run fit: none where it fits already, None where no set does.

    Cheapest is what gives up least: sets are compared by the dearest thing given up (`GIVES_UP`), then by how much of it
    (each halving of a length, rank or model, each doubling of GPUs), then by time, then
    by whether the host's memory is needed, then by the number of changes.
    """
    device = _device(device)
    needs = float(estimate(run).device)
    if needs <= device.usable_bytes:
        return Plan(remedies=(), run=run, needs=needs, time_ratio=1.0)
    offers = [(kind, changes, _extent(run, changes)) for kind in REMEDIES for changes in kind.offers(run)]
    by_dearest: dict[int, list[tuple[Offer, ...]]] = {}
    for chosen in _sets(offers, most):
        by_dearest.setdefault(max(kind.gives_up for kind, _, _ in chosen), []).append(chosen)
    tried: dict[tuple, bool] = {}
    for dearest, sets in sorted(by_dearest.items()):
        for extent in sorted({_given(chosen, dearest) for chosen in sets}):
            fitting = [chosen for chosen in sets if _given(chosen, dearest) == extent and _fits(run, chosen, device, tried)]
            if fitting:
                best = min(fitting, key=lambda chosen: _cost(run, run.replace(**_merged(chosen)), device, len(chosen)))
                return _plan(run, best, device)
    return None


def uses_host(run: Scenario) -> bool:
    """Whether a run keeps something in the host's memory."""
    return run.offload != "none" or run.activation_offload or catalog.shardings()[run.sharding].offloads


def _cost(run: Scenario, changed: Scenario, device: Device, changes: int) -> tuple:
    """What decides between sets that give up the same."""
    return round(time_ratio(run, changed, device), 2), uses_host(changed), changes


Offer = tuple[Kind, Changes, float]


def _sets(offers: list[Offer], most: int) -> Iterator[tuple[Offer, ...]]:
    """Every set of up to so many offers that change different fields."""
    for count in range(1, most + 1):
        for chosen in combinations(offers, count):
            fields = [name for _, changes, _ in chosen for name in changes]
            if len(fields) == len(set(fields)):
                yield chosen


def _merged(chosen: tuple[Offer, ...]) -> Changes:
    return {name: value for _, changes, _ in chosen for name, value in changes.items()}


def _given(chosen: tuple[Offer, ...], category: int) -> float:
    """How much of one category a set gives up."""
    return round(sum(extent for kind, _, extent in chosen if kind.gives_up == category), 3) if category else 0.0


def _extent(run: Scenario, changes: Changes) -> float:
    """How far an offer goes: halvings of a size or a model, doublings of GPUs; 1 for a choice."""
    if "model" in changes:
        return log2(run.model.parameters / changes["model"].parameters)
    sizes = [
        abs(log2(value / getattr(run, name)))
        for name, value in changes.items()
        if name in ("sequence_length", "lora_rank", "data_parallel_size")
    ]
    return max(sizes, default=1.0)


def _fits(run: Scenario, chosen: tuple[Offer, ...], device: Device, tried: dict[tuple, bool]) -> bool:
    changes = _merged(chosen)
    key = tuple(sorted((name, value if not isinstance(value, ModelArchitecture) else value.name) for name, value in changes.items()))
    if key not in tried:
        changed = _changed(run, changes)
        bytes_ = device.usable_bytes
        tried[key] = changed is not None and at_least(changed) <= bytes_ and bool(estimate(changed).device <= bytes_)
    return tried[key]


def _plan(run: Scenario, chosen: tuple[Offer, ...], device: Device) -> Plan:
    """The set as steps; a shorter length is made no shorter than needed."""
    changes = _merged(chosen)
    if "sequence_length" in changes:
        length = round_length(largest(run.replace(**changes), "sequence_length", device.usable_bytes))
        longer = {"sequence_length": max(length, changes["sequence_length"])}
        chosen = tuple((kind, longer if "sequence_length" in offer else offer, extent) for kind, offer, extent in chosen)
    remedies, current = [], run
    for kind, offer, _ in chosen:
        changed = current.replace(**offer)
        remedies.append(_remedy(kind, current, estimate(current), offer, changed, device))
        current = changed
    return Plan(
        remedies=tuple(remedies),
        run=current,
        needs=remedies[-1].needs,
        time_ratio=time_ratio(run, current, device),
        changes=_merged(chosen),
    )
