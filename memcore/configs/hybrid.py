"""Families with state-space, recurrent, convolutional or linear-attention layers, alone or between attention layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..architecture import Attention, Linear, Module, Norm, Weight
from .blocks import attention_shape, dense_first, every, planned
from .classic import four_times
from .dense import AFTER, BIASES, LLAMA
from .family import Family, Layer, Mixer, MoE, like
from .latent import latent_attention
from .mixers import (
    bailing_delta_attention,
    beside_attention,
    expanded,
    gated_delta_net,
    kimi_delta_attention,
    lightning_attention,
    mamba,
    mamba2,
    olmo_delta_net,
    rg_lru,
    rwkv,
    short_convolution,
)
from .reading import REMEDY, ConfigError, Keys
from .sparse import GRANITE_MOE, LOCAL, output_gate, qwen_sparse, shared_as, shared_of

UNCERTAIN = ("What a state-space or linear-attention layer keeps for its backward pass depends on its kernel and was not measured.",)
PRE_FF = {"input": "input_layernorm", "pre_mlp": "pre_ff_layernorm"}
FINAL = {"final_norm": "final_layernorm"}


def both_spellings(builder: Callable, *more: str) -> Mapping[str, Callable]:
    """transformers 5 says "linear_attention" where earlier files say "mamba"."""
    return dict.fromkeys(("linear_attention", "mamba", *more), builder)


def jamba_layers(keys: Keys, family: Family) -> list[Layer]:
    period, offset = keys.size("attn_layer_period"), keys.size("attn_layer_offset", minimum=0)
    expert_period, expert_offset = keys.size("expert_layer_period"), keys.size("expert_layer_offset", minimum=0)
    many = keys.size("num_experts") > 1
    return [
        Layer("full_attention" if i % period == offset else "mamba", "sparse" if many and i % expert_period == expert_offset else "dense")
        for i in range(keys.layers())
    ]


def bamba_kinds(keys: Keys, family: Family) -> list[str]:
    attention = set(keys.list("attn_layer_indices", of=int) or ())
    return ["full_attention" if i in attention else "mamba" for i in range(keys.layers())]


def listed_or(kind: str) -> Callable[[Keys, Family], list[str]]:
    return lambda keys, family: keys.list("layer_types", length=keys.layers(), of=str) or [kind] * keys.layers()


def lfm2_kinds(keys: Keys, family: Family) -> list[str]:
    depth = keys.layers()
    attention = keys.list("full_attn_idxs", of=int)
    chosen = set(range(depth) if attention is None else attention)
    return keys.list("layer_types", length=depth, of=str) or ["full_attention" if i in chosen else "conv" for i in range(depth)]


def lfm2_keys(keys: Keys) -> Mapping[str, object]:
    """The width of the gated part is two thirds of what the key says, rounded up to a multiple."""
    size = keys.size("block_ff_dim", otherwise=0, minimum=0) or keys.size("intermediate_size")
    if keys.flag("block_auto_adjust_ff_dim", True):
        multiple = keys.size("block_multiple_of", otherwise=256)
        size = int(keys.number("block_ffn_dim_multiplier", 1.0, maximum=64) * int(2 * size / 3))
        size = multiple * -(-size // multiple)
    return {"intermediate_size": size, **lfm2_tied(keys)}


def lfm2_tied(keys: Keys) -> Mapping[str, object]:
    return {"tie_word_embeddings": keys.flag("tie_embedding", keys.flag("tie_word_embeddings", True))}


NEMOTRON_KINDS = {  # letter of `hybrid_override_pattern`, word of `layers_block_type` → (mixer, feed-forward part)
    "M": ("mamba", "none"), "*": ("full_attention", "none"), "-": ("none", "dense"), "E": ("none", "sparse"),
    "mamba": ("mamba", "none"), "linear_attention": ("mamba", "none"), "attention": ("full_attention", "none"),
    "full_attention": ("full_attention", "none"), "mlp": ("none", "dense"), "moe": ("none", "sparse"),
}


def nemotron_layers(keys: Keys, family: Family) -> list[Layer]:
    """One norm and one part per layer, as a pattern of letters or a list of words says."""
    pattern = keys.value("layer_types") or keys.value("hybrid_override_pattern")
    if not isinstance(pattern, (str, list, tuple)) or not 0 < len(pattern) <= 4096:
        raise ConfigError(f"{keys.label('layers_block_type')} is missing (or hybrid_override_pattern, its older spelling)")
    for kind in pattern:
        if not isinstance(kind, str) or kind not in NEMOTRON_KINDS:
            raise ConfigError(f"layer type `{str(kind)[:40]}` is not known to memcore; {REMEDY}")
    return [Layer(*NEMOTRON_KINDS[kind]) for kind in pattern]


def zamba_layers(keys: Keys, family: Family) -> list[Layer]:
    depth, period, offset = keys.layers(), keys.size("attn_layer_period"), keys.size("attn_layer_offset", minimum=0)
    default = ["mamba", "mamba", "hybrid"] + ["hybrid" if i % period == offset else "mamba" for i in range(max(0, depth - 3))]
    return [Layer(kind, "none") for kind in keys.list("layer_types", length=depth, of=str) or default[:depth]]


ZAMBA_MAMBA = mamba("mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_expand", "mamba_proj_bias", "mamba_conv_bias")


def zamba_hybrid(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """One transformer block that all hybrid layers share, on twice the width, before the layer's own Mamba."""
    h, i, prefix = keys.size("hidden_size"), keys.size("intermediate_size"), "shared_transf."
    wide = keys.size("attention_hidden_size", otherwise=2 * h)
    head_dim = keys.size("head_dim", otherwise=2 * h // keys.size("num_attention_heads"))
    shape = attention_shape(keys.over({"head_dim": head_dim}), family, layer)
    mixer = ZAMBA_MAMBA(keys, family, layer)
    return Mixer(("attention", *mixer.tags), (
        Norm(prefix + "input_layernorm", "other", wide),
        Linear(prefix + "q_proj", "q", wide, shape.query_size), Linear(prefix + "k_proj", "k", wide, shape.key_size),
        Linear(prefix + "v_proj", "v", wide, shape.value_size), Linear(prefix + "o_proj", "o", shape.query_size, h),
        Norm(prefix + "pre_ff_layernorm", "pre_mlp", h), Linear(prefix + "gate_proj", "gate", h, i),
        Linear(prefix + "up_proj", "up", h, i), Linear(prefix + "down_proj", "down", i, h),
        Linear("linear", "other", h, h), *mixer.modules,
    ), shape)


def zamba2_layers(keys: Keys, family: Family) -> list[Layer]:
    """`hybrid` layers run one of `num_mem_blocks` shared transformer blocks, in turn, before their own Mamba layer."""
    depth, copies, seen, layers = keys.layers(), keys.size("num_mem_blocks", otherwise=1), 0, []
    default = ["mamba"] + (["mamba"] * 5 + ["hybrid"]) * 7 + ["mamba"] * 4 + ["hybrid"] + ["mamba"] * 3 + ["hybrid"] + ["mamba"] * 2
    for kind in keys.list("layer_types", length=depth, of=str) or default[:depth]:
        hybrid = kind == "hybrid"
        layers.append(Layer(kind, "none", (("_copy", seen % copies),) if hybrid else ()))
        seen += hybrid
    return layers


ZAMBA2_MAMBA = {"inner": expanded("mamba_expand"), "heads": "n_mamba_heads", "groups": "mamba_ngroups", "state": "mamba_d_state",
                "width": "mamba_d_conv", "bias": "add_bias_linear", "conv_bias": True}


def zamba2_hybrid(keys: Keys, family: Family, layer: Layer) -> Mixer:
    h, rank, prefix = keys.size("hidden_size"), keys.size("adapter_rank"), f"shared_transformer.{keys.size('_copy', 0, minimum=0)}."
    heads = keys.size("num_attention_heads")
    wide = keys.over({"hidden_size": 2 * h, "head_dim": 2 * h // heads})
    shape = attention_shape(wide, family, layer)
    i = keys.size("intermediate_size", otherwise=4 * h)
    bias = keys.flag("add_bias_linear")
    adapted = ("q", "k", "v") if keys.flag("use_shared_attention_adapter") else ()
    modules: tuple[Module, ...] = (
        Norm(prefix + "input_layernorm", "other", 2 * h),
        Linear(prefix + "q_proj", "q", 2 * h, shape.query_size), Linear(prefix + "k_proj", "k", 2 * h, shape.key_size),
        Linear(prefix + "v_proj", "v", 2 * h, shape.value_size), Linear(prefix + "o_proj", "o", shape.query_size, h),
        *(Linear(f"linear_{role}_adapter_list.0", "other", 2 * h, rank) for role in adapted),
        *(Linear(f"linear_{role}_adapter_list.1", "other", rank, 2 * h) for role in adapted),
        Norm(prefix + "pre_ff_layernorm", "pre_mlp", h),
        Linear(prefix + "gate_up_proj", "gate_up", h, 2 * i, bias), Linear(prefix + "down_proj", "down", i, h, bias),
        Linear("gate_up_proj_adapter_list.0", "other", h, rank), Linear("gate_up_proj_adapter_list.1", "other", rank, 2 * i),
        Linear("linear", "other", h, h),
    )
    mixer = mamba2(**ZAMBA2_MAMBA)(keys, family, layer)
    return Mixer(("attention", *mixer.tags), modules + mixer.modules, shape)


def griffin_layers(keys: Keys, family: Family) -> list[Layer]:
    """`block_types` is repeated over the layers."""
    kinds = keys.list("block_types", of=str) or ["recurrent", "recurrent", "attention"]
    mixers = {"recurrent": "recurrent", "attention": "sliding_attention"}
    plan = [kinds[i % len(kinds)] for i in range(keys.layers())]
    for kind in plan:
        if kind not in mixers:
            raise ConfigError(f"layer type `{kind[:40]}` is not known to memcore; {REMEDY}")
    return [Layer(mixers[kind]) for kind in plan]


def olmo_hybrid_keys(keys: Keys) -> Mapping[str, object]:
    heads = keys.size("num_attention_heads")
    key_heads, value_heads = keys.size("linear_num_key_heads", otherwise=heads), keys.size("linear_num_value_heads", otherwise=heads)
    width = keys.size("linear_key_head_dim", otherwise=int(0.75 * keys.size("hidden_size") / key_heads) or 1)
    return {"linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads, "linear_key_head_dim": width,
            "linear_value_head_dim": keys.size("linear_value_head_dim", otherwise=2 * width)}


def lfm3_layers(keys: Keys, family: Family) -> list[Layer]:
    """Each four: a convolution, another one, full attention, a window; the first is always a convolution."""
    depth = keys.layers()
    kinds = keys.list("layer_types", length=depth, of=str) or [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i and i % 4 == 0 else "conv" for i in range(depth)
    ]
    return [Layer(kind) for kind in kinds]


def lfm3_norms(keys: Keys) -> Mapping[str, str]:
    after = {"post_attention": "post_operator_norm", "post_mlp": "post_ffn_norm"} if keys.flag("use_sandwich_norm", True) else {}
    return {"input": "operator_norm", "pre_mlp": "ffn_norm", **after}


def lfm3_gate(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    return output_gate("g_proj", per_head=True)(keys, attention) if keys.flag("use_attention_gate", True) else ()


def lara_kinds(keys: Keys, family: Family) -> list[str]:
    depth = keys.layers()
    pattern = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    return keys.list("layer_types", length=depth, of=str) or [pattern[i % 5] for i in range(depth)]


def kimi_linear_keys(keys: Keys) -> Mapping[str, object]:
    """The checkpoint's own file says it in an object of its own, and counts layers from one."""
    inner = keys.nested("linear_attn_config")
    if inner is None:
        return {}
    own = Keys(inner, "", where="linear_attn_config")
    full = set(own.list("full_attn_layers", of=int) or ())
    kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(keys.layers())]
    names = {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads", "linear_conv_kernel_dim": "short_conv_kernel_size"}
    return {**({"layer_types": kinds} if full and keys.given("layer_types") is None else {}),
            **{name: own.size(theirs) for name, theirs in names.items() if own.given(theirs) is not None}}


def kimi_linear_kinds(keys: Keys, family: Family) -> list[str]:
    depth = keys.layers()
    return keys.list("layer_types", length=depth, of=str) or [
        "full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(depth)
    ]


def rwkv_layers(keys: Keys, family: Family) -> list[Layer]:
    return [Layer("rwkv", "dense", (("_first", True),) if i == 0 else ()) for i in range(keys.layers())]


def rwkv_gate(keys: Keys) -> tuple[Module, ...]:
    h = keys.size("hidden_size")
    return (Weight("time_mix_ffn", 2 * h), Linear("receptance", "other", h, h))


def falcon_h1_inner(keys: Keys) -> int:
    return keys.size("mamba_d_ssm", otherwise=expanded("mamba_expand")(keys))


MAMBA_KEYS = {"heads": "mamba_n_heads", "groups": "mamba_n_groups", "state": "mamba_d_state", "width": "mamba_d_conv",
              "bias": "mamba_proj_bias", "conv_bias": "mamba_conv_bias"}
MAMBA1 = mamba("state_size", "conv_kernel", "time_step_rank", "expand", "use_bias", "use_conv_bias")
BARE = Family(
    norms={"input": "norm"}, names={"final_norm": "norm_f"}, embed_tokens="embeddings", rotary="", uncertain=UNCERTAIN,
    layers=lambda keys, family: [Layer("mamba", "none")] * keys.layers(),
)
BAMBA = like(
    LLAMA, norms=PRE_FF, names=FINAL, layers=planned(bamba_kinds), partial_rotary=0.5, rotary="cat", uncertain=UNCERTAIN,
    mixers=both_spellings(mamba2(inner=expanded("mamba_expand"), **MAMBA_KEYS)),
)
QWEN3_NEXT = Family(
    **BIASES, norm="rms-fp32-weight", qk_norm=True, gated_query=True, rotary="cat", partial_rotary=0.25, sliding=False,
    uncertain=UNCERTAIN, layers=planned(every(4, "full_attention_interval", others="linear_attention"), qwen_sparse),
    mixers={"linear_attention": gated_delta_net(fused=True)},
    moe=MoE(shared_size=shared_as("shared_expert_intermediate_size"), shared_router=True),
)
QWEN3_5 = like(
    QWEN3_NEXT, mixers={"linear_attention": gated_delta_net(fused=False)}, moe=None,
    layers=planned(every(4, "full_attention_interval", others="linear_attention")),
)
LFM2 = Family(
    names={"o": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm", "gate": "w1", "up": "w3", "down": "w2",
        "final_norm": "embedding_norm"},
    norms={"input": "operator_norm", "pre_mlp": "ffn_norm"}, derive=lfm2_keys, qk_norm=True, layers=planned(lfm2_kinds), sliding=False,
    mixers={"conv": short_convolution("conv_L_cache", "conv_bias")}, uncertain=UNCERTAIN,
)

HYBRID: dict[str, Family] = {
    "mamba": like(BARE, mixers={"mamba": MAMBA1}),
    "falcon_mamba": like(BARE, mixers={"mamba": MAMBA1}),
    "mamba2": like(
        BARE,
        mixers={"mamba": mamba2(inner=expanded("expand"), heads="num_heads", groups="n_groups", state="state_size",
            width="conv_kernel", bias="use_bias", conv_bias="use_conv_bias")},
    ),
    "jamba": Family(
        norms=PRE_FF, names=FINAL, layers=jamba_layers, moe=MoE(router="router", intermediate_size="intermediate_size"), rotary="",
        sliding=False, uncertain=UNCERTAIN,
        mixers={"mamba": mamba("mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_expand", "mamba_proj_bias", "mamba_conv_bias",
            True)},
    ),
    "bamba": BAMBA,
    "granitemoehybrid": like(
        GRANITE_MOE, layers=planned(listed_or("mamba")), uncertain=UNCERTAIN,
        mixers=both_spellings(mamba2(inner=expanded("mamba_expand"), **MAMBA_KEYS)),
    ),
    "falcon_h1": like(
        BAMBA, layers=planned(listed_or("hybrid")), partial_rotary=1.0, rotary="half",
        mixers={"hybrid": beside_attention(mamba2(inner=falcon_h1_inner, **MAMBA_KEYS, out_bias="projectors_bias", norm="mamba_rms_norm"))},
    ),
    "nemotron_h": Family(
        required=("hidden_size", "vocab_size"), norms={"input": "norm", "pre_mlp": "norm"}, names={"final_norm": "norm_f"},
        embed_tokens="embeddings", tied=False, mlp_bias="mlp_bias", gated=False, activation="mlp_hidden_act", default_activation="relu2",
        rotary="", sliding=False, layers=nemotron_layers, uncertain=UNCERTAIN,
        derive=lambda keys: {name: keys.value(old) for name, old in {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv",
            "use_conv_bias": "mamba_conv_bias"}.items() if keys.given(old) is not None},
        moe=MoE(num_experts="n_routed_experts", gated=False, latent_size="moe_latent_size",
            shared_size=shared_as("moe_shared_expert_intermediate_size")),
        mixers={"mamba": mamba2(inner=lambda keys: keys.size("mamba_num_heads") * keys.size("mamba_head_dim"), heads="mamba_num_heads",
            groups="n_groups", state="ssm_state_size", width="conv_kernel", bias="use_bias", conv_bias="use_conv_bias")},
    ),
    "zamba": Family(
        layers=zamba_layers, names=FINAL, mixers={**both_spellings(ZAMBA_MAMBA), "hybrid": zamba_hybrid},
        keys={"head_dim": "attention_head_dim"}, sliding=False, rotary="", default_activation="gelu", uncertain=UNCERTAIN,
        shared="shared_transf.",
    ),
    "bailing_hybrid": Family(
        tied=False, attention=latent_attention, qkv_bias="attention_bias", rotary="interleaved", sliding=False, uncertain=UNCERTAIN,
        layers=planned(every(6, "layer_group_size", others="linear_attention"), dense_first(2)),
        mixers={"linear_attention": bailing_delta_attention}, attention_extra=output_gate("g_proj", per_head=True),
        moe=MoE(num_experts="num_local_experts", shared_size=shared_of("n_shared_experts")),
    ),
    "zamba2": Family(
        layers=zamba2_layers, names=FINAL, mixers={**both_spellings(mamba2(**ZAMBA2_MAMBA)), "hybrid": zamba2_hybrid}, sliding=False,
        shared="shared_transformer.", default_activation="gelu", uncertain=UNCERTAIN,
    ),
    "lfm2": LFM2,
    "lfm2_moe": like(LFM2, derive=lfm2_tied, layers=planned(lfm2_kinds, dense_first(2, "num_dense_layers")), moe=MoE()),
    "lfm3": like(
        LFM2, names={"gate": "w1", "up": "w3", "down": "w2", "final_norm": "embedding_norm"}, norms=lfm3_norms, derive=lambda keys: {},
        layers=lfm3_layers, sliding=True, **BIASES, attention_extra=lfm3_gate,
    ),
    "rwkv": Family(
        keys={"max_position_embeddings": "context_length"}, derive=four_times,
        names={"up": "key", "down": "value", "final_norm": "ln_out", "head": "head"}, norms={"input": "ln1", "pre_mlp": "ln2"},
        norm="layer", embed_tokens="embeddings", rotary="", gated=False, default_activation="relu2", mlp_extra=rwkv_gate,
        layers=rwkv_layers, mixers={"rwkv": rwkv}, uncertain=UNCERTAIN,
    ),
    "kimi_linear": Family(
        tied=False, attention=latent_attention, qkv_bias="attention_bias", rotary="", sliding=False, derive=kimi_linear_keys,
        uncertain=UNCERTAIN, layers=planned(kimi_linear_kinds, dense_first(1)), mixers={"linear_attention": kimi_delta_attention},
        moe=MoE(num_experts="num_local_experts", shared_size=shared_of("n_shared_experts")),
    ),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": like(QWEN3_NEXT, mixers=QWEN3_5.mixers, layers=QWEN3_5.layers),
    "lara_mini": like(
        QWEN3_NEXT, mixers=QWEN3_5.mixers, gated_query=False, partial_rotary=1.0, rotary="half", sliding=True,
        layers=planned(lara_kinds), moe=MoE(shared_size=shared_as("shared_expert_intermediate_size")),
    ),
    "olmo_hybrid": Family(
        **BIASES, norm="rms-fp32-weight", qk_norm=True, qk_norm_all_heads=True, norms=AFTER, sliding=False, uncertain=UNCERTAIN,
        layers=planned(every(4, others="linear_attention")), mixers={"linear_attention": olmo_delta_net}, derive=olmo_hybrid_keys,
    ),
    "minimax": Family(
        layers=planned(every(2, others="linear_attention")), mixers={"linear_attention": lightning_attention}, sliding=False,
        moe=MoE(**LOCAL), uncertain=UNCERTAIN,
    ),
    "recurrent_gemma": Family(
        norm="rms-fp32-weight", norms={"input": "temporal_pre_norm", "pre_mlp": "channel_pre_norm"}, names={"final_norm": "final_norm"},
        qkv_bias="attention_bias", o_bias=True, mlp_bias=True, activation="hidden_activation", default_activation="gelu_pytorch_tanh",
        rotary="cat", partial_rotary=0.5, final_softcap="logits_soft_cap", uncertain=UNCERTAIN,
        derive=lambda keys: {"intermediate_size": keys.size("intermediate_size", minimum=2) // 2}, layers=griffin_layers,
        mixers={"recurrent": rg_lru},
    ),
}
