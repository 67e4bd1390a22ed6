"""Which modules a LoRA adapter reaches, and with which rank.

"all-linear" means every linear module of the layers. In transformers 5 the experts of a mixture are stacked parameters
and no linear modules; PEFT finds them by the names they had, `gate_proj`, `up_proj` and `down_proj` (or `w1`, `w3`, `w2`),
in the model types of its conversion table, and then no longer as linear modules of those names elsewhere in the model.
Source: peft 0.21 `utils/transformers_weight_conversion.py`, transformers 5.24 `conversion_mapping.py`.
"""

from __future__ import annotations

from .architecture import EXPERT_NAMES, QWEN2_MOE, ROUTER_NAME, Experts, Linear, ModelArchitecture

Targets = tuple[str, ...] | None
"""Module names, or None for "all-linear"."""


def targets(model: ModelArchitecture, names: str | tuple[str, ...]) -> Targets:
    """The modules that `lora_target_modules` names; the experts' own name stands for each of their projections."""
    if names == "all-linear":
        return None
    stacked = EXPERT_NAMES.get(model.model_type)
    whole = stacked and any(isinstance(m, Experts) and m.name in names for block in model.distinct_layers for m in block.modules)
    return (*names, *stacked["up"], *stacked["down"]) if whole else names


def reaches(model: ModelArchitecture, module: Linear, targets: Targets, fused_experts: bool = True) -> bool:
    """Whether a linear module gets an adapter."""
    stacked = EXPERT_NAMES.get(model.model_type)
    if module.kind == "router":
        return stacked is not None and (targets is None or ROUTER_NAME in targets)
    if stacked and fused_experts and module.name in (*stacked["up"], *stacked["down"]):
        return False  # these names stand for the experts now
    return targets is None or module.name in targets


def expert_ranks(model: ModelArchitecture, experts: Experts, targets: Targets) -> tuple[int, int]:
    """How many times the rank the adapters of the stacked up and down projections have; 0: none. Fused gate and up count twice."""
    stacked = EXPERT_NAMES.get(model.model_type)
    if not experts.fused or stacked is None:
        return 0, 0
    known = [name for names in stacked.values() for name in names]
    wanted = known if targets is None or experts.name in targets else [name for name in known if name in targets]
    up = sum(name in wanted for name in stacked["up"])
    return up if experts.gated else min(up, 1), int(stacked["down"][0] in wanted)


def expert_linears(model: ModelArchitecture, experts: Experts) -> tuple[Linear, ...]:
    """The matrices of one expert where each is a linear module of its own (transformers before 5)."""
    names = EXPERT_NAMES.get(model.model_type, QWEN2_MOE)
    h, i = experts.hidden_size, experts.intermediate_size
    roles = ("gate", "up") if experts.gated else ("up",)
    up = tuple(Linear(name, role, h, i) for name, role in zip(names["up"], roles, strict=False))
    return (*up, Linear(names["down"][0], "down", i, h))
