"""What a verdict has to say of its model: what is understood but not measured, and what its encoders weigh."""

from __future__ import annotations

from functools import lru_cache

from .estimate import MemoryBreakdown, estimate
from .scenario import Scenario
from .units import format_bytes, format_count

SENSES = {"vision": "images", "audio": "sound", "vision and audio": "images and sound", "audio and vision": "sound and images"}


def about_model(breakdown: MemoryBreakdown, unit: str = "GiB") -> list[str]:
    """One sentence each, to stand beside the verdict; none for a text model whose every formula is measured."""
    found = list(breakdown.run.model.uncertain)
    if sentence := encoders(breakdown.run, unit):
        found.append(sentence)
    return found


def encoders(run: Scenario, unit: str = "GiB") -> str:
    """What the model's vision and audio encoders weigh, and whether they train; empty for a text model."""
    towers = run.model.towers
    if not towers:
        return ""
    size = format_count(sum(tower.parameters for tower in towers))
    kinds = " and ".join(dict.fromkeys(tower.name for tower in towers))
    part = f"{run.model.name.rpartition('/')[2]} has {size} parameters that turn {SENSES.get(kinds, kinds)} into tokens"
    if run.towers == "left-out":
        return f"{part}, left out of this run."
    weight = format_bytes(_weigh(run), unit)
    if run.towers == "trained":
        return f"{part}: trained here, {weight} of weights with gradients and optimizer states beside them."
    return f"{part}: frozen here, {weight} of weights and nothing else."


@lru_cache(maxsize=512)
def _weigh(run: Scenario) -> float:
    """Bytes of the encoders' weights: the run's, less those of the run without encoders."""

    def weights(of: Scenario) -> float:
        return max(float(phase["weights"] + phase["adapters"]) for phase in estimate(of).phases.values())

    return weights(run) - weights(run.replace(towers="left-out"))
