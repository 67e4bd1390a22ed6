"""What mixes tokens where it is not attention: state-space layers, linear attention, recurrences, short convolutions.

Each function makes the builder of a mixer from the names a family gives to its sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..architecture import Linear, Module, Norm, Weight
from .blocks import attention
from .family import Family, Flag, Layer, Mixer
from .reading import Keys

Builder = Callable[[Keys, Family, Layer], Mixer]


def expanded(expand: str) -> Callable[[Keys], int]:
    return lambda keys: int(keys.number(expand, 2.0, minimum=0.001, maximum=64) * keys.size("hidden_size"))


def convolution(name: str, channels: int, width: int, bias: bool) -> Weight:
    """A depthwise convolution over the last few tokens."""
    return Weight(name, channels * width + bias * channels)


def mamba(state: str, width: str, rank: str, expand: str, bias: Flag, conv_bias: Flag, inner_norms: bool = False) -> Builder:
    """A selective state space. [A. Gu, T. Dao, "Mamba", 2023, arXiv:2312.00752]"""

    def build(keys: Keys, family: Family, layer: Layer) -> Mixer:
        h, inner, n = keys.size("hidden_size"), expanded(expand)(keys), keys.size(state)
        r = -(-h // 16) if keys.value(rank) in ("auto", None) else keys.size(rank)
        modules: tuple[Module, ...] = (
            Linear("in_proj", "other", h, 2 * inner, keys.on(bias)),
            convolution("conv1d", inner, keys.size(width), keys.on(conv_bias)),
            Linear("x_proj", "other", inner, r + 2 * n),
        )
        if inner_norms:
            modules += (Norm("dt_layernorm", "other", r), Norm("b_layernorm", "other", n), Norm("c_layernorm", "other", n))
        modules += (
            Linear("dt_proj", "other", r, inner, True), Weight("A_log", inner * n), Weight("D", inner),
            Linear("out_proj", "other", inner, h, keys.on(bias)),
        )
        return Mixer(("mamba",), modules)

    return build


def mamba2(
    inner: Callable[[Keys], int], heads: str, groups: str, state: str, width: str, bias: Flag, conv_bias: Flag,
    out_bias: Flag | None = None, norm: Flag = True, prefix: str = "",
) -> Builder:
    """A state space per head. [T. Dao, A. Gu, "Transformers are SSMs", 2024, arXiv:2405.21060]"""

    def build(keys: Keys, family: Family, layer: Layer) -> Mixer:
        h, d, n_heads = keys.size("hidden_size"), inner(keys), keys.size(heads)
        convolved = d + 2 * keys.size(groups) * keys.size(state)
        modules: tuple[Module, ...] = (
            Linear(prefix + "in_proj", "other", h, d + convolved + n_heads, keys.on(bias)),
            convolution(prefix + "conv1d", convolved, keys.size(width), keys.on(conv_bias)),
            Weight(prefix + "dt_bias", n_heads), Weight(prefix + "A_log", n_heads), Weight(prefix + "D", n_heads),
        )
        if keys.on(norm):
            modules += (Norm(prefix + "norm", "other", d),)
        return Mixer(("mamba2",), (*modules, Linear(prefix + "out_proj", "other", d, h, keys.on(bias if out_bias is None else out_bias))))

    return build


def beside_attention(other: Builder) -> Builder:
    """Both read the same input, and their outputs are added (Falcon-H1)."""

    def build(keys: Keys, family: Family, layer: Layer) -> Mixer:
        first, second = attention(keys, family, layer), other(keys, family, layer)
        return Mixer(first.tags + second.tags, first.modules + second.modules, first.attention)

    return build


def gated_delta_net(fused: bool) -> Builder:
    """Linear attention with a gated delta rule. [S. Yang et al., "Gated Delta Networks", 2024, arXiv:2412.06464]"""

    def build(keys: Keys, family: Family, layer: Layer) -> Mixer:
        h, key_heads, value_heads = keys.size("hidden_size"), keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
        if value_heads % key_heads:
            raise keys.refuse("linear_num_value_heads", f"is not a multiple of {keys.label('linear_num_key_heads')} ({key_heads})")
        key_size, value_size = key_heads * keys.size("linear_key_head_dim"), value_heads * keys.size("linear_value_head_dim")
        widths = {"in_proj_qkvz": 2 * key_size + 2 * value_size, "in_proj_ba": 2 * value_heads} if fused else {
            "in_proj_qkv": 2 * key_size + value_size, "in_proj_z": value_size, "in_proj_b": value_heads, "in_proj_a": value_heads,
        }
        return Mixer(("linear_attention",), (
            *(Linear(name, "other", h, width) for name, width in widths.items()),
            convolution("conv1d", 2 * key_size + value_size, keys.size("linear_conv_kernel_dim"), False),
            Weight("dt_bias", value_heads), Weight("A_log", value_heads),
            Norm("norm", "other", keys.size("linear_value_head_dim")),
            Linear("out_proj", "other", value_size, h),
        ))

    return build


def olmo_delta_net(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """OLMo Hybrid's gated delta net: separate projections, an output gate, one convolution each for q, k and v."""
    h, key_heads, value_heads = keys.size("hidden_size"), keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    key_size, value_size = key_heads * keys.size("linear_key_head_dim"), value_heads * keys.size("linear_value_head_dim")
    return Mixer(("linear_attention",), (
        Linear("q_proj", "q", h, key_size), Linear("k_proj", "k", h, key_size), Linear("v_proj", "v", h, value_size),
        Linear("a_proj", "other", h, value_heads), Linear("b_proj", "other", h, value_heads), Linear("g_proj", "other", h, value_size),
        convolution("conv1d", 2 * key_size + value_size, keys.size("linear_conv_kernel_dim"), False),
        Weight("dt_bias", value_heads), Weight("A_log", value_heads), Norm("o_norm", "other", keys.size("linear_value_head_dim")),
        Linear("o_proj", "o", value_size, h),
    ))


