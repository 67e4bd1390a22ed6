"""Vision and audio towers, counted from their own configs: which parameters they hold, and how many of them in nn.Linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .reading import REMEDY, Keys


@dataclass
class Count:
    """A running count of a tower's parameters."""

    linear: int = 0
    """Weights of nn.Linear, which k-bit loading quantizes."""
    other: int = 0
    hidden_size: int = 0
    num_layers: int = 0
    intermediate_size: int = 0
    tokens: int = 0
    """Vectors that leave the tower for one image at its configured size; 0 where images keep their own size."""
    num_attention_heads: int = 1
    head_dim: int = 0
    norm: str = "layer"
    sandwich_norms: bool = False
    qk_norm: int = 0
    fused_qkv: bool = False
    rotary: bool = False
    gated: bool = False
    activation: str = "gelu"
    patches_per_token: float = 1.0
    """Vectors of the tower that become one token of the language model; what `Multimodal.merge` merges comes on top."""
    kept_beside: int = 0

    @property
    def parameters(self) -> int:
        return self.linear + self.other

    def linears(self, in_features: int, out_features: int, bias: bool = True, times: int = 1) -> None:
        self.linear += times * in_features * out_features
        self.other += times * out_features * bias

    def convolution(self, in_channels: int, out_channels: int, *kernel: int, bias: bool = True) -> None:
        size = in_channels * out_channels
        for side in kernel:
            size *= side
        self.other += size + bias * out_channels

    def vectors(self, size: int, times: int = 1) -> None:
        self.other += times * size


def side(keys: Keys, name: str) -> int:
    """A size that may be written as one number or as a list of two equal ones."""
    value = keys.value(name)
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or value[0] != value[1]:
            raise keys.refuse(name, "must be one number or two equal ones")
        return keys.over({name: value[0]}).size(name)
    return keys.size(name)


