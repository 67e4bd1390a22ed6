"""Dense decoders in the manner of Llama: RMSNorm, rotary positions, gated feed-forward parts, grouped queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..architecture import Attention, Embedding, Linear, Module, Norm, Weight
from .blocks import attention, every, planned
from .classic import COHERE, LN_NORMS, NEOX_NAMES
from .family import Family, Layer, Mixer, like
from .latent import latent_attention
from .reading import REMEDY, Keys

SANDWICH = {  # Gemma 2: a norm before and after each part
    "input": "input_layernorm", "post_attention": "post_attention_layernorm",
    "pre_mlp": "pre_feedforward_layernorm", "post_mlp": "post_feedforward_layernorm",
}
AFTER = {"post_attention": "post_attention_layernorm", "post_mlp": "post_feedforward_layernorm"}  # OLMo 2: only after


def qwen_windows(keys: Keys, family: Family) -> list[str]:
    """Qwen: only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    depth = keys.layers()
    first = keys.size("max_window_layers", otherwise=0, minimum=0)
    on = keys.flag("use_sliding_window") and keys.value("sliding_window")
    return keys.list("layer_types", length=depth, of=str) or [
        "sliding_attention" if on and i >= first else "full_attention" for i in range(depth)
    ]


def smollm3_windows(keys: Keys, family: Family) -> list[str]:
    """A window, where one is used, only in the layers without rotary positions."""
    depth = keys.layers()
    on = keys.flag("use_sliding_window") and keys.value("sliding_window")
    step = keys.size("no_rope_layer_interval", otherwise=4)
    rope = keys.list("no_rope_layers", length=depth, of=int) or [int((i + 1) % step != 0) for i in range(depth)]
    return keys.list("layer_types", length=depth, of=str) or ["sliding_attention" if on and not r else "full_attention" for r in rope]


def exaone4_windows(keys: Keys, family: Family) -> list[str]:
    """`sliding_window_pattern` is a number, or a word such as "LLLG": local three times, then global."""
    pattern = keys.value("sliding_window_pattern")
    if not isinstance(pattern, str) or keys.value("layer_types") or not keys.value("sliding_window"):
        return every(4, "sliding_window_pattern")(keys, family)
    if not pattern or len(pattern) > 64 or set(pattern) - set("LG"):
        raise keys.refuse("sliding_window_pattern", "must be a number or a word of L and G")
    return ["sliding_attention" if pattern[i % len(pattern)] == "L" else "full_attention" for i in range(keys.layers())]


