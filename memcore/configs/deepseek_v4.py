"""DeepSeek-V4: one key-value head, compressed in most layers, grouped output projections, several residual streams."""

from __future__ import annotations

from collections.abc import Mapping

from ..architecture import Attention, Linear, Module, Norm, Weight
from .family import Family, Layer, Mixer, MoE
from .reading import ConfigError, Keys

BY_RATIO = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def layers(keys: Keys, family: Family) -> list[Layer]:
    depth = keys.layers()
    kinds = keys.list("layer_types", length=depth, of=str)
    ratios = keys.list("compress_ratios", of=int)
    if kinds is None and ratios is not None:
        for ratio in ratios:
            if ratio not in BY_RATIO:
                raise ConfigError(f"{keys.label('compress_ratios')} holds {ratio}; known to memcore are {', '.join(map(str, BY_RATIO))}")
        kinds = [BY_RATIO[ratio] for ratio in ratios][:depth]
    if kinds is None:
        kinds = ["heavily_compressed_attention" if i < 2 or i % 2 == 0 else "compressed_sparse_attention" for i in range(depth)]
    if len(kinds) != depth:
        raise ConfigError(f"{keys.label('compress_ratios')} has {len(kinds)} entries for {depth} layers")
    return [Layer(kind, "sparse") for kind in kinds]


def compressor(keys: Keys, prefix: str, width: int, rate: int, overlap: bool) -> tuple[Module, ...]:
    """Keys and values of `rate` tokens become one; with overlap, of two groups at once."""
    h, out = keys.size("hidden_size"), width * (1 + overlap)
    return (
        Linear(prefix + "kv_proj", "other", h, out), Linear(prefix + "gate_proj", "other", h, out),
        Weight(prefix + "position_bias", rate * out), Norm(prefix + "kv_norm", "other", width),
    )


def attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    h, heads, d, rank = keys.size("hidden_size"), keys.size("num_attention_heads"), keys.size("head_dim"), keys.size("q_lora_rank")
    groups, o_rank = keys.size("o_groups"), keys.size("o_lora_rank")
    if heads * d % groups:
        raise keys.refuse("o_groups", f"does not divide the width of all heads ({heads * d})")
    rates = keys.nested("compress_rates") or {}
    rate = Keys({**RATES, **rates}, "", where=keys.label("compress_rates")).size(layer.mixer, 0, minimum=0) if layer.mixer in RATES else 0
    modules: tuple[Module, ...] = (
        Weight("sinks", heads), Linear("q_a_proj", "q_a", h, rank), Norm("q_a_norm", "q_a", rank),
        Linear("q_b_proj", "q_b", rank, heads * d),
        Linear("kv_proj", "kv_a", h, d), Norm("kv_norm", "kv_a", d),
    )
    if rate:
        modules += compressor(keys, "compressor.", d, rate, overlap=layer.mixer == "compressed_sparse_attention")
    if layer.mixer == "compressed_sparse_attention":
        n, width = keys.size("index_n_heads"), keys.size("index_head_dim")
        modules += compressor(keys, "indexer.", width, rate, overlap=True)
        modules += (Linear("indexer.q_b_proj", "other", rank, n * width), Linear("weights_proj", "other", h, n))
    modules += (Weight("o_a_proj", o_rank * heads * d), Linear("o_b_proj", "o", groups * o_rank, h))  # o_a: each group has its own
    share = keys.number("partial_rotary_factor", keys.size("qk_rope_head_dim", otherwise=max(1, d // 8)) / d, maximum=1.0)
    shape = Attention(num_attention_heads=heads, num_key_value_heads=1, head_dim=d, value_head_dim=d, rotary_dim=int(d * share),
                      sliding_window=keys.size("sliding_window", otherwise=0, minimum=0))
    return Mixer(("compressed_attention",), modules, shape)


def streams(keys: Keys) -> tuple[Module, ...]:
    """How a layer reads from and writes to `hc_mult` residual streams. [hyper-connections, arXiv:2409.19606]"""
    n, h = keys.size("hc_mult"), keys.size("hidden_size")
    mixes = (2 + n) * n
    return tuple(Weight(f"{part}_hc", mixes * n * h + mixes + 3) for part in ("attn", "ffn"))


def streams_head(keys: Keys) -> tuple[Module, ...]:
    n, h = keys.size("hc_mult"), keys.size("hidden_size")
    return (Weight("hc_head", n * n * h + n + 1),)


MIXERS: Mapping = {kind: attention for kind in BY_RATIO.values()}
DEEPSEEK_V4 = Family(
    keys={"intermediate_size": "moe_intermediate_size"}, attention=attention, mixers=MIXERS, layers=layers, rotary="interleaved",
    block_extra=streams, extra=streams_head, mlp_bias="mlp_bias",
    moe=MoE(num_experts="n_routed_experts", shared_size=lambda keys: keys.size("moe_intermediate_size")),
    uncertain=("Compressed attention and several residual streams are counted, but no step with them was measured.",),
)
