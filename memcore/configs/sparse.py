"""Families with a mixture of experts in some or all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..architecture import Attention, Experts, Linear, Module, Norm, Weight
from .blocks import attention_shape, dense_first, every, planned
from .classic import COHERE
from .dense import AFTER, BIASES, GLM, HUNYUAN, LLAMA, exaone4_windows, qwen_windows
from .family import Family, Layer, Mixer, MoE, like
from .latent import indexer, latent_attention
from .reading import Keys

Sizes = Callable[[Keys], int]


def shared_of(count: str, size: str = "moe_intermediate_size") -> Sizes:
    """A shared expert as wide as `count` routed ones."""
    return lambda keys: keys.size(count, otherwise=0, minimum=0) * keys.size(size)


def shared_as(size: str) -> Sizes:
    return lambda keys: keys.size(size, otherwise=0, minimum=0)


def qwen_sparse(keys: Keys, depth: int) -> list[str]:
    """Sparse in every `decoder_sparse_step`-th layer, except those listed as dense."""
    step, dense = keys.size("decoder_sparse_step", otherwise=1), set(keys.list("mlp_only_layers", of=int) or ())
    some = keys.size("num_experts", minimum=0) > 0
    return ["sparse" if some and i not in dense and (i + 1) % step == 0 else "dense" for i in range(depth)]


def qwen2_moe_windows(keys: Keys, family: Family) -> list[str]:
    """A window in every other of the first `max_window_layers` layers, where one is used."""
    depth, on = keys.layers(), keys.flag("use_sliding_window")
    first = keys.size("max_window_layers", otherwise=0, minimum=0)
    return keys.list("layer_types", length=depth, of=str) or [
        "sliding_attention" if on and i < first and i % 2 == 0 else "full_attention" for i in range(depth)
    ]


def ernie_sparse(keys: Keys, depth: int) -> list[str]:
    first, last = keys.size("moe_layer_start_index", otherwise=1, minimum=0), keys.size("moe_layer_end_index", otherwise=-1, minimum=-1)
    step = keys.size("moe_layer_interval", otherwise=1)
    last = depth - 1 if last == -1 else last
    return ["sparse" if first <= i <= last and (i + 1) % step == 0 else "dense" for i in range(depth)]


def llama4_layers(keys: Keys, family: Family) -> list[Layer]:
    """Sparse as listed or in every `interleave_moe_layer_step`-th layer; the dense ones have a width of their own."""
    depth = keys.layers()
    step = keys.size("interleave_moe_layer_step", otherwise=1)
    listed = keys.list("moe_layers", of=int)
    sparse = set(range(step - 1, depth, step) if listed is None else listed)
    rope = keys.list("no_rope_layers", of=int) or [(i + 1) % keys.size("no_rope_layer_interval", otherwise=4) for i in range(depth)]
    chunked = keys.value("attention_chunk_size") is not None
    kinds = keys.list("layer_types", length=depth, of=str) or ["chunked_attention" if chunked and r else "full_attention" for r in rope]
    wide = (("intermediate_size", keys.size("intermediate_size_mlp", otherwise=keys.size("intermediate_size"))),)
    return [Layer(kind, "sparse") if i in sparse else Layer(kind, "dense", wide) for i, kind in enumerate(kinds)]


def hunyuan_layers(keys: Keys, family: Family) -> list[Layer]:
    """Number of experts and of those at work may be listed per layer."""
    depth = keys.layers()
    listed = [name for name in ("num_experts", "num_experts_per_tok") if isinstance(keys.value(name), list)]
    lists = {name: keys.list(name, length=depth, of=int) for name in listed}
    return [Layer("full_attention", "sparse", tuple((name, values[i]) for name, values in lists.items())) for i in range(depth)]


def laguna_layers(keys: Keys, family: Family) -> list[Layer]:
    depth = keys.layers()
    heads = keys.list("num_attention_heads_per_layer", length=depth, of=int) or [None] * depth
    plans = zip(mixer_kinds_or_full(keys, family), dense_first(1)(keys, depth), heads, strict=True)
    return [Layer(kind, part, (("num_attention_heads", n),) if n else ()) for kind, part, n in plans]


def mixer_kinds_or_full(keys: Keys, family: Family) -> list[str]:
    return keys.list("layer_types", length=keys.layers(), of=str) or ["full_attention"] * keys.layers()


def minimax_m3_layers(keys: Keys, family: Family) -> list[Layer]:
    wide = {"dense": (("intermediate_size", keys.size("dense_intermediate_size")),)}
    plan = zip(mixer_kinds_or_full(keys, family), dense_first()(keys, keys.layers()), strict=True)
    return [Layer(kind, part, wide.get(part, ())) for kind, part in plan]


def mimo_layers(keys: Keys, family: Family) -> list[Layer]:
    """Windowed layers have twice the key-value heads, and sinks."""
    depth = keys.layers()
    kinds = keys.list("layer_types", length=depth, of=str) or [
        "full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(depth)
    ]
    double = (("num_key_value_heads", 2 * keys.size("num_key_value_heads")), ("_sinks", True))
    return [
        Layer(kind, part, double if kind == "sliding_attention" else ())
        for kind, part in zip(kinds, dense_first(1, "_first_dense")(keys, depth), strict=True)
    ]


def flint_kinds(keys: Keys, family: Family) -> list[str]:
    depth = keys.layers()
    return keys.list("layer_types", length=depth, of=str) or [
        "full_attention" if i < 2 or i % 4 == 1 or i == depth - 1 else "sliding_attention" for i in range(depth)
    ]


def flint_sparse(keys: Keys, depth: int) -> list[str]:
    listed = keys.list("mlp_only_layers", of=int)
    return qwen_sparse(keys.over({"mlp_only_layers": [0, 1] if listed is None else listed}), depth)


def glm_dsa_layers(keys: Keys, family: Family) -> list[Layer]:
    """Some layers may reuse the choice of an earlier layer's indexer, and have none."""
    depth = keys.layers()
    pattern = keys.value("index_topk_pattern")
    every_n, offset = keys.size("index_topk_freq", otherwise=1), keys.size("index_skip_topk_offset", otherwise=2, minimum=0)
    types = keys.list("indexer_types", length=depth, of=str)
    if types is None and isinstance(pattern, str):
        types = ["shared" if letter == "S" else "full" for letter in pattern]
    if types is None:
        types = ["full" if max(i - offset + 1, 0) % every_n == 0 else "shared" for i in range(depth)]
    if len(types) != depth:
        raise keys.refuse("index_topk_pattern", f"has {len(types)} letters for {depth} layers")
    parts = dense_first(3)(keys, depth)
    changes = {"shared": (("_reuses_index", True),)}
    return [Layer("indexed_attention", part, changes.get(kind, ())) for part, kind in zip(parts, types, strict=True)]