def qwen1_keys(keys: Keys) -> Mapping[str, object]:
    """`intermediate_size` counts both halves of the gated MLP; `kv_channels` is the width of a head."""
    size = keys.size("intermediate_size", minimum=2)
    if size % 2:
        raise keys.refuse("intermediate_size", "must be even: it is twice the width of each MLP matrix")
    return {"intermediate_size": size // 2, "head_dim": keys.size("kv_channels", otherwise=0, minimum=0) or None}


def chatglm_keys(keys: Keys) -> Mapping[str, object]:
    heads = keys.size("num_attention_heads")
    groups = keys.size("multi_query_group_num", 1) if keys.flag("multi_query_attention") else heads
    linear_bias = keys.flag("add_bias_linear")
    if not keys.flag("rmsnorm", True):
        raise keys.refuse("rmsnorm", "is not known to memcore for chatglm: only true is")
    return {"num_key_value_heads": groups, "_qkv_bias": linear_bias or keys.flag("add_qkv_bias"),
        "_final_norm": keys.flag("post_layer_norm", True)}


def no_experts(keys: Keys) -> Mapping[str, object]:
    if keys.size("num_experts", otherwise=0, minimum=0) > 1:
        raise keys.refuse("num_experts", f"is not known to memcore for {keys.model_type}; {REMEDY}")
    return {}


def hyperclovax_norms(keys: Keys) -> Mapping[str, str]:
    after = {"post_attention": "post_norm1", "post_mlp": "post_norm2"} if keys.flag("use_post_norm", True) else {}
    return {"input": "input_layernorm", "pre_mlp": "post_attention_layernorm", **after}


def xielu(keys: Keys) -> tuple[Module, ...]:
    return (Weight("act_fn", 2),) if keys.word("hidden_act", "xielu") == "xielu" else ()


def doge_attention(keys: Keys, attention: Attention) -> tuple[Module, ...]:
    kv_heads = attention.num_key_value_heads
    return (Weight("A", kv_heads), Linear("dt_proj", "other", attention.value_size, kv_heads, bias=keys.flag("attention_bias")))


def doge_experts(keys: Keys) -> tuple[Module, ...]:
    """Experts of one row each beside the MLP, retrieved by product keys."""
    if not keys.flag("is_moe"):
        return ()
    h, n = keys.size("hidden_size"), keys.size("num_experts")
    return (Linear("router_gate", "other", h, 2 * math.isqrt(n)), Embedding("down_embed", n, h), Embedding("up_embed", n, h))


def doge_residuals(keys: Keys) -> tuple[Module, ...]:
    h = keys.size("hidden_size")
    return (Weight("input_residual", h), Weight("post_attention_residual", h))


def mllama_layers(keys: Keys, family: Family) -> list[Layer]:
    """Llama 3.2: some layers attend to the image instead of the text."""
    listed = keys.list("cross_attention_layers", of=int)
    cross = set([3, 8, 13, 18, 23, 28, 33, 38] if listed is None else listed)
    return [Layer("cross_attention" if i in cross else "full_attention") for i in range(keys.layers())]


def cross_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    mixer = attention(keys, replace(family, qk_norm=True, rotary=""), layer)
    return Mixer(("cross_attention",), (*mixer.modules, Weight("cross_attn_attn_gate", 1), Weight("cross_attn_mlp_gate", 1)),
        mixer.attention)


BIASES = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
LLAMA = Family(**BIASES, mlp_bias="mlp_bias", sliding=False, measured=True)
MISTRAL = Family(measured=True)
QWEN2 = Family(qkv_bias=True, layers=planned(qwen_windows), measured=True)
QWEN3 = like(QWEN2, **BIASES, qk_norm=True, measured=True)
GEMMA = Family(
    **BIASES, norm="rms-fp32-weight", activation="hidden_activation", default_activation="gelu_pytorch_tanh",
)
GEMMA2 = like(GEMMA, norms=SANDWICH, layers=planned(every(2)), final_softcap="final_logit_softcapping", measured=True)
OLMO2 = Family(**BIASES, norm="rms-fp32-weight", norms=AFTER, qk_norm=True, qk_norm_all_heads=True, sliding=False, measured=True)
GLM = Family(qkv_bias="attention_bias", fused_gate_up=True, rotary="interleaved", partial_rotary=0.5, sliding=False, measured=True)
GLM4 = like(
    GLM,
    norms={"input": "input_layernorm", "post_attention": "post_self_attn_layernorm", "pre_mlp": "post_attention_layernorm",
        "post_mlp": "post_mlp_layernorm"},
)
PHI3 = Family(fused_qkv=True, fused_gate_up=True, rotary="cat", hidden_dropout="resid_pdrop", embedding_dropout="embd_pdrop", measured=True)
HUNYUAN = Family(**BIASES, qk_norm=True, names={"q_norm": "query_layernorm", "k_norm": "key_layernorm"}, sliding=False)

DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "internlm": like(LLAMA, qkv_bias="bias", o_bias="bias", mlp_bias=False),
    "internlm3": like(LLAMA, qkv_bias="qkv_bias", o_bias="bias", mlp_bias="bias"),
    "iquestcoder": LLAMA,
    "minicpm": like(LLAMA, derive=no_experts),
    "exaone": like(
        LLAMA, keys={"num_hidden_layers": "num_layers"},
        names={"o": "out_proj", "gate": "c_fc_0", "up": "c_fc_1", "down": "c_proj", "final_norm": "ln_f"}, norms=LN_NORMS,
        embed_tokens="wte", activation="activation_function",
    ),
    "granite": like(LLAMA, measured=True),
    "granite_swa": like(
        LLAMA, sliding=True, layers=planned(every(4)),
        attention_extra=lambda keys, attention: (Weight("sinks", attention.num_attention_heads),),
    ),
    "hyperclovax": like(LLAMA, norms=hyperclovax_norms),
    "arcee": like(LLAMA, gated=False, default_activation="relu2"),
    "smollm3": like(LLAMA, layers=planned(smollm3_windows), sliding=True),
    "ernie4_5": like(LLAMA, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", rotary="interleaved"),
    "helium": like(LLAMA, o_bias=False, rotary="interleaved"),
    "seed_oss": like(LLAMA, o_bias="attention_out_bias", hidden_dropout="residual_dropout"),
    "cwm": like(LLAMA, qkv_bias=False, o_bias=False, sliding=True, layers=planned(every(4, first=True))),
    "diffllama": like(LLAMA, mlp_bias=False, attention_extra=lambda keys, attention: (Weight("lambdas", 4 * attention.head_dim),)),
    "bitnet": like(
        LLAMA, mlp_bias=False, default_activation="relu2",
        attention_extra=lambda keys, attention: (Norm("attn_sub_norm", "other", keys.size("hidden_size")),),
        mlp_extra=lambda keys: (Norm("ffn_sub_norm", "other", keys.size("intermediate_size")),),
    ),
    "apertus": like(
        LLAMA, mlp_bias=False, gated=False, qk_norm=True, default_activation="xielu", mlp_extra=xielu,
        norms={"input": "attention_layernorm", "pre_mlp": "feedforward_layernorm"},
    ),
    "doge": like(
        LLAMA, qk_norm=True, attention_extra=doge_attention, mlp_extra=doge_experts, block_extra=doge_residuals, sliding=True,
        hidden_dropout="hidden_dropout",
    ),
    "nanochat": like(
        LLAMA, norm_weight=False, qk_norm=True, gated=False, mlp_bias=False, names={"up": "fc1", "down": "fc2"},
        default_activation="relu2", final_softcap="final_logit_softcapping",
    ),
    "mistral": MISTRAL,
    "ministral": MISTRAL,
    "ministral3": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mimo": like(QWEN2, qkv_bias="attention_bias"),
    "qwen": Family(
        derive=qwen1_keys, keys={"max_position_embeddings": "seq_length"}, norms=LN_NORMS, embed_tokens="wte", fused_qkv=True,
        names={"qkv": "c_attn", "o": "c_proj", "gate": "w2", "up": "w1", "down": "c_proj", "final_norm": "ln_f"}, qkv_bias=True,
        o_bias="!no_bias", mlp_bias="!no_bias", sliding=False, attention_dropout="attn_dropout_prob",
        embedding_dropout="emb_dropout_prob", measured=True,
    ),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "vaultgemma": like(GEMMA2, norms={"input": "input_layernorm", "pre_mlp": "pre_feedforward_layernorm"}),
    "gemma3_text": like(GEMMA2, layers=planned(every(6, "sliding_window_pattern")), qk_norm=True, measured=True),
    "phi3": PHI3,
    "glm": GLM,
    "glm4": GLM4,
    "chatglm": Family(
        keys={"num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels", "max_position_embeddings": "seq_length"},
        derive=chatglm_keys, names={**NEOX_NAMES, "gate_up": "dense_h_to_4h", "final_norm": "final_layernorm", "head": "output_layer"},
        embed_tokens="word_embeddings", fused_qkv=True, qkv_bias="_qkv_bias", o_bias="add_bias_linear", mlp_bias="add_bias_linear",
        fused_gate_up=True, final_norm="_final_norm", rotary="interleaved", partial_rotary=0.5, sliding=False,
        hidden_dropout="hidden_dropout",
    ),
    "internlm2": Family(
        names={"qkv": "wqkv", "o": "wo", "gate": "w1", "up": "w3", "down": "w2", "head": "output"}, embed_tokens="tok_embeddings",
        norms={"input": "attention_norm", "pre_mlp": "ffn_norm"}, fused_qkv=True, qkv_bias="bias", o_bias="bias", sliding=False,
    ),
    "baichuan": Family(names={"qkv": "W_pack"}, fused_qkv=True, sliding=False),
    "olmo2": OLMO2,
    "olmo3": like(OLMO2, layers=planned(every(4)), sliding=True),
    "exaone4": Family(norms=AFTER, qk_norm=True, layers=planned(exaone4_windows)),
    "cohere2": like(COHERE, qk_norm=False, sliding=True, layers=planned(every(4, "sliding_window_pattern"))),
    "hunyuan_v1_dense": HUNYUAN,
    "minicpm3": like(
        LLAMA, attention=latent_attention,
        derive=lambda keys: {"v_head_dim": keys.size("v_head_dim", otherwise=keys.size("hidden_size") // keys.size("num_attention_heads"))},
    ),
    "youtu": like(LLAMA, attention=latent_attention, rotary="interleaved"),
    # the language models within multimodal ones
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3_vl_text": QWEN3,
    "glm4v_text": like(GLM4, qkv_bias=True),
    "mllama_text_model": like(
        MISTRAL, layers=mllama_layers, mixers={"cross_attention": cross_attention}, sliding=False, spare_embeddings=8,
        uncertain=("Layers that attend to an image are counted, but what they keep for its tokens was not measured.",),
    ),
}
