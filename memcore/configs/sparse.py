"""Families with a mixture of experts in some or all layers."""

from __future__ import annotations

from ..architecture import Weight
from .blocks import dense_first, every, planned
from .dense import qwen_windows
from .family import Family, MoE
from .latent import latent_attention
from .reading import Keys


def shared_of(count: str, size: str = "moe_intermediate_size", otherwise: int = 0):
    """A shared expert as wide as `count` routed ones."""
    return lambda keys: keys.size(count, otherwise=otherwise, minimum=0) * keys.size(size)


def qwen_sparse(keys: Keys, depth: int) -> list[str]:
    """Sparse in every `decoder_sparse_step`-th layer, except those listed as dense."""
    step, dense = keys.size("decoder_sparse_step", otherwise=1), set(keys.list("mlp_only_layers", of=int) or ())
    return ["sparse" if i not in dense and (i + 1) % step == 0 else "dense" for i in range(depth)]


DEEPSEEK = {"num_experts": "n_routed_experts", "router_kind": "router", "shared_size": shared_of("n_shared_experts")}

SPARSE: dict[str, Family] = {
    "mixtral": Family(measured=True, moe=MoE(num_experts="num_local_experts", intermediate_size="intermediate_size")),
    "qwen3_moe": Family(measured=True, qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True, moe=MoE(), layers=planned(qwen_windows, qwen_sparse)),
    "deepseek_v2": Family(measured=True, attention=latent_attention, qkv_bias="attention_bias", mlp_bias="mlp_bias", rotary="interleaved", sliding=False,
                          moe=MoE(**DEEPSEEK), layers=planned(mlps=dense_first)),
    "deepseek_v3": Family(measured=True, attention=latent_attention, qkv_bias="attention_bias", rotary="interleaved", sliding=False,
                          moe=MoE(**DEEPSEEK), layers=planned(mlps=dense_first)),
    "gpt_oss": Family(
        measured=True,
        norm="rms-fp32-weight", qkv_bias="attention_bias", o_bias="attention_bias", layers=planned(every(2)),
        attention_extra=lambda keys, attention: (Weight("sinks", attention.num_attention_heads),),
        moe=MoE(num_experts="num_local_experts", intermediate_size="intermediate_size", router="router", router_bias=True, expert_bias=True),
    ),
}
