"""What the Method view says: the text of data/facts.toml with the numbers of the code, and the ledger with those of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from . import catalog, cautions, files, remedies, rules
from .catalog import Device
from .estimate import PHASE_LABELS, MemoryBreakdown, estimate
from .ledger import TERMS
from .links import METHODS
from .scenario import LARGEST, QLORA_QUANTIZATION, Scenario
from .summary import group_sums
from .units import GB, format_bytes, format_count

SIXTEEN_BITS = 2
"""Bytes of a parameter in a download."""
EIGHT_BILLION = 8 * 10**9
OF_TOKENS = ("activations", "logits")
"""Groups that grow with tokens."""


@cache
def facts() -> dict[str, Any]:
    """data/facts.toml."""
    with open(files.data_folder() / "facts.toml", "rb") as file:
        return tomllib.load(file)


def numbers(run: Scenario) -> dict[str, float]:
    """The numbers that the texts name, from the code that computes them."""
    low, high = (float(rules.parameter_ledger(1, recipe).total) for recipe in ("bf16-fp32-states", "bf16-master"))
    weight = catalog.quantizations()[QLORA_QUANTIZATION].bytes_per_weight
    return {
        "download_bytes": SIXTEEN_BITS,
        "full_low": low,
        "full_high": high,
        "training_low": low / SIXTEEN_BITS,
        "training_high": high / SIXTEEN_BITS,
        "nf4_bits": 8 * weight,
        "base_share": weight / SIXTEEN_BITS,
        "lora_8b_gb": float(rules.rule_of_thumb("lora", EIGHT_BILLION)) / GB,
        "qlora_8b_gb": float(rules.rule_of_thumb("qlora", EIGHT_BILLION)) / GB,
        "unified_share": rules.UNIFIED_MEMORY_SHARE,
        "double_length": double_length(run),
    }


def double_length(run: Scenario) -> float:
    """How many times the activations and logits of a run are at twice its length; of half and whole where twice is no length."""
    length = float(run.sequence_length)
    lengths = np.array([length, 2 * length] if 2 * length <= LARGEST["sequence_length"] else [np.ceil(length / 2), length])
    phases = estimate(run.replace(sequence_length=lengths)).phases.values()
    kept = np.max([sum(np.broadcast_to(phase[t.key], 2) for t in TERMS if t.group in OF_TOKENS) for phase in phases], axis=0)
    return float(kept[1] / kept[0])


@dataclass(frozen=True, slots=True)
class Fact:
    """Something to know, and where it is from."""

    title: str
    text: str
    sources: tuple[str, ...] = ()
    """As Markdown links."""
    here: str = ""
    """What it is in the run on the page; empty where it is nothing there."""


def fact_list(run: Scenario) -> list[Fact]:
    """What a newcomer needs to know."""
    known = numbers(run)
    return [Fact(_filled(f["title"], known), _filled(f["text"], known), _links(f["sources"])) for f in facts()["fact"]]


def mistakes(run: Scenario, device: Device) -> list[Fact]:
    """The common mistakes; `here` is the warning of those that this run on this device invites."""
    known, said = numbers(run), {c.key: c.text for c in cautions.cautions(run, device)}
    return [
        Fact(_filled(m["title"], known), _filled(m["text"], known), here=" ".join(said[key] for key in m["cautions"] if key in said))
        for m in facts()["mistake"]
    ]


def what_to_try(run: Scenario) -> list[Fact]:
    """What to try when memory runs out, in this order; `here` is "open" for what this run has not done yet."""
    on_offer = {kind.key for kind in remedies.REMEDIES if any(True for _ in kind.offers(run))}
    return [Fact(t["title"], t["text"], here="open" if on_offer & set(t["remedies"]) else "") for t in facts()["try"]]


def words() -> pd.DataFrame:
    """The glossary, as the page prints it."""
    return pd.DataFrame([{"Word": f"**{word['term']}**", "What it means": word["text"]} for word in facts()["word"]])


def sources() -> list[str]:
    """What the method rests on, as Markdown links."""
    return [f"[{source['name']}]({source['address']})" for source in facts()["source"].values()]


def phases(breakdown: MemoryBreakdown, unit: str = "GiB") -> pd.DataFrame:
    """Each phase of a step with what happens in it and what it holds in this run, as the page prints it."""
    said = {phase["key"]: phase["text"] for phase in facts()["phase"]}
    return pd.DataFrame(
        [
            {
                "Phase": f"**{PHASE_LABELS[phase]}**" + (" (the peak)" if phase == breakdown.peak_phase else ""),
                "Holds": format_bytes(float(total), unit),
                "What happens": said[phase],
            }
            for phase, total in breakdown.totals.items()
        ]
    )


def terms(breakdown: MemoryBreakdown) -> pd.DataFrame:
    """Every term of the ledger: term, label, formula in words, the run's numbers, bytes where it is largest, phase, meaning, source."""
    rows = []
    for term in TERMS:
        phase = max(breakdown.phases, key=lambda name: float(breakdown.phases[name][term.key]))
        size = float(breakdown.phases[phase][term.key])
        rows.append(
            {
                "term": term.key,
                "label": term.label,
                "words": term.formula,
                "formula": breakdown.formula(phase, term.key) if size else "",
                "bytes": size,
                "phase": PHASE_LABELS[phase] if size else "",
                "meaning": term.meaning,
                "source": term.source,
            }
        )
    return pd.DataFrame(rows)


def shown_terms(breakdown: MemoryBreakdown, unit: str = "GiB") -> pd.DataFrame:
    """`terms` as the page prints it."""
    table = terms(breakdown)
    return pd.DataFrame(
        {
            "Term": [f"**{label}**  \n{meaning}" for label, meaning in zip(table["label"], table["meaning"], strict=True)],
            "Formula": table["words"],
            "This run": table["formula"].where(table["bytes"] > 0, "none"),
            "At most": [format_bytes(size, unit) if size else "–" for size in table["bytes"]],
            "When": table["phase"].where(table["bytes"] > 0, "–"),
            "Source": table["source"],
        }
    )


def who_trains(breakdowns: Mapping[str, MemoryBreakdown], unit: str = "GiB") -> pd.DataFrame:
    """What carries gradients and states under each method, as the page prints it."""
    rows = []
    for method, b in breakdowns.items():
        trained = float(b.trainable_parameters)
        sums = [group_sums(b, phase) for phase in b.phases]
        stored, gradients, states = (max(s[group] for s in sums) for group in ("weights", "gradients", "optimizer"))
        rows.append(
            {
                "Method": METHODS[method],
                "Parameters trained": f"{format_count(trained)} ({_share(trained / b.parameters)})",
                "Weights and adapters": format_bytes(stored, unit),
                "Gradients": format_bytes(gradients, unit),
                "Optimizer": format_bytes(states, unit),
            }
        )
    return pd.DataFrame(rows)


def _share(share: float) -> str:
    return f"{share:.0%}" if share > 0.095 else f"{share:.2%}"


def _filled(text: str, known: Mapping[str, float]) -> str:
    return text.format(**known)


def _links(keys: list[str]) -> tuple[str, ...]:
    return tuple(f"[{facts()['source'][key]['short']}]({facts()['source'][key]['address']})" for key in keys)
