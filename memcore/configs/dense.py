"""Families of dense decoders: attention and a feed-forward part in every layer."""

from __future__ import annotations

from collections.abc import Mapping

from ..architecture import Embedding, Linear, Module
from .blocks import every, planned
from .family import Family
from .reading import Keys

SANDWICH = {  # Gemma 2: a norm before and after each part
    "input": "input_layernorm", "post_attention": "post_attention_layernorm",
    "pre_mlp": "pre_feedforward_layernorm", "post_mlp": "post_feedforward_layernorm",
}
AFTER = {"post_attention": "post_attention_layernorm", "post_mlp": "post_feedforward_layernorm"}  # OLMo 2: only after
GPT2_NORMS = {"input": "ln_1", "pre_mlp": "ln_2"}
GPT2_NAMES = {"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj", "final_norm": "ln_f"}
NEOX_NAMES = {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}


def four_times(keys: Keys) -> Mapping[str, object]:
    """A feed-forward part four times as wide as the model, unless a key says otherwise."""
    return {"intermediate_size": keys.size("intermediate_size", otherwise=4 * keys.size("hidden_size"))}


def learned_positions(name: str, offset: int = 0):
    def positions(keys: Keys) -> tuple[Module, ...]:
        rows = keys.size("max_position_embeddings") + offset
        return (Embedding(name, rows, keys.size("hidden_size")),)

    return positions


