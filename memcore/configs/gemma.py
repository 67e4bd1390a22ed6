"""Gemma 3n and Gemma 4: layers that reuse earlier layers' keys and values, and an embedding of their own for each layer."""

from __future__ import annotations

from collections.abc import Mapping

from ..architecture import Embedding, Experts, Linear, Module, Norm, Weight
from .blocks import attention_shape, dense, every, linear, norm
from .dense import GEMMA2
from .family import Family, Layer, Mixer, like
from .reading import Keys

UNCERTAIN = ("Per-layer embeddings, shared keys and values and parallel residual streams are counted, but no step with them was measured.",)


def gemma_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """Normalised queries, keys and values; none of the latter two in a layer that reuses another's."""
    h, shape = keys.size("hidden_size"), attention_shape(keys, family, layer)
    modules: tuple[Module, ...] = (
        linear(keys, family, "q", h, shape.query_size, family.qkv_bias), norm(keys, family, "q_norm", "q", shape.head_dim),
    )
    if not keys.flag("_reuses_kv"):
        modules += (linear(keys, family, "k", h, shape.key_size, family.qkv_bias),)
        if not keys.flag("_value_is_key"):
            modules += (linear(keys, family, "v", h, shape.value_size, family.qkv_bias),)
        modules += (norm(keys, family, "k_norm", "k", shape.head_dim), Norm("v_norm", "other", shape.head_dim, family.norm, weight=False))
    tag = "shared_attention" if keys.flag("_reuses_kv") else "attention"
    return Mixer((tag,), (*modules, linear(keys, family, "o", shape.query_size, h, family.o_bias)), shape)


def per_layer_input(keys: Keys) -> tuple[Module, ...]:
    """What each layer does with its own embedding of the token."""
    h, p = keys.size("hidden_size"), keys.size("hidden_size_per_layer_input", otherwise=0, minimum=0)
    return () if not p else (
        Linear("per_layer_input_gate", "other", h, p), Linear("per_layer_projection", "other", p, h),
        Norm("post_per_layer_input_norm", "other", h, kind="rms-fp32-weight"),
    )


def per_layer_embeddings(keys: Keys) -> tuple[Module, ...]:
    h, p = keys.size("hidden_size"), keys.size("hidden_size_per_layer_input", otherwise=0, minimum=0)
    width = p * keys.layers()
    return () if not p else (
        Embedding("embed_tokens_per_layer", keys.size("vocab_size_per_layer_input"), width),
        Linear("per_layer_model_projection", "other", h, width), Norm("per_layer_projection_norm", "other", p, kind="rms-fp32-weight"),
    )


def shared_kv(keys: Keys) -> list[tuple[tuple[str, object], ...]]:
    """The last `num_kv_shared_layers` layers have no keys and values of their own."""
    depth, shared = keys.layers(), keys.size("num_kv_shared_layers", otherwise=0, minimum=0)
    if shared > depth:
        raise keys.refuse("num_kv_shared_layers", f"is larger than {keys.label('num_hidden_layers')} ({depth})")
    return [(("_reuses_kv", True),) if i >= depth - shared else () for i in range(depth)]


# Gemma 3n


def gemma3n_layers(keys: Keys, family: Family) -> list[Layer]:
    each = isinstance(keys.value("intermediate_size"), list)
    widths = keys.list("intermediate_size", length=keys.layers(), of=int) if each else [keys.size("intermediate_size")] * keys.layers()
    plan = zip(every(5)(keys, family), shared_kv(keys), widths, strict=True)
    return [Layer(kind, "dense", (*changes, ("intermediate_size", width))) for kind, changes, width in plan]


MOST_COPIES = 64
"""Of the residual stream; Gemma 3n has 4."""


def altup_and_laurel(keys: Keys) -> tuple[Module, ...]:
    """Several copies of the residual stream [AltUp, arXiv:2301.13310] and a low-rank path beside attention [LAuReL, arXiv:2411.07501]."""
    h, n, r = keys.size("hidden_size"), keys.size("altup_num_inputs", maximum=MOST_COPIES), keys.size("laurel_rank")
    return (
        Weight("correct_output_scale", h), Linear("correction_coefs", "other", n, n), Linear("prediction_coefs", "other", n, n * n),
        Linear("modality_router", "other", h, n), Norm("router_norm", "other", h, kind="rms-fp32-weight"),
        Linear("linear_left", "other", h, r), Linear("linear_right", "other", r, h),
        Norm("post_laurel_norm", "other", h, kind="rms-fp32-weight"),
        *per_layer_input(keys),
    )


def gemma3n_outside(keys: Keys) -> tuple[Module, ...]:
    h, copies = keys.size("hidden_size"), keys.size("altup_num_inputs", maximum=MOST_COPIES) - 1
    projections = (Linear("altup_projections", "other", h, h), Linear("altup_unembed_projections", "other", h, h))
    return (*per_layer_embeddings(keys), *(p for p in projections for _ in range(copies)))


# Gemma 4


def gemma4_layers(keys: Keys, family: Family) -> list[Layer]:
    """Full-attention layers have wider heads, and may use the key as the value; the last layer always is one."""
    depth = keys.layers()
    kinds = every(6)(keys, family)[:-1] + ["full_attention"]
    same = keys.flag("attention_k_eq_v")
    given = keys.nested("per_layer_config")
    numbered = [(i, own) for i, own in (given or {}).items() if isinstance(i, str) and i.isdecimal() and len(i) < 6]
    own_keys = {int(i): own for i, own in numbered if isinstance(own, Mapping)}
    layers = []
    for i, (kind, changes) in enumerate(zip(kinds, shared_kv(keys), strict=True)):
        if kind == "full_attention":
            if given is None:
                changes += (("head_dim", keys.size("global_head_dim", otherwise=512)),)
                if same and keys.value("num_global_key_value_heads") is not None:
                    changes += (("num_key_value_heads", keys.size("num_global_key_value_heads")),)
            changes += (("_value_is_key", same),)
        own = own_keys.get(i, {})
        changes += tuple((name, own[name]) for name in ("head_dim", "num_key_value_heads") if isinstance(own.get(name), int))
        if keys.flag("use_double_wide_mlp") and i >= depth - keys.size("num_kv_shared_layers", otherwise=0, minimum=0):
            changes += (("intermediate_size", 2 * keys.size("intermediate_size")),)
        layers.append(Layer(kind, "dense", changes))
    return layers


def gemma4_mlp(keys: Keys, family: Family, layer: Layer) -> tuple[Module, ...]:
    """The MLP, and beside it a mixture of experts where there is one."""
    if not keys.flag("enable_moe_block"):
        return dense(keys, family, layer)
    h, n = keys.size("hidden_size"), keys.size("num_experts", maximum=2**16)
    norms = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    return (
        *dense(keys, family, layer),
        Linear("proj", "router", h, n), Weight("scale", h), Weight("per_expert_scale", n),
        Experts("experts", n, keys.size("top_k_experts", otherwise=1, maximum=n), h, keys.size("moe_intermediate_size")),
        *(Norm(name, "other", h, kind="rms-fp32-weight") for name in norms),
    )


GEMMA4 = like(
    GEMMA2, attention=gemma_attention, layers=gemma4_layers, mlp=gemma4_mlp, block_extra=per_layer_input, extra=per_layer_embeddings,
    uncertain=UNCERTAIN,
)

GEMMA: dict[str, Family] = {
    "gemma3n_text": like(
        GEMMA2, attention=gemma_attention, layers=gemma3n_layers, block_extra=altup_and_laurel, extra=gemma3n_outside,
        uncertain=UNCERTAIN,
    ),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
}
