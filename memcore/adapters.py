"""Which modules a LoRA adapter reaches, and with which rank.

"all-linear" means every linear module of the layers. In transformers 5 the experts of a mixture are stacked parameters
and no linear modules; PEFT finds them by the names they had, `gate_proj`, `up_proj` and `down_proj` (or `w1`, `w3`, `w2`),
in the model types of its conversion table, and then no longer as linear modules of those names elsewhere in the model.
Source: peft 0.21 `utils/transformers_weight_conversion.py`, transformers 5.24 `conversion_mapping.py`.
"""

from __future__ import annotations

from .architecture import Experts, Linear, ModelArchitecture

Targets = tuple[str, ...] | None
"""Module names, or None for "all-linear"."""

MIXTRAL, QWEN2_MOE = {"up": ("w1", "w3"), "down": ("w2",)}, {"up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
EXPERT_NAMES = {name: MIXTRAL for name in ("mixtral", "minimax", "minimax_m2")} | {
    name: QWEN2_MOE
    for name in (
        "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe",
        "solar_open", "mellum", "qwen3_moe", "qwen3_omni_moe", "qwen3_next", "hunyuan_v1_moe", "flex_olmo", "olmoe", "sarvam_mla", "exaone_moe",
        "cohere2_moe", "qwen3_vl_moe",
    )
}  # fmt: skip
"""Model types whose stacked experts PEFT adapts, and the names it knows their projections by."""


def reaches(model: ModelArchitecture, module: Linear, targets: Targets) -> bool:
    """Whether a linear module gets an adapter."""
    stacked = EXPERT_NAMES.get(model.model_type)
    if module.kind == "router":
        return stacked is not None and (targets is None or "gate" in targets)
    if stacked and module.name in (*stacked["up"], *stacked["down"]):
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
