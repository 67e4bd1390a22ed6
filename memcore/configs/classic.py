"""Families in the manner of GPT-2 and its heirs: LayerNorm, biases, plain feed-forward parts, often parallel blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..architecture import Attention, Embedding, Linear, Module, Norm, Weight
from .blocks import planned
from .family import Family, Layer, like
from .reading import Keys

N_KEYS = {  # the GPT-2 spelling
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
LN_NORMS = {"input": "ln_1", "pre_mlp": "ln_2"}
OPT_NORMS = {"input": "self_attn_layer_norm", "pre_mlp": "final_layer_norm"}
NEOX_NAMES = {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}


def four_times(keys: Keys) -> Mapping[str, object]:
    """A feed-forward part four times as wide as the model, unless a key says otherwise."""
    return {"intermediate_size": keys.size("intermediate_size", otherwise=4 * keys.size("hidden_size"))}


def always_four_times(keys: Keys) -> Mapping[str, object]:
    return {"intermediate_size": 4 * keys.size("hidden_size")}


def learned_positions(name: str, offset: int = 0) -> Callable[[Keys], tuple[Module, ...]]:
    def positions(keys: Keys) -> tuple[Module, ...]:
        return (Embedding(name, keys.size("max_position_embeddings") + offset, keys.size("hidden_size")),)

    return positions


def embedding_norm(keys: Keys) -> tuple[Module, ...]:
    return (Norm("word_embeddings_layernorm", "other", keys.size("hidden_size"), kind="layer", bias=True),)


def bigcode_keys(keys: Keys) -> Mapping[str, object]:
    return {**four_times(keys), "num_key_value_heads": 1 if keys.flag("multi_query", True) else keys.size("num_attention_heads")}


def gpt_neo_kinds(keys: Keys, family: Family) -> list[str]:
    """`attention_types`: [[["global", "local"], 12]], patterns with how often they are repeated."""
    depth, kinds = keys.layers(), []
    for entry in keys.list("attention_types") or [[["global", "local"], 12]]:
        valid = isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], (list, tuple)) and isinstance(entry[1], int)
        if not valid or not 0 < entry[1] <= depth or not 0 < len(entry[0]) <= depth:
            raise keys.refuse("attention_types", "must be a list of patterns, each with how often it is repeated")
        kinds += list(entry[0]) * entry[1]
        if len(kinds) > depth:
            break
    if len(kinds) != depth:
        raise keys.refuse("attention_types", f"does not make {depth} layers")
    return ["sliding_attention" if kind == "local" else "full_attention" for kind in kinds]


def falcon_keys(keys: Keys) -> Mapping[str, object]:
    heads = keys.size("num_attention_heads")
    new = keys.flag("new_decoder_architecture")
    kv_heads = keys.size("num_kv_heads", otherwise=heads) if new else 1 if keys.flag("multi_query", True) else heads
    return {"num_key_value_heads": kv_heads, **four_times(keys), "_parallel": new or keys.flag("parallel_attn", True)}


def falcon_norms(keys: Keys) -> Mapping[str, str]:
    if keys.flag("new_decoder_architecture"):
        two = keys.size("num_ln_in_parallel_attn", otherwise=2) == 2
        return {"input": "ln_attn", "pre_mlp": "ln_mlp"} if two else {"input": "input_layernorm"}
    one = keys.flag("parallel_attn", True)
    return {"input": "input_layernorm"} if one else {"input": "input_layernorm", "pre_mlp": "post_attention_layernorm"}


def opt_keys(keys: Keys) -> Mapping[str, object]:
    return {"_final_norm": keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm")}


def opt_outside(keys: Keys) -> tuple[Module, ...]:
    h = keys.size("hidden_size")
    narrow = keys.size("word_embed_proj_dim", otherwise=h)
    projections = () if narrow == h else (Linear("project_in", "other", narrow, h), Linear("project_out", "other", h, narrow))
    return learned_positions("embed_positions", offset=2)(keys) + projections


def last_bias_layers(keys: Keys, family: Family) -> list[Layer]:
    """GPT-NeoX Japanese: only the last layer's attention output has a bias."""
    depth = keys.layers()
    return [Layer("full_attention", changes=(("_last", True),) if i == depth - 1 else ()) for i in range(depth)]