def cohere2_moe_layers(keys: Keys, family: Family) -> list[Layer]:
    depth, first = keys.layers(), keys.size("first_k_dense_replace", otherwise=0, minimum=0)
    prefix, step = keys.size("prefix_dense_sliding_window_pattern", otherwise=1), keys.size("sliding_window_pattern", otherwise=4)
    kinds = keys.list("layer_types", length=depth, of=str) or [
        "sliding_attention" if ((i + 1) % prefix if i < first else (i - first + 1) % step) else "full_attention" for i in range(depth)
    ]
    size = keys.size("prefix_dense_intermediate_size", otherwise=keys.size("intermediate_size"))
    parts = dense_first()(keys, depth)
    return [Layer(kind, part, (("intermediate_size", size),) if part == "dense" else ()) for kind, part in zip(kinds, parts, strict=True)]


def floor_head_dim(keys: Keys) -> Mapping[str, object]:
    """GLM-4.5 rounds the width of a head down where heads do not divide the hidden size."""
    return {"head_dim": keys.size("head_dim", otherwise=max(1, keys.size("hidden_size") // keys.size("num_attention_heads")))}


def dbrx_keys(keys: Keys) -> Mapping[str, object]:
    attention = Keys(keys.nested("attn_config") or {}, "", where="attn_config")
    experts = Keys(keys.nested("ffn_config") or {}, "", where="ffn_config")
    return {
        "num_key_value_heads": attention.size("kv_n_heads", otherwise=1),
        "num_experts": experts.size("moe_num_experts", otherwise=4), "num_experts_per_tok": experts.size("moe_top_k", otherwise=1),
        "moe_intermediate_size": experts.size("ffn_hidden_size", otherwise=3584), "attention_dropout": attention.number("attn_pdrop"),
    }


def jetmoe_keys(keys: Keys) -> Mapping[str, object]:
    """As many query heads as key-value heads, for each expert at work."""
    return {"num_attention_heads": keys.size("num_key_value_heads") * keys.size("num_experts_per_tok", otherwise=1)}


def jetmoe_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """Queries and outputs come from routed experts; keys and values are shared by all of them."""
    h, shape = keys.size("hidden_size"), attention_shape(keys, family, layer)
    experts = keys.size("num_experts", maximum=2**16)
    per_token = keys.size("num_experts_per_tok", otherwise=1, maximum=experts)
    return Mixer(("routed_attention",), (
        Weight("bias", h), Linear("layer", "other", h, experts), Linear("kv_proj", "other", h, 2 * shape.key_size),
        Experts("experts", experts, per_token, h, shape.key_size, gated=False),
    ), shape)


def sinks(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    """A learned logit per head, to which attention can go."""
    return (Weight("sinks", attention.num_attention_heads),)


def output_gate(name: str, per_head: bool = False) -> Callable[[Keys, Attention], tuple[Module, ...]]:
    """The attention's output is multiplied by a gate computed from its input, per element or per head."""
    def gate(keys: Keys, attention: Attention) -> tuple[Module, ...]:
        width = attention.num_attention_heads if per_head else attention.query_size
        return (Linear(name, "other", keys.size("hidden_size"), width),)

    return gate


def laguna_gate(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    gating = keys.value("gating")
    return output_gate("g_proj", per_head=gating in (True, "per-head"))(keys, attention)


def steering_bias(keys: Keys) -> tuple[Module, ...]:
    """A bias per expert that only steers the routing: a parameter here, a buffer in most families."""
    return (Weight("e_score_correction_bias", keys.size("num_experts")),)


LOCAL = {"num_experts": "num_local_experts", "intermediate_size": "intermediate_size"}
DEEPSEEK_MOE = MoE(num_experts="n_routed_experts", shared_size=shared_of("n_shared_experts"))
QWEN_SHARED = MoE(shared_size=shared_as("shared_expert_intermediate_size"), shared_router=True)
GRANITE_MOE = like(
    LLAMA, mlp_bias=False, fused_gate_up=True, names={"gate_up": "input_linear", "down": "output_linear"},
    moe=MoE(**LOCAL, router="router", shared_size=shared_as("shared_intermediate_size")),
)
DEEPSEEK_V3 = Family(
    attention=latent_attention, qkv_bias="attention_bias", rotary="interleaved", sliding=False, moe=DEEPSEEK_MOE,
    layers=planned(mlps=dense_first()), measured=True,
)
GLM4_MOE = like(
    GLM, derive=floor_head_dim, fused_gate_up=False, rotary="cat", qk_norm="use_qk_norm", moe=DEEPSEEK_MOE,
    layers=planned(mlps=dense_first()),
)
MOE_NORMS = {"input": "input_layernorm", "post_attention": "post_attention_layernorm", "pre_mlp": "pre_mlp_layernorm",
    "post_mlp": "post_mlp_layernorm"}

SPARSE: dict[str, Family] = {
    "mixtral": Family(moe=MoE(**LOCAL), measured=True),
    "qwen2_moe": Family(qkv_bias="qkv_bias", moe=QWEN_SHARED, layers=planned(qwen2_moe_windows, qwen_sparse)),
    "qwen3_moe": Family(**BIASES, qk_norm=True, moe=MoE(), layers=planned(qwen_windows, qwen_sparse), measured=True),
    "deepseek_v2": like(DEEPSEEK_V3, mlp_bias="mlp_bias", measured=True),
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "sarvam_mla": DEEPSEEK_V3,
    "glm4_moe_lite": like(DEEPSEEK_V3, layers=planned(mlps=dense_first(1))),
    "deepseek_v32": like(DEEPSEEK_V3, attention_extra=indexer),
    "glm_moe_dsa": like(
        DEEPSEEK_V3, attention_extra=lambda keys, attention: () if keys.flag("_reuses_index") else indexer(keys, attention),
        layers=glm_dsa_layers,
    ),
    "axk1": like(
        DEEPSEEK_V3, layers=planned(mlps=dense_first(1)),
        moe=MoE(num_experts="n_routed_experts", shared_size=shared_of("n_shared_experts"),
            extra=lambda keys: (Norm("post_mlp_layernorm", "other", keys.size("hidden_size")),)),
    ),
    "glm4_moe": GLM4_MOE,
    "sarvam_moe": GLM4_MOE,
    "solar_open": like(
        GLM4_MOE, qkv_bias="attention_bias", qk_norm=False, rotary="half", partial_rotary=1.0, layers=planned(mixer_kinds_or_full),
    ),
    "dots1": Family(
        **BIASES, qk_norm=True, moe=DEEPSEEK_MOE,
        layers=planned(lambda keys, family: qwen_windows(keys.over({"use_sliding_window": True}), family), dense_first()),
    ),
    "gpt_oss": Family(
        **BIASES, norm="rms-fp32-weight", layers=planned(every(2)), attention_extra=sinks,
        moe=MoE(**LOCAL, router="router", router_bias=True, expert_bias=True), measured=True,
    ),
    "phimoe": Family(**BIASES, norm="layer", head_bias="lm_head_bias", moe=MoE(**LOCAL, router="router")),
    "olmoe": like(LLAMA, mlp_bias=False, qk_norm=True, qk_norm_all_heads=True, moe=MoE(intermediate_size="intermediate_size")),
    "flex_olmo": like(
        LLAMA, mlp_bias=False, qk_norm=True, qk_norm_all_heads=True, norms=AFTER, moe=MoE(intermediate_size="intermediate_size"),
    ),
    "minimax_m2": Family(qk_norm=True, qk_norm_all_heads=True, rotary="cat", sliding=False, moe=MoE(**LOCAL)),
    "granitemoe": GRANITE_MOE,
    "granitemoeshared": GRANITE_MOE,
    "granitemoe_swa": like(GRANITE_MOE, sliding=True, layers=planned(every(4, first=True)), attention_extra=sinks),
    "exaone_moe": Family(
        qk_norm=True, moe=MoE(shared_size=shared_of("num_shared_experts")), layers=planned(exaone4_windows, dense_first(1)),
    ),
    "afmoe": Family(
        **BIASES, qk_norm=True, norms=MOE_NORMS, attention_extra=output_gate("gate_proj"),
        layers=planned(every(4, "global_attn_every_n_layers"), dense_first(1, "num_dense_layers")),
        moe=MoE(router_kind="linear", shared_size=shared_of("num_shared_experts"), extra=steering_bias),
    ),
    "ernie4_5_moe": like(
        LLAMA, head_bias="use_bias", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", rotary="interleaved",
        layers=planned(mlps=ernie_sparse),
        moe=MoE("moe_num_experts", "moe_k", shared_size=shared_of("moe_num_shared_experts"), extra=steering_bias),
    ),
    "hunyuan_v1_moe": like(
        HUNYUAN, layers=hunyuan_layers,
        moe=MoE(intermediate_size="intermediate_size", router="wg", router_kind="linear", shared_size=shared_as("intermediate_size")),
    ),
    "hy_v3": Family(
        **BIASES, mlp_bias="mlp_bias", qk_norm=True, sliding=False, layers=planned(mlps=dense_first(1)),
        moe=MoE(shared_size=shared_of("num_shared_experts")),
    ),
    "dbrx": Family(
        keys={"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "hidden_size": "d_model",
            "max_position_embeddings": "max_seq_len"},
        derive=dbrx_keys, names={"qkv": "Wqkv", "o": "out_proj", "final_norm": "norm_f"}, norms={"input": "norm_1", "pre_mlp": "norm_2"},
        norm="layer", norm_bias=False, fused_qkv=True, embed_tokens="wte", sliding=False, moe=MoE(router="layer", router_kind="linear"),
        hidden_dropout="resid_pdrop", embedding_dropout="emb_pdrop",
    ),
    "aria_text": like(
        LLAMA,
        moe=MoE("moe_num_experts", "moe_topk", intermediate_size="intermediate_size", router="router",
            shared_size=shared_of("moe_num_shared_experts", "intermediate_size")),
    ),
    "llama4_text": like(
        LLAMA, mlp_bias=False, layers=llama4_layers, rotary="interleaved",
        moe=MoE(**LOCAL, router="router", shared_size=shared_as("intermediate_size")),
    ),
    "mellum": Family(**BIASES, qk_norm=True, moe=MoE(), layers=planned(mixer_kinds_or_full, dense_first())),
    "flint": Family(
        **BIASES, qk_norm=True, attention_extra=sinks, layers=planned(flint_kinds, flint_sparse),
        moe=MoE(shared_size=shared_as("shared_expert_intermediate_size")),
    ),
    "laguna": Family(
        qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True, attention_extra=laguna_gate, layers=laguna_layers,
        moe=MoE(shared_size=shared_as("shared_expert_intermediate_size"), extra=steering_bias),
    ),
    "mimo_v2_flash": Family(
        qkv_bias="attention_bias", rotary="cat", partial_rotary=0.334, value_head_dim="v_head_dim", layers=mimo_layers,
        moe=MoE("n_routed_experts"), attention_extra=lambda keys, attention: sinks(keys, attention) if keys.flag("_sinks") else (),
    ),
    "cohere2_moe": like(
        COHERE, qk_norm=False, sliding=True, layers=cohere2_moe_layers,
        moe=MoE(intermediate_size="intermediate_size", shared_size=shared_of("num_shared_experts", "intermediate_size")),
    ),
    "kolibri1": Family(
        qk_norm=True, layers=planned(every(5)), moe=MoE(shared_size=shared_as("shared_expert_intermediate_size")),
        norms={"input": "input_layernorm", "post_attention": "post_self_attn_layernorm", "pre_mlp": "post_attention_layernorm",
            "post_mlp": "post_mlp_layernorm"},
    ),
    "jetmoe": Family(
        keys={"head_dim": "kv_channels"}, derive=jetmoe_keys, attention=jetmoe_attention, activation="activation_function",
        sliding=False,
        moe=MoE(**LOCAL, router="layer", router_kind="linear", extra=lambda keys: (Weight("bias", keys.size("hidden_size")),)),
    ),
    "minimax_m3_vl_text": Family(
        qk_norm=True, rotary="cat", fused_gate_up=True, sliding=False, layers=minimax_m3_layers,
        moe=MoE(**LOCAL, shared_size=shared_as("shared_intermediate_size")),
    ),
    # the language models within multimodal ones
    "qwen3_vl_moe_text": Family(**BIASES, qk_norm=True, moe=MoE(), layers=planned(qwen_windows, qwen_sparse)),
    "glm4v_moe_text": GLM4_MOE,
}