def patches(keys: Keys) -> int:
    image, patch = side(keys, "image_size"), side(keys, "patch_size")
    if patch > image:
        raise keys.refuse("patch_size", f"is larger than {keys.label('image_size')} ({image})")
    return (image // patch) ** 2


def started(keys: Keys, depth: str = "num_hidden_layers", hidden_size: str = "hidden_size") -> tuple[Count, int, int]:
    h, layers = keys.size(hidden_size, maximum=2**17), keys.layers(depth)
    return Count(hidden_size=h, num_layers=layers), h, layers


def wired(keys: Keys, count: Count, heads: str = "num_attention_heads", activation: str = "hidden_act", **shape: bool | int | str) -> None:
    """How a layer is put together, which no parameter tells."""
    count.num_attention_heads = keys.size(heads, maximum=count.hidden_size)
    count.head_dim = count.hidden_size // count.num_attention_heads
    count.activation = keys.word(activation, "gelu")
    for name, value in shape.items():
        setattr(count, name, value)


def video_patches(keys: Keys, count: Count, bias: bool = True) -> None:
    """Patches over a few frames at once."""
    patch = side(keys, "patch_size")
    count.convolution(keys.size("in_channels"), count.hidden_size, side(keys, "temporal_patch_size"), patch, patch, bias=bias)


def siglip(keys: Keys, head: bool = True, class_token: bool = False, patch_bias: bool = True, pre_norm: bool = False) -> Count:
    """SigLIP, and CLIP with its class token: biased square projections, LayerNorms, learned positions."""
    count, h, layers = started(keys)
    i = keys.size("intermediate_size")
    wired(keys, count)
    count.intermediate_size, count.tokens = i, patches(keys)
    count.convolution(keys.size("num_channels"), h, side(keys, "patch_size"), side(keys, "patch_size"), bias=patch_bias)
    count.vectors(h, count.tokens + 2 * class_token)  # positions; the class token and its position
    count.vectors(2 * h, pre_norm + 1)  # LayerNorms before and after the layers
    count.linears(h, h, times=4 * layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.vectors(4 * h, layers)
    if head and keys.flag("vision_use_head", True):  # pools by attention
        count.vectors(h + 3 * h * h + 3 * h + h * h + h + 2 * h)
        count.linears(h, i)
        count.linears(i, h)
    return count


def siglip_bare(keys: Keys) -> Count:
    return siglip(keys, head=False)


def clip(keys: Keys) -> Count:
    return siglip(keys, head=False, class_token=True, patch_bias=False, pre_norm=True)


def siglip2(keys: Keys) -> Count:
    """SigLIP 2 (NaFlex): patches enter through a linear layer, positions are counted directly."""
    positions = keys.size("num_patches")
    patch, channels, h = side(keys, "patch_size"), keys.size("num_channels"), keys.size("hidden_size")
    count = siglip(keys.over({"image_size": patch}))
    count.other -= channels * patch * patch * h
    count.linear += channels * patch * patch * h
    count.vectors(h, positions - 1)
    count.tokens = 0
    return count


def pixtral(keys: Keys) -> Count:
    count, h, layers = started(keys)
    wired(keys, count, norm="rms", rotary=True, gated=True)
    i = count.intermediate_size = keys.size("intermediate_size")
    count.convolution(keys.size("num_channels"), h, side(keys, "patch_size"), side(keys, "patch_size"), bias=False)
    count.linears(h, h, bias=False, times=4 * layers)
    count.linears(h, i, bias=False, times=2 * layers)
    count.linears(i, h, bias=False, times=layers)
    count.vectors(h, 2 * layers + 1)
    return count


def internvl(keys: Keys) -> Count:
    count, h, layers = started(keys)
    i, rms = keys.size("intermediate_size"), keys.word("norm_type", "layer_norm") == "rms_norm"
    wired(keys, count, norm="rms" if rms else "layer", qk_norm=h * keys.flag("use_qk_norm"), kept_beside=2 * h)  # both layer scales
    count.intermediate_size, count.tokens = i, patches(keys)
    count.convolution(keys.size("num_channels"), h, side(keys, "patch_size"), side(keys, "patch_size"))
    count.vectors(h, 1 + keys.flag("use_mask_token") + keys.flag("use_absolute_position_embeddings", True) * (count.tokens + 1))
    count.linears(h, h, bias=keys.flag("attention_bias"), times=3 * layers)
    count.linears(h, h, times=layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.vectors(h, layers * (2 + (1 if rms else 2) * 2 + 2 * keys.flag("use_qk_norm")))  # layer scales, norms
    count.vectors(2 * h, not keys.flag("use_mean_pooling", True))
    return count


QWEN = {"fused_qkv": True, "rotary": True}


def qwen2_vl(keys: Keys) -> Count:
    count, h, layers = started(keys, "depth", "embed_dim")
    i = count.intermediate_size = int(keys.number("mlp_ratio", 4, minimum=0.01, maximum=64) * h)
    wired(keys, count, "num_heads", **QWEN)
    merged = h * keys.size("spatial_merge_size") ** 2
    video_patches(keys, count, bias=False)
    count.linears(h, 3 * h, times=layers)
    count.linears(h, h, times=layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.vectors(2 * h, 2 * layers + 1)
    count.linears(merged, merged)
    count.linears(merged, keys.size("hidden_size"))
    return count


def qwen2_5_vl(keys: Keys) -> Count:
    count, h, layers = started(keys, "depth")
    i = count.intermediate_size = keys.size("intermediate_size")
    wired(keys, count, "num_heads", norm="rms", gated=True, **QWEN)
    merged = h * keys.size("spatial_merge_size") ** 2
    video_patches(keys, count, bias=False)
    count.linears(h, 3 * h, times=layers)
    count.linears(h, h, times=layers)
    count.linears(h, i, times=2 * layers)
    count.linears(i, h, times=layers)
    count.vectors(h, 2 * layers + 1)
    count.linears(merged, merged)
    count.linears(merged, keys.size("out_hidden_size"))
    return count


def qwen3_vl(keys: Keys, deepstack: bool = True) -> Count:
    """Learned positions, plain MLPs, and a merger for each layer whose output is handed on."""
    count, h, layers = started(keys, "depth")
    i = count.intermediate_size = keys.size("intermediate_size")
    wired(keys, count, "num_heads", **QWEN)
    merged = h * keys.size("spatial_merge_size") ** 2
    video_patches(keys, count)
    count.vectors(h, keys.size("num_position_embeddings"))
    count.linears(h, 3 * h, times=layers)
    count.linears(h, h, times=layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.vectors(2 * h, 2 * layers + 1)
    handed_on = len(keys.list("deepstack_visual_indexes", of=int) or ()) if deepstack else 0
    count.linears(merged, merged, times=1 + handed_on)
    count.linears(merged, keys.size("out_hidden_size"), times=1 + handed_on)
    count.vectors(2 * merged, handed_on)
    return count


def qwen3_5(keys: Keys) -> Count:
    return qwen3_vl(keys, deepstack=False)


def glm4v(keys: Keys) -> Count:
    count, h, layers = started(keys, "depth")
    out, wide, merge = keys.size("out_hidden_size"), keys.size("intermediate_size"), keys.size("spatial_merge_size")
    wired(keys, count, "num_heads", norm="rms", gated=True, **QWEN)
    count.intermediate_size = out
    video_patches(keys, count)
    count.vectors(h, patches(keys))
    count.linears(h, 3 * h, bias=keys.flag("attention_bias"), times=layers)
    count.linears(h, h, bias=False, times=layers)
    count.linears(h, out, bias=False, times=2 * layers)
    count.linears(out, h, bias=False, times=layers)
    count.vectors(h, 2 * layers + 2)
    count.convolution(h, out, merge, merge)
    count.linears(out, out, bias=False)
    count.vectors(2 * out)
    count.linears(out, wide, bias=False, times=2)
    count.linears(wide, out, bias=False)
    return count


def mllama(keys: Keys) -> Count:
    """Llama 3.2: tiles with learned positions of their own, plain and gated layers."""
    count, h, plain = started(keys)
    gated, i, tiles = keys.layers("num_global_layers", minimum=0), keys.size("intermediate_size"), keys.size("max_num_tiles")
    layers = count.num_layers = plain + gated
    wired(keys, count, "attention_heads", kept_beside=2 * h * gated // layers)  # both gates of a gated layer
    ratios = len(keys.list("supported_aspect_ratios") or range(8)) + 1
    count.intermediate_size, count.tokens = i, tiles * (patches(keys) + 1)
    count.convolution(keys.size("num_channels"), h, side(keys, "patch_size"), side(keys, "patch_size"), bias=False)
    count.vectors(h + (patches(keys) + 1) * h + ratios * tiles * (patches(keys) + 1) * h + 1)
    count.vectors(ratios * tiles * h + 1, 2)
    count.vectors(4 * h)
    count.linears(h, h, bias=False, times=4 * layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.vectors(4 * h, layers)
    count.vectors(2, gated)
    return count


def llama4(keys: Keys) -> Count:
    count, h, layers = started(keys)
    i, out = keys.size("intermediate_size"), keys.size("projector_output_dim")
    ratio = keys.number("pixel_shuffle_ratio", 0.5, minimum=0.01, maximum=1)
    n = patches(keys)
    wired(keys, count, rotary=True, patches_per_token=1 / ratio**2)
    count.intermediate_size, count.tokens = i, n
    count.linears(keys.size("num_channels") * side(keys, "patch_size") ** 2, h, bias=False)
    count.vectors(h, n + 2)
    count.vectors(4 * h, layers + 1)
    count.linears(h, h, times=4 * layers)
    count.linears(h, i, times=layers)
    count.linears(i, h, times=layers)
    count.linears(i, keys.size("projector_input_dim"), bias=False)
    count.linears(out, out, bias=False)
    return count


def gemma4_vision(keys: Keys) -> Count:
    count, h, layers = started(keys)
    i, d, heads = keys.size("intermediate_size"), keys.size("head_dim"), keys.size("num_attention_heads")
    kv = keys.size("num_key_value_heads", otherwise=heads)
    wired(
        keys, count, activation="hidden_activation", norm="rms-fp32-weight", sandwich_norms=True, qk_norm=d, rotary=True, gated=True,
        patches_per_token=keys.size("pooling_kernel_size", otherwise=3) ** 2, kept_beside=2 * kv * d,  # the values' norm, in float32
    )  # fmt: skip
    count.num_attention_heads, count.head_dim = heads, d
    count.intermediate_size = i
    count.linears(3 * keys.size("patch_size") ** 2, h, bias=False)
    count.vectors(2 * h, keys.size("position_embedding_size"))
    count.linears(h, heads * d, bias=False, times=layers)
    count.linears(h, kv * d, bias=False, times=2 * layers)
    count.linears(heads * d, h, bias=False, times=layers)
    count.linears(h, i, bias=False, times=2 * layers)
    count.linears(i, h, bias=False, times=layers)
    count.vectors(4 * h + 2 * d, layers)
    return count


def conformer(keys: Keys, channels_key: str, kernel: str, features: int | None = None) -> Count:
    """Gemma's audio encoder: feed-forward, attention, convolution, feed-forward; after two convolutions over the spectrogram."""
    count, h, layers = started(keys)
    channels = keys.list(channels_key, length=2, of=int) or [128, 32]
    first, second = (keys.over({channels_key: c}).size(channels_key) for c in channels)
    count.intermediate_size = 4 * h
    count.convolution(1, first, 3, 3, bias=False)
    count.convolution(first, second, 3, 3, bias=False)
    count.vectors(first + second)
    count.linears((features or first) // 4 * second, h, bias=False)
    count.linears(h, 4 * h, bias=False, times=2 * layers)
    count.linears(4 * h, h, bias=False, times=2 * layers)
    count.linears(h, h, bias=False, times=6 * layers)  # q, k, v, relative positions, output; the convolution's second half
    count.linears(h, 2 * h, bias=False, times=layers)
    count.vectors(9 * h + keys.size(kernel) * h + h // keys.size("num_attention_heads"), layers)
    return count


def gemma4_audio(keys: Keys) -> Count:
    count = conformer(keys, "subsampling_conv_channels", "conv_kernel_size")
    count.linears(count.hidden_size, keys.size("output_proj_dims"))
    return count


def gemma3n_audio(keys: Keys) -> Count:
    names = {"num_hidden_layers": "conf_num_hidden_layers", "num_attention_heads": "conf_num_attention_heads"}
    keys = Keys(keys.values, keys.model_type, names, keys.where)
    count = conformer(keys, "sscp_conv_channel_size", "conf_conv_kernel_size", keys.size("input_feat_size"))
    return count


MOBILENET_V5 = 294_284_096
"""Parameters of timm's mobilenetv5_300m_enc: what keras-hub's totals of Gemma 3n E2B and E4B leave beside everything else."""


def gemma3n_vision(keys: Keys) -> Count:
    """One network of fixed shape, made of convolutions."""
    if keys.word("architecture") != "mobilenetv5_300m_enc":
        raise keys.refuse("architecture", f"is not known to memcore; {REMEDY}")
    return Count(other=MOBILENET_V5, hidden_size=keys.size("hidden_size"), tokens=256)


TOWERS: dict[str, Callable[[Keys], Count]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "idefics2_vision": siglip_bare,
    "idefics3_vision": siglip_bare,
    "smolvlm_vision": siglip_bare,
    "pixtral": pixtral,
    "internvl_vision": internvl,
    "qwen2_vl_vision": qwen2_vl,
    "qwen2_5_vl_vision": qwen2_5_vl,
    "qwen3_vl_vision": qwen3_vl,
    "qwen3_vl_moe_vision": qwen3_vl,
    "qwen3_5_vision": qwen3_5,
    "qwen3_5_moe_vision": qwen3_5,
    "glm4v_vision": glm4v,
    "glm4v_moe_vision": glm4v,
    "mllama_vision_model": mllama,
    "llama4_vision_model": llama4,
    "gemma3n_vision": gemma3n_vision,
    "gemma3n_audio": gemma3n_audio,
    "gemma4_vision": gemma4_vision,
    "gemma4_audio": gemma4_audio,
}