def last_bias(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    return (Weight("dense_bias", keys.size("hidden_size")),) if keys.flag("_last") else ()


def modernbert_layers(keys: Keys, family: Family) -> list[Layer]:
    """Full attention in each third layer; the first layer reads the normalised embedding as it is."""
    depth, step = keys.layers(), keys.size("global_attn_every_n_layers", otherwise=3)
    kinds = keys.list("layer_types", length=depth, of=str) or ["sliding_attention" if i % step else "full_attention" for i in range(depth)]
    return [Layer(kind, "dense", (("_first", True),) if i == 0 else ()) for i, kind in enumerate(kinds)]


def modernbert_norms(keys: Keys) -> Mapping[str, str]:
    return {"pre_mlp": "mlp_norm", **({} if keys.flag("_first") else {"input": "attn_norm"})}


def modernbert_outside(keys: Keys) -> tuple[Module, ...]:
    """A norm after the embedding; a dense layer and a norm before the head."""
    h, bias = keys.size("hidden_size"), keys.flag("norm_bias")
    return (
        Norm("embeddings_norm", "other", h, kind="layer", bias=bias), Linear("dense", "other", h, h, keys.flag("classifier_bias")),
        Norm("head_norm", "other", h, kind="layer", bias=bias),
    )


def mpt_keys(keys: Keys) -> Mapping[str, object]:
    inner = Keys(keys.nested("attn_config") or {}, "", where="attn_config")
    if not inner.flag("alibi", True):
        raise inner.refuse("alibi", "is not the one kind of MPT that is known to memcore: with ALiBi positions")
    return always_four_times(keys)


GPT2 = Family(
    keys=N_KEYS, derive=four_times, names={"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj", "final_norm": "ln_f"},
    norms=LN_NORMS, norm="layer", embed_tokens="wte", fused_qkv=True, qkv_bias=True, o_bias=True, mlp_bias=True, gated=False,
    linear_kind="conv1d", rotary="", activation="activation_function", default_activation="gelu_new", extra=learned_positions("wpe"),
    attention_dropout="attn_pdrop", hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop", sliding=False, measured=True,
)
GPTJ = like(
    GPT2, names={"o": "out_proj", "up": "fc_in", "down": "fc_out", "final_norm": "ln_f"}, norms={"input": "ln_1"}, linear_kind="linear",
    fused_qkv=False, qkv_bias=False, o_bias=False, rotary="interleaved", parallel=True, extra=lambda keys: (), head_bias=True,
)
GPT_NEOX = Family(
    keys={"partial_rotary_factor": "rotary_pct"}, names={**NEOX_NAMES, "final_norm": "final_layer_norm", "head": "embed_out"},
    embed_tokens="embed_in", fused_qkv=True, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=True, gated=False,
    norm="layer", parallel="use_parallel_residual", rotary="cat", partial_rotary=0.25, default_activation="gelu", sliding=False,
    hidden_dropout="hidden_dropout", embedding_dropout="hidden_dropout", measured=True,
)
OPT = Family(
    keys={"intermediate_size": "ffn_dim"}, derive=opt_keys,
    names={"o": "out_proj", "up": "fc1", "down": "fc2", "final_norm": "final_layer_norm"}, norms=OPT_NORMS, final_norm="_final_norm",
    norm="layer", norm_weight="layer_norm_elementwise_affine", norm_bias="layer_norm_elementwise_affine", qkv_bias="enable_bias",
    o_bias="enable_bias", mlp_bias="enable_bias", gated=False, rotary="", activation="activation_function", default_activation="relu",
    extra=opt_outside, embedding_size="word_embed_proj_dim", hidden_dropout="dropout", embedding_dropout="dropout", sliding=False,
    measured=True,
)
PLAIN_OPT = like(
    OPT, derive=lambda keys: {}, final_norm=True, norm_weight=True, norm_bias=None, qkv_bias=True, o_bias=True, mlp_bias=True,
    embedding_size="hidden_size", names={**OPT.names, "final_norm": "layer_norm"}, default_activation="gelu",
)
FALCON = Family(
    keys={"intermediate_size": "ffn_hidden_size"}, derive=falcon_keys, names={**NEOX_NAMES, "final_norm": "ln_f"}, norms=falcon_norms,
    norm="layer", linear_kind="subclass", embed_tokens="word_embeddings", fused_qkv=True, qkv_bias="bias", o_bias="bias", mlp_bias="bias", gated=False,
    parallel="_parallel", activation="activation", default_activation="gelu", hidden_dropout="hidden_dropout", sliding=False,
    measured=True,
)
PHI = Family(
    names={"o": "dense", "up": "fc1", "down": "fc2", "q_norm": "q_layernorm", "k_norm": "k_layernorm", "final_norm": "final_layernorm"},
    norms={"input": "input_layernorm"}, norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True, gated=False,
    qk_norm="qk_layernorm", parallel=True, rotary="cat", partial_rotary=0.5, default_activation="gelu_new", sliding=False,
    hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop", measured=True,
)
COHERE = Family(
    norm="layer", norm_bias=False, norms={"input": "input_layernorm"}, parallel=True, rotary="interleaved", sliding=False,
    qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="use_qk_norm", qk_norm_all_heads=True,
)

CLASSIC: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "openai-gpt": like(
        GPT2, derive=always_four_times, names={**GPT2.names}, embed_tokens="tokens_embed", final_norm=False,
        norms={"post_attention": "ln_1", "post_mlp": "ln_2"}, extra=learned_positions("positions_embed"), activation="afn",
        default_activation="gelu",
    ),
    "gpt_bigcode": like(GPT2, derive=bigcode_keys, linear_kind="linear", default_activation="gelu_pytorch_tanh"),
    "gpt_neo": like(
        GPT2, keys={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "sliding_window": "window_size"},
        names={"o": "out_proj", "up": "c_fc", "down": "c_proj", "final_norm": "ln_f"}, linear_kind="linear", fused_qkv=False,
        qkv_bias=False, layers=planned(gpt_neo_kinds), sliding=True, attention_dropout="attention_dropout",
        hidden_dropout="resid_dropout", embedding_dropout="embed_dropout",
    ),
    "gptj": GPTJ,
    "codegen": like(GPTJ, fused_qkv=True),
    "ctrl": like(
        GPT2, keys={**N_KEYS, "intermediate_size": "dff"},
        names={"q": "Wq", "k": "Wk", "v": "Wv", "o": "dense", "up": "0", "down": "2", "final_norm": "layernorm"},
        norms={"input": "layernorm1", "pre_mlp": "layernorm2"}, linear_kind="linear", fused_qkv=False, embed_tokens="w",
        extra=lambda keys: (), head_bias=True, default_activation="relu", attention_dropout="_no_dropout",
    ),
    "gpt_neox": GPT_NEOX,
    "gpt_neox_japanese": like(
        GPT_NEOX, keys={"partial_rotary_factor": "rotary_pct"}, names={**NEOX_NAMES, "final_norm": "final_layer_norm"},
        derive=lambda keys: {"intermediate_size": keys.size("hidden_size") * keys.size("intermediate_multiple_size", 4)}, qkv_bias=False,
        o_bias=False, mlp_bias=False, parallel=False, partial_rotary=1.0, attention_extra=last_bias, layers=last_bias_layers,
    ),
    "bloom": Family(
        keys={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embed"}, derive=always_four_times,
        names={**NEOX_NAMES, "final_norm": "ln_f"}, norm="layer", embed_tokens="word_embeddings", fused_qkv=True, qkv_bias=True,
        o_bias=True, mlp_bias=True, gated=False, rotary="", default_activation="gelu_pytorch_tanh", extra=embedding_norm,
        hidden_dropout="hidden_dropout", sliding=False,
    ),
    "mpt": Family(
        keys={"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "hidden_size": "d_model",
            "max_position_embeddings": "max_seq_len"},
        derive=mpt_keys, names={"qkv": "Wqkv", "o": "out_proj", "up": "up_proj", "down": "down_proj", "final_norm": "norm_f"},
        norms={"input": "norm_1", "pre_mlp": "norm_2"}, norm="layer", norm_bias=False, embed_tokens="wte", fused_qkv=True, gated=False,
        rotary="", default_activation="gelu", sliding=False, hidden_dropout="resid_pdrop", embedding_dropout="emb_pdrop",
    ),
    "opt": OPT,
    "xglm": like(
        PLAIN_OPT,
        keys={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads",
            "intermediate_size": "ffn_dim"},
        extra=lambda keys: (),
    ),
    "biogpt": like(
        PLAIN_OPT, keys={}, activation="hidden_act", extra=learned_positions("embed_positions", 2),
        attention_dropout="attention_probs_dropout_prob", hidden_dropout="hidden_dropout_prob", embedding_dropout="hidden_dropout_prob",
    ),
    "falcon": FALCON,
    "phi": PHI,
    "persimmon": like(
        PHI, names={**NEOX_NAMES, "q_norm": "q_layernorm", "k_norm": "k_layernorm", "final_norm": "final_layernorm"},
        norms={"input": "input_layernorm", "pre_mlp": "post_attention_layernorm"}, fused_qkv=True, head_bias=False, parallel=False,
        default_activation="relu2", hidden_dropout="hidden_dropout", embedding_dropout="",
    ),
    "starcoder2": Family(
        names={"up": "c_fc", "down": "c_proj"}, norm="layer", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", gated=False,
        default_activation="gelu_pytorch_tanh", hidden_dropout="residual_dropout", embedding_dropout="embedding_dropout",
    ),
    "stablelm": Family(
        norms=lambda keys: {"input": "input_layernorm"} if keys.flag("use_parallel_residual") else {"input": "input_layernorm",
            "pre_mlp": "post_attention_layernorm"},
        norm="layer", qkv_bias="use_qkv_bias", qk_norm="qk_layernorm", qk_norm_all_heads=True, qk_norm_bias=False,
        names={"q_norm": "q_layernorm", "k_norm": "k_layernorm"}, parallel="use_parallel_residual", rotary="cat", partial_rotary=0.25,
        hidden_dropout="hidden_dropout", sliding=False,
    ),
    "nemotron": Family(
        norm="layer", qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", gated=False, rotary="cat",
        partial_rotary=0.5, default_activation="relu2", sliding=False,
    ),
    "jais2": Family(
        norm="layer", qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", gated=False, default_activation="relu2",
        sliding=False,
    ),
    "modernbert-decoder": Family(
        names={"o": "Wo", "gate_up": "Wi", "down": "Wo", "final_norm": "final_norm", "head": "decoder"}, norms=modernbert_norms,
        norm="layer", norm_bias="norm_bias", embed_tokens="tok_embeddings", qkv_bias="attention_bias", o_bias="attention_bias",
        mlp_bias="mlp_bias", fused_gate_up=True, activation="hidden_activation", default_activation="gelu", head_bias="decoder_bias",
        layers=modernbert_layers, derive=lambda keys: {"sliding_window": keys.size("local_attention", otherwise=0, minimum=0) // 2},
        extra=modernbert_outside, embedding_dropout="embedding_dropout",
    ),
    "olmo": Family(norm="layer", norm_weight=False, norm_bias=False, qkv_bias="attention_bias", o_bias="attention_bias", sliding=False),
    "cohere": COHERE,
}
