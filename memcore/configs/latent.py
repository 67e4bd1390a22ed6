"""Latent attention (DeepSeek-V2 and after): queries, keys and values through low-rank paths."""

from __future__ import annotations

from ..architecture import Attention, Linear, Module, Norm
from .blocks import head_counts, name_of, norm
from .family import Family, Layer, Mixer
from .reading import Keys


def latent_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    h, (heads, _) = keys.size("hidden_size"), head_counts(keys)
    nope, rope, value = keys.size("qk_nope_head_dim", minimum=0), keys.size("qk_rope_head_dim"), keys.size("v_head_dim")
    q_rank, kv_rank = keys.size("q_lora_rank", otherwise=0, minimum=0), keys.size("kv_lora_rank")
    bias = keys.on(family.qkv_bias)
    modules: tuple[Module, ...]
    if q_rank:
        modules = (
            Linear(name_of(family, "q_a"), "q_a", h, q_rank, bias),
            norm(keys, family, name_of(family, "q_a_norm"), "q_a", q_rank),
            Linear(name_of(family, "q_b"), "q_b", q_rank, heads * (nope + rope)),
        )
    else:
        modules = (Linear(name_of(family, "q"), "q", h, heads * (nope + rope)),)
    modules += (
        Linear(name_of(family, "kv_a"), "kv_a", h, kv_rank + rope, bias),
        norm(keys, family, name_of(family, "kv_a_norm"), "kv_a", kv_rank),
        Linear(name_of(family, "kv_b"), "kv_b", kv_rank, heads * (nope + value)),
    )
    shape = Attention(
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=nope + rope, value_head_dim=value, rotary_dim=rope,
        dropout=keys.number(family.attention_dropout, maximum=1.0),
    )
    modules += family.attention_extra(keys, shape)
    modules += (Linear(name_of(family, "o"), "o", heads * value, h, bias),)
    return Mixer(("latent_attention",), modules, shape)


def indexer(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    """DeepSeek-V3.2's indexer, which chooses the tokens that attention looks at."""
    h, heads, width = keys.size("hidden_size"), keys.size("index_n_heads"), keys.size("index_head_dim")
    return (
        Linear("wq_b", "other", keys.size("q_lora_rank"), heads * width),
        Linear("wk", "other", h, width),
        Norm("k_norm", "other", width, kind="layer", bias=True),
        Linear("weights_proj", "other", h, heads),
    )