def lightning_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """MiniMax-01's linear attention. [MiniMax, "MiniMax-01", 2025, arXiv:2501.08313]"""
    h, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    width = heads * keys.size("head_dim", otherwise=max(1, h // heads))
    return Mixer(("linear_attention",), (
        Linear("qkv_proj", "qkv", h, 3 * width), Norm("norm", "other", width), Linear("output_gate", "other", h, width),
        Linear("out_proj", "o", width, h),
    ))


def short_convolution(width: str, bias: Flag = False) -> Builder:
    """LFM2: a gated convolution over a few tokens."""

    def build(keys: Keys, family: Family, layer: Layer) -> Mixer:
        h, on = keys.size("hidden_size"), keys.on(bias)
        return Mixer(("convolution",), (
            Linear("in_proj", "other", h, 3 * h, on), convolution("conv", h, keys.size(width), on), Linear("out_proj", "other", h, h, on),
        ))

    return build


def rg_lru(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """A gated linear recurrence. [S. De et al., "Griffin", 2024, arXiv:2402.19427]"""
    h, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    lru = keys.size("lru_width", otherwise=h)
    gate = heads * (lru // heads) ** 2 + lru // heads * heads
    return Mixer(("recurrent",), (
        Linear("linear_y", "other", h, lru, True), Linear("linear_x", "other", h, lru, True),
        convolution("conv_1d", lru, keys.size("conv1d_width"), True),
        Weight("rg_lru", lru + 2 * gate),
        Linear("linear_out", "other", lru, h, True),
    ))


def kimi_delta_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """A delta rule that forgets each channel at its own pace. [Kimi Linear, 2025, arXiv:2510.26692]"""
    h, heads, d = keys.size("hidden_size"), keys.size("linear_num_heads"), keys.size("linear_head_dim")
    width = heads * d
    return Mixer(("linear_attention",), (
        Linear("q_proj", "q", h, width), Linear("k_proj", "k", h, width), Linear("v_proj", "v", h, width),
        convolution("conv1d", 3 * width, keys.size("linear_conv_kernel_dim"), False),
        Linear("f_a_proj", "other", h, d), Linear("f_b_proj", "other", d, width), Weight("dt_bias", width), Weight("A_log", heads),
        Linear("b_proj", "other", h, heads), Linear("g_a_proj", "other", h, d), Linear("g_b_proj", "other", d, width),
        Norm("o_norm", "other", d), Linear("o_proj", "o", width, h),
    ))


def bailing_delta_attention(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """The same with its gates computed in one step (Ling)."""
    h, heads = keys.size("hidden_size"), keys.size("linear_num_heads", otherwise=keys.size("num_attention_heads"))
    d = keys.size("linear_head_dim", otherwise=keys.size("head_dim"))
    width, window = heads * d, keys.size("linear_conv_kernel_dim", otherwise=keys.size("short_conv_kernel_size"))
    return Mixer(("linear_attention",), (
        Linear("q_proj", "q", h, width), Linear("k_proj", "k", h, width), Linear("v_proj", "v", h, width),
        convolution("conv1d", 3 * width, window, False),
        Linear("f_proj", "other", h, width), Weight("dt_bias", width), Weight("A_log", heads),
        Linear("b_proj", "other", h, heads), Linear("g_proj", "other", h, width),
        Norm("o_norm", "other", d), Linear("o_proj", "o", width, h),
    ))


def rwkv(keys: Keys, family: Family, layer: Layer) -> Mixer:
    """Time mixing. [B. Peng et al., "RWKV", 2023, arXiv:2305.13048]"""
    h = keys.size("hidden_size")
    width = keys.size("attention_hidden_size", otherwise=h)
    first = (Norm("pre_ln", "other", h, kind="layer", bias=True),) if keys.flag("_first") else ()
    return Mixer(("recurrent",), (
        *first, Weight("time_mix", 3 * h), Weight("time_decay", width), Weight("time_first", width),
        Linear("key", "other", h, width), Linear("value", "other", h, width), Linear("receptance", "other", h, width),
        Linear("output", "other", width, h),
    ))