def qwen_windows(keys: Keys, family: Family) -> list[str]:
    """Qwen: only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    depth = keys.layers()
    first = keys.size("max_window_layers", otherwise=0, minimum=0)
    on = keys.flag("use_sliding_window") and keys.value("sliding_window")
    return keys.list("layer_types", length=depth, of=str) or [
        "sliding_attention" if on and i >= first else "full_attention" for i in range(depth)
    ]


def falcon_keys(keys: Keys) -> Mapping[str, object]:
    heads = keys.size("num_attention_heads")
    new = keys.flag("new_decoder_architecture")
    kv_heads = keys.size("num_kv_heads", otherwise=heads) if new else 1 if keys.flag("multi_query", True) else heads
    return {"num_key_value_heads": kv_heads, **four_times(keys), "_parallel": new or keys.flag("parallel_attn", True)}


def falcon_norms(keys: Keys) -> Mapping[str, str]:
    if keys.flag("new_decoder_architecture"):
        if keys.size("num_ln_in_parallel_attn", otherwise=2) == 2:
            return {"input": "ln_attn", "pre_mlp": "ln_mlp"}
        return {"input": "input_layernorm"}
    if keys.flag("parallel_attn", True):
        return {"input": "input_layernorm"}
    return {"input": "input_layernorm", "pre_mlp": "post_attention_layernorm"}


def opt_outside(keys: Keys) -> tuple[Module, ...]:
    h = keys.size("hidden_size")
    narrow = keys.size("word_embed_proj_dim", otherwise=h)
    projections = () if narrow == h else (Linear("project_in", "other", narrow, h), Linear("project_out", "other", h, narrow))
    return learned_positions("embed_positions", offset=2)(keys) + projections


def qwen1_keys(keys: Keys) -> Mapping[str, object]:
    """`intermediate_size` counts both halves of the gated MLP; `kv_channels` is the width of a head."""
    size = keys.size("intermediate_size", minimum=2)
    if size % 2:
        raise keys.refuse("intermediate_size", "must be even: it is twice the width of each MLP matrix")
    return {"intermediate_size": size // 2, "head_dim": keys.size("kv_channels", otherwise=0, minimum=0) or None}


LLAMA = Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", sliding=False)
QWEN2 = Family(qkv_bias=True, layers=planned(qwen_windows))
GEMMA = Family(norm="rms-fp32-weight", activation="hidden_activation", default_activation="gelu_pytorch_tanh",
               qkv_bias="attention_bias", o_bias="attention_bias", embedding_scale=True)

DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": Family(),
    "qwen2": QWEN2,
    "qwen3": Family(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True, layers=planned(qwen_windows)),
    "granite": Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", sliding=False, embedding_scale=True),
    "gemma2": Family(**{**vars(GEMMA), "norms": SANDWICH, "layers": planned(every("", 2)), "final_softcap": "final_logit_softcapping"}),
    "gemma3_text": Family(**{
        **vars(GEMMA), "norms": SANDWICH, "layers": planned(every("sliding_window_pattern", 6)), "qk_norm": True,
        "final_softcap": "final_logit_softcapping",
    }),
    "phi3": Family(fused_qkv=True, fused_gate_up=True, rotary="cat", hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop"),
    "olmo2": Family(norm="rms-fp32-weight", norms=AFTER, qk_norm=True, qk_norm_width="all",
                    qkv_bias="attention_bias", o_bias="attention_bias", sliding=False),
    "glm": Family(qkv_bias="attention_bias", fused_gate_up=True, rotary="interleaved", partial_rotary=0.5, sliding=False),
    "phi": Family(
        names={"o": "dense", "up": "fc1", "down": "fc2", "q_norm": "q_layernorm", "k_norm": "k_layernorm", "final_norm": "final_layernorm"},
        norms={"input": "input_layernorm"}, norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True, gated=False,
        qk_norm="qk_layernorm", parallel=True, rotary="cat", partial_rotary=0.5, default_activation="gelu_new", sliding=False,
        hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop",
    ),
    "gpt_neox": Family(
        keys={"partial_rotary_factor": "rotary_pct"}, names={**NEOX_NAMES, "final_norm": "final_layer_norm", "head": "embed_out"},
        embed_tokens="embed_in", fused_qkv=True, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=True, gated=False, norm="layer",
        parallel="use_parallel_residual", rotary="cat", partial_rotary=0.25, default_activation="gelu", sliding=False,
        hidden_dropout="hidden_dropout", embedding_dropout="hidden_dropout",
    ),
    "gpt2": Family(
        keys={"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
              "intermediate_size": "n_inner"},
        derive=four_times, names=GPT2_NAMES, norms=GPT2_NORMS, embed_tokens="wte", fused_qkv=True, qkv_bias=True, o_bias=True, mlp_bias=True,
        gated=False, norm="layer", linear_kind="conv1d", rotary="", activation="activation_function", default_activation="gelu_new",
        extra=learned_positions("wpe"), attention_dropout="attn_pdrop", hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop",
        sliding=False,
    ),
    "opt": Family(
        keys={"intermediate_size": "ffn_dim"}, names={"o": "out_proj", "up": "fc1", "down": "fc2", "final_norm": "final_layer_norm"},
        norms={"input": "self_attn_layer_norm", "pre_mlp": "final_layer_norm"},
        derive=lambda keys: {"_final_norm": keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm")},
        final_norm="_final_norm", norm="layer", norm_weight="layer_norm_elementwise_affine", norm_bias="layer_norm_elementwise_affine",
        qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias", gated=False, rotary="", activation="activation_function",
        default_activation="relu", extra=opt_outside, embedding_size="word_embed_proj_dim", hidden_dropout="dropout",
        embedding_dropout="dropout", sliding=False,
    ),
    "falcon": Family(
        keys={"intermediate_size": "ffn_hidden_size"}, derive=falcon_keys, names={**NEOX_NAMES, "final_norm": "ln_f"},
        norms=falcon_norms, norm="layer", embed_tokens="word_embeddings", fused_qkv=True, qkv_bias="bias", o_bias="bias", mlp_bias="bias",
        gated=False, parallel="_parallel", activation="activation", default_activation="gelu", hidden_dropout="hidden_dropout", sliding=False,
    ),
    "qwen": Family(
        derive=qwen1_keys, keys={"max_position_embeddings": "seq_length"}, names={"qkv": "c_attn", "o": "c_proj", "gate": "w2", "up": "w1", "down": "c_proj", "final_norm": "ln_f"},
        norms=GPT2_NORMS, embed_tokens="wte", fused_qkv=True, qkv_bias=True, o_bias="!no_bias", mlp_bias="!no_bias", sliding=False,
        attention_dropout="attn_dropout_prob", embedding_dropout="emb_dropout_prob",
    ),
}
