"""Building a language model from a family's row and a config's keys: the parts that most families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..architecture import Attention, Block, Embedding, Experts, Linear, ModelArchitecture, Module, Norm
from .family import Family, Layer, Mixer
from .reading import MAX_PARAMETERS, REMEDY, ConfigError, Keys

NAMES = {  # Llama's, by role
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "qkv": "qkv_proj", "o": "o_proj", "q_norm": "q_norm", "k_norm": "k_norm",
    "gate": "gate_proj", "up": "up_proj", "gate_up": "gate_up_proj", "down": "down_proj",
    "q_a": "q_a_proj", "q_a_norm": "q_a_layernorm", "q_b": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa", "kv_a_norm": "kv_a_layernorm", "kv_b": "kv_b_proj",
    "experts": "experts", "shared_router": "shared_expert_gate", "final_norm": "norm", "head": "lm_head",
}


def name_of(family: Family, role: str) -> str:
    return family.names.get(role, NAMES.get(role, role))


def linear(keys: Keys, family: Family, role: str, in_features: int, out_features: int, bias: bool | str = False) -> Linear:
    return Linear(name_of(family, role), role, in_features, out_features, bias=keys.on(bias), kind=family.linear_kind)


def norm(keys: Keys, family: Family, name: str, role: str, size: int, kind: str = "", bias: bool | str | None = None) -> Norm:
    kind, bias = kind or family.norm, family.norm_bias if bias is None else bias
    bias = kind == "layer" if bias is None else keys.on(bias)
    return Norm(name, role, size, kind=kind, weight=keys.on(family.norm_weight), bias=bias)


# Attention


def partial_rotary_factor(keys: Keys, otherwise: float, kind: str) -> float:
    """The share of a head that is rotated, wherever the config says so: for all layers, or for one kind of them."""
    for place in ("rope_parameters", "rope_scaling"):
        rope = keys.value(place)
        rope = rope.get(kind, rope) if isinstance(rope, Mapping) else None
        if isinstance(rope, Mapping) and "partial_rotary_factor" in rope:
            return Keys(rope, "", where=place).number("partial_rotary_factor", otherwise, maximum=1.0)
    return keys.number("partial_rotary_factor", otherwise, maximum=1.0)


def head_counts(keys: Keys) -> tuple[int, int]:
    """Query heads and key-value heads."""
    heads = keys.size("num_attention_heads")
    kv_heads = keys.size("num_key_value_heads", otherwise=heads)
    if heads % kv_heads:
        raise keys.refuse("num_attention_heads", f"is not a multiple of {keys.label('num_key_value_heads')} ({kv_heads})")
    return heads, kv_heads


def attention_shape(keys: Keys, family: Family, layer: Layer) -> Attention:
    heads, kv_heads = head_counts(keys)
    hidden_size = keys.size("hidden_size")
    head_dim = keys.size("head_dim", otherwise=0) or _divided(keys, hidden_size, heads)
    share = partial_rotary_factor(keys, family.partial_rotary, layer.mixer) if family.rotary else 0
    windowed = layer.mixer == "sliding_attention" and family.sliding
    rotary_dim = keys.size("rotary_dim", otherwise=int(head_dim * share), minimum=0) if family.rotary else 0
    return Attention(
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        value_head_dim=keys.size(family.value_head_dim, otherwise=head_dim) if family.value_head_dim else head_dim,
        rotary_dim=min(rotary_dim, head_dim),
        sliding_window=keys.size("sliding_window", otherwise=0, minimum=0, maximum=2**40) if windowed else 0,
        softcap=keys.number("attn_logit_softcapping") > 0,
        dropout=keys.number(family.attention_dropout, maximum=1.0),
    )


def _divided(keys: Keys, hidden_size: int, heads: int) -> int:
    if hidden_size % heads:
        raise keys.refuse("hidden_size", f"is not a multiple of {keys.label('num_attention_heads')} ({heads})")
    return hidden_size // heads


def attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """Multi-head or grouped-query attention, its projections separate or fused."""
    shape, hidden_size = attention_shape(keys, family, layer), keys.size("hidden_size")
    widths = {"q": shape.query_size, "k": shape.key_size, "v": shape.value_size}
    if family.fused_qkv:
        modules: tuple[Module, ...] = (linear(keys, family, "qkv", hidden_size, sum(widths.values()), family.qkv_bias),)
    else:
        double = {"q": 1 + family.gated_query}
        modules = tuple(linear(keys, family, role, hidden_size, w * double.get(role, 1), family.qkv_bias) for role, w in widths.items())
    if keys.on(family.qk_norm):
        modules += tuple(
            norm(keys, family, name_of(family, f"{role}_norm"), role, widths[role] if family.qk_norm_all_heads else shape.head_dim,
                 family.qk_norm_kind, family.qk_norm_bias)
            for role in "qk"
        )
    modules += family.attention_extra(keys, shape)
    modules += (linear(keys, family, "o", shape.num_attention_heads * shape.value_head_dim, hidden_size, family.o_bias),)
    return Mixer(("attention",), modules, shape)


def no_mixer(keys: Keys, family: Family, layer: Layer) -> Mixer:
    return Mixer((), ())


# Feed-forward


def mlp(keys: Keys, family: Family, intermediate_size: int, prefix: str = "") -> tuple[Module, ...]:
    """Gated (three matrices, or two with gate and up fused) or plain (two)."""
    h, i, bias = keys.size("hidden_size"), intermediate_size, family.mlp_bias
    gated = keys.on(family.gated)
    up = (("gate_up", 2 * i),) if gated and family.fused_gate_up else (("gate", i), ("up", i)) if gated else (("up", i),)

    def part(role: str, in_features: int, out_features: int) -> Linear:
        return Linear(name_of(family, role), prefix + role, in_features, out_features, bias=keys.on(bias), kind=family.linear_kind)

    return (*(part(role, h, width) for role, width in up), *family.mlp_extra(keys), part("down", i, h))


def dense(keys: Keys, family: Family, layer: Layer) -> tuple[Module, ...]:
    return mlp(keys, family, keys.size("intermediate_size"))


def sparse(keys: Keys, family: Family, layer: Layer) -> tuple[Module, ...]:
    """A router, its experts, and the shared expert that every token also passes; without experts, that one alone."""
    moe, hidden_size = family.moe, keys.size("hidden_size")
    num_experts = keys.size(moe.num_experts, minimum=0, maximum=2**16)
    shared_size = moe.shared_size(keys) if moe.shared_size else 0
    if not num_experts:
        return mlp(keys, family, shared_size)
    experts_per_token = keys.size(moe.experts_per_token, otherwise=1, maximum=2**16)
    if experts_per_token > num_experts:
        raise keys.refuse(moe.experts_per_token, f"is larger than {keys.label(moe.num_experts)} ({num_experts})")
    router = Linear(moe.router, "router", hidden_size, num_experts, bias=keys.on(moe.router_bias), kind=moe.router_kind)
    width = keys.size(moe.latent_size, otherwise=hidden_size) if moe.latent_size else hidden_size
    experts: tuple[Module, ...] = (Experts(
        name_of(family, "experts"), num_experts, experts_per_token, width, keys.size(moe.intermediate_size),
        gated=moe.gated, bias=keys.on(moe.expert_bias),
    ),)
    if width != hidden_size:
        bias = keys.on(family.mlp_bias)
        down = Linear("fc1_latent_proj", "other", hidden_size, width, bias)
        up = Linear("fc2_latent_proj", "other", width, hidden_size, bias)
        experts = (down, *experts, up)
    shared: tuple[Module, ...] = ()
    if shared_size:
        shared = mlp(keys, family, shared_size, prefix="shared_")
        if moe.shared_router:
            shared += (Linear(name_of(family, "shared_router"), "shared_router", hidden_size, 1),)
    return (router, *moe.extra(keys), *experts, *shared)


def no_mlp(keys: Keys, family: Family, layer: Layer) -> tuple[Module, ...]:
    return ()


MIXERS = {"none": no_mixer}
MLPS = {"dense": dense, "sparse": sparse, "none": no_mlp}
ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "attention")


# Which layer is what


def mixer_kinds(keys: Keys, family: Family) -> list[str]:
    """The kind of each layer: as listed, else sliding where there is a window."""
    depth = keys.layers()
    listed = keys.list("layer_types", length=depth, of=str)
    if listed:
        return listed
    return ["sliding_attention" if family.sliding and keys.value("sliding_window") else "full_attention"] * depth


def every(n: int, period: str = "", first: bool = False, others: str = "sliding_attention") -> Callable[[Keys, Family], list[str]]:
    """Full attention in each `n`-th layer (or as the key `period` says), counted from the first or from the `n`-th, `others` between."""

    def kinds(keys: Keys, family: Family) -> list[str]:
        depth = keys.layers()
        listed = keys.list("layer_types", length=depth, of=str)
        if listed:
            return listed
        if others == "sliding_attention" and not keys.value("sliding_window"):
            return ["full_attention"] * depth
        step = keys.size(period, otherwise=n) if period else n
        return ["full_attention" if (i + (not first)) % step == 0 else others for i in range(depth)]

    return kinds


def dense_first(otherwise: int = 0, key: str = "first_k_dense_replace") -> Callable[[Keys, int], list[str]]:
    """As `mlp_layer_types` lists, else the first layers dense and the others sparse."""

    def parts(keys: Keys, depth: int) -> list[str]:
        listed = keys.list("mlp_layer_types", length=depth, of=str)
        for part in listed or ():
            if part not in ("dense", "sparse"):
                raise ConfigError(f"feed-forward type `{part[:40]}` in {keys.label('mlp_layer_types')} is not known to memcore; {REMEDY}")
        first = keys.size(key, otherwise=otherwise, minimum=0)
        step = keys.size("moe_layer_freq", otherwise=1) if isinstance(keys.value("moe_layer_freq"), int) else 1
        return listed or ["sparse" if i >= first and i % step == 0 else "dense" for i in range(depth)]

    return parts


def default_layers(keys: Keys, family: Family) -> list[Layer]:
    kinds = mixer_kinds(keys, family)
    return [Layer(kind, "sparse" if family.moe else "dense") for kind in kinds]


def planned(
    mixers: Callable[[Keys, Family], Sequence[str]] = mixer_kinds, mlps: Callable[[Keys, int], Sequence[str]] | None = None
) -> Callable[[Keys, Family], list[Layer]]:
    """A plan of layers from a rule for the mixers and one for the feed-forward parts."""

    def layers(keys: Keys, family: Family) -> list[Layer]:
        kinds = mixers(keys, family)
        parts = mlps(keys, len(kinds)) if mlps else ["sparse" if family.moe else "dense"] * len(kinds)
        return [Layer(kind, part) for kind, part in zip(kinds, parts, strict=True)]

    return layers


# The whole


def block(keys: Keys, family: Family, layer: Layer) -> Block:
    """One decoder layer."""
    keys = keys.over(dict(layer.changes)) if layer.changes else keys
    hidden_size = keys.size("hidden_size")
    build = family.mixers.get(layer.mixer) or MIXERS.get(layer.mixer)
    if layer.mixer in ATTENTION_KINDS:
        build = family.attention or attention
    if build is None:
        raise ConfigError(f"layer type `{layer.mixer[:40]}` is not known to memcore; {REMEDY}")
    mixer = build(keys, family, layer)
    feed_forward = (family.mlp or MLPS[layer.mlp])(keys, family, layer)

    norms = family.norms(keys) if callable(family.norms) else family.norms

    def at(place: str, present: bool = True) -> tuple[Module, ...]:
        name = norms.get(place)
        return (norm(keys, family, name, place, hidden_size),) if name and present else ()

    modules = (
        *family.block_extra(keys),
        *at("input", bool(mixer.modules)), *mixer.modules, *at("post_attention", bool(mixer.modules)),
        *at("pre_mlp", bool(feed_forward)), *feed_forward, *at("post_mlp", bool(feed_forward)),
    )
    rotary = family.rotary if mixer.attention and mixer.attention.rotary_dim else ""
    shared = family.shared if family.shared and any(m.name.startswith(family.shared) for m in modules) else ""
    return Block(
        shares=shared, mixers=mixer.tags, modules=modules, attention=mixer.attention, rotary=rotary,
        activation=keys.word(family.activation, family.default_activation), parallel=keys.on(family.parallel),
        hidden_dropout=keys.number(family.hidden_dropout, maximum=1.0) if family.hidden_dropout else 0.0,
    )


def doubts(keys: Keys, family: Family) -> tuple[str, ...]:
    """What is understood but not measured, one sentence each."""
    said = list(family.uncertain)
    if not family.measured and not said:
        said.append(f"No training step of a {keys.model_type} model was measured: it is put together from parts measured in others.")
    if family.moe and keys.value(family.moe.experts_per_token) is None:
        said.append(f"{keys.label(family.moe.experts_per_token)} is not given; one expert per token is assumed.")
    return tuple(said)


def language_model(keys: Keys, family: Family) -> ModelArchitecture:
    """A causal language model from its config."""
    for name in ("is_encoder_decoder", "add_cross_attention"):
        if keys.value(name):
            raise keys.refuse(name, f"makes it half of an encoder-decoder model; memcore counts causal language models ({REMEDY})")
    given = keys.values
    keys = keys.over(family.derive(keys))
    hidden_size, vocab_size = keys.size("hidden_size", maximum=2**20), keys.size("vocab_size")
    kinds = (family.layers or default_layers)(keys, family)
    built = {kind: block(keys, family, kind) for kind in dict.fromkeys(kinds)}
    width = keys.size(family.embedding_size, otherwise=hidden_size)
    path = keys.value("_name_or_path")
    model = ModelArchitecture(
        name=path if isinstance(path, str) and 0 < len(path) <= 200 else keys.model_type,
        model_type=keys.model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=tuple(built[kind] for kind in kinds),
        embed_tokens=Embedding(family.embed_tokens, vocab_size + family.spare_embeddings, width),
        lm_head=Linear(name_of(family, "head"), "other", width, vocab_size, bias=keys.on(family.head_bias)),
        final_norm=norm(keys, family, name_of(family, "final_norm"), "other", hidden_size) if keys.on(family.final_norm) else None,
        tie_word_embeddings=keys.on(family.tied),
        extra=family.extra(keys),
        max_position_embeddings=keys.size("max_position_embeddings", otherwise=0, minimum=0, maximum=2**40),
        final_softcap=bool(family.final_softcap) and keys.number(family.final_softcap) > 0,
        embedding_dropout=keys.number(family.embedding_dropout, maximum=1.0) if family.embedding_dropout else 0.0,
        uncertain=doubts(keys, family),
        config=tuple(given.items()),
    )
    if model.parameters > MAX_PARAMETERS:
        raise keys.refuse("hidden_size", f"and the other sizes make {model.parameters:.0e} parameters, more than any model has")
    return model
