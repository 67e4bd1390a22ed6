"""Models that nest a language model and towers for images or sound: which, and what connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..architecture import ModelArchitecture, Tower
from .blocks import language_model
from .family import Family
from .reading import REMEDY, ConfigError, Keys
from .towers import TOWERS, Count

Projector = Callable[[Keys, Keys, int, Count], None]
"""(the whole config, the tower's, the language model's width, the tower's count, to which it adds)."""


@dataclass(frozen=True, kw_only=True)
class Multimodal:
    """One model type: the language model within, its towers, and how each is joined to it."""

    text: str
    """The language model's type where its config does not say it."""
    towers: Mapping[str, str]
    """Key of a tower's config → its type where the config does not say it."""
    projector: Projector = lambda keys, tower, width, count: None
    merge: int | str = 1
    """Side of the square of patches that becomes one token, or the key that says it."""
    optional: bool = False
    """Towers may be absent or null."""
    tied_within: bool = False
    """The language model's own config says whether its head is tied, not the whole model's."""


def two_layers(bias: str = "", inside: str = "") -> Projector:
    """A linear layer to the language model's width and another one after it (LLaVA)."""

    def projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
        biased = keys.flag(bias, True) if bias else True
        taken = keys.value("vision_feature_layer")
        count.linears(count.hidden_size * (len(taken) if isinstance(taken, list) else 1), width, biased)
        count.linears(width, width, biased)

    return projector


def with_newline(projector: Projector) -> Projector:
    """The same, and a learned vector that ends a row of the image (LLaVA-NeXT)."""

    def both(keys: Keys, tower: Keys, width: int, count: Count) -> None:
        projector(keys, tower, width, count)
        count.vectors(width)

    return both


def one_layer(bias: bool = True, norm: bool = False) -> Projector:
    def projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
        count.linears(count.hidden_size, width, bias)
        count.vectors(count.hidden_size, norm)

    return projector


def paligemma_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.linears(count.hidden_size, tower.size("projection_dim", otherwise=width))


def shuffled(scale: str, otherwise: int) -> Projector:
    """Neighbouring patches are put side by side and projected (Idefics 3)."""

    def projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
        count.linears(count.hidden_size * keys.size(scale, otherwise=otherwise) ** 2, width, bias=False)

    return projector


def gemma3_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.linears(count.hidden_size, width, bias=False)
    count.vectors(count.hidden_size)
    count.patches_per_token = max(count.tokens / keys.size("mm_tokens_per_image", otherwise=256), 1.0)


def internvl_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.patches_per_token = int(1 / keys.number("downsample_ratio", 0.5, minimum=0.01, maximum=1)) ** 2
    merged = count.hidden_size * int(count.patches_per_token)
    count.vectors(2 * merged)
    count.linears(merged, width)
    count.linears(width, width)


def mistral3_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    h, bias = count.hidden_size, keys.flag("multimodal_projector_bias")
    count.vectors(h)
    count.linears(h * keys.size("spatial_merge_size", otherwise=2) ** 2, h, bias=False)
    count.linears(h, width, bias)
    count.linears(width, width, bias)


def cohere2_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    wide = keys.size("alignment_intermediate_size")
    count.linears(count.hidden_size * keys.size("downsample_factor") ** 2, wide)
    count.linears(wide // 2, width)


def lfm2_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    merged = count.hidden_size * keys.size("downsample_factor") ** 2
    inner, bias = keys.size("projector_hidden_size"), keys.flag("projector_bias", True)
    count.vectors(2 * merged, keys.flag("projector_use_layernorm", True))
    count.linears(merged, inner, bias)
    count.linears(inner, width, bias)


def mllama_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.linears(tower.size("vision_output_dim"), width)


def llama4_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.linears(tower.size("vision_output_dim"), width, bias=False)


def gemma4_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    count.linears(tower.size("output_proj_dims", otherwise=count.hidden_size), width, bias=False)


def aya_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    merged, wide = count.hidden_size * keys.size("downsample_factor") ** 2, keys.size("alignment_intermediate_size", otherwise=width)
    count.vectors(2 * merged)
    count.linears(merged, wide)
    count.linears(wide // 2, width)


def vipllava_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    taken = keys.value("vision_feature_layer")
    wide = count.hidden_size * (len(taken) if isinstance(taken, list) else 5)
    count.vectors(2 * wide)
    count.linears(wide, width)
    count.linears(width, width)


def two_towers(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    """Video-LLaVA has the same tower twice, for images and for frames."""
    count.linear, count.other = 2 * count.linear, 2 * count.other
    LLAVA.projector(keys, tower, width, count)


def aria_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    h, queries = count.hidden_size, keys.size("max_value_projector_patch_to_query_dict", otherwise=256)
    count.patches_per_token = max(count.tokens / queries, 1.0)
    count.vectors(h, queries)
    count.linears(h, h, bias=False, times=3)
    count.vectors(4 * h * h + 4 * h)  # torch's own multi-head attention
    count.linears(h, h)
    count.vectors(6 * h)
    count.linears(h, width, bias=False)
    count.linears(width, width, bias=False)


def gemma3n_projector(keys: Keys, tower: Keys, width: int, count: Count) -> None:
    h = count.hidden_size
    count.vectors(h, tower.size("vocab_size") + 2)
    count.linears(h, width, bias=False)


VISION = "vision_config"
LLAVA = Multimodal(text="llama", towers={VISION: "clip_vision_model"}, projector=two_layers("multimodal_projector_bias"))
QWEN_VL = {"merge": "spatial_merge_size"}

MULTIMODAL: dict[str, Multimodal] = {
    "llava": LLAVA,
    "llava_next": replace(LLAVA, projector=with_newline(LLAVA.projector)),
    "llava_next_video": replace(LLAVA, projector=with_newline(LLAVA.projector)),
    "llava_onevision": Multimodal(text="qwen2", towers={VISION: "siglip_vision_model"}, projector=with_newline(LLAVA.projector)),
    "deepseek_vl": Multimodal(text="llama", towers={VISION: "siglip_vision_model"}, projector=two_layers()),
    "mistral3": Multimodal(text="mistral", towers={VISION: "pixtral"}, projector=mistral3_projector, merge="spatial_merge_size"),
    "idefics3": Multimodal(text="llama", towers={VISION: "idefics3_vision"}, projector=shuffled("scale_factor", 2), merge="scale_factor"),
    "smolvlm": Multimodal(text="llama", towers={VISION: "smolvlm_vision"}, projector=shuffled("scale_factor", 2), merge="scale_factor"),
    "internvl": Multimodal(text="qwen2", towers={VISION: "internvl_vision"}, projector=internvl_projector),
    "paligemma": Multimodal(text="gemma", towers={VISION: "siglip_vision_model"}, projector=paligemma_projector),
    "gemma3": Multimodal(text="gemma3_text", towers={VISION: "siglip_vision_model"}, projector=gemma3_projector),
    "aya_vision": Multimodal(text="cohere2", towers={VISION: "siglip_vision_model"}, projector=aya_projector, merge="downsample_factor"),
    "vipllava": replace(LLAVA, projector=vipllava_projector),
    "video_llava": replace(LLAVA, projector=two_towers),
    "aria": Multimodal(text="aria_text", towers={VISION: "idefics3_vision"}, projector=aria_projector),
    "gemma3n": Multimodal(
        text="gemma3n_text", towers={VISION: "gemma3n_vision", "audio_config": "gemma3n_audio"}, projector=gemma3n_projector,
    ),
    "gemma4": Multimodal(
        text="gemma4_text", towers={VISION: "gemma4_vision", "audio_config": "gemma4_audio"}, projector=gemma4_projector, optional=True,
    ),
    "qwen2_vl": Multimodal(text="qwen2_vl_text", towers={VISION: "qwen2_vl_vision"}, **QWEN_VL),
    "qwen2_5_vl": Multimodal(text="qwen2_5_vl_text", towers={VISION: "qwen2_5_vl_vision"}, **QWEN_VL),
    "qwen3_vl": Multimodal(text="qwen3_vl_text", towers={VISION: "qwen3_vl_vision"}, **QWEN_VL),
    "qwen3_vl_moe": Multimodal(text="qwen3_vl_moe_text", towers={VISION: "qwen3_vl_moe_vision"}, **QWEN_VL),
    "qwen3_5": Multimodal(text="qwen3_5_text", towers={VISION: "qwen3_5_vision"}, **QWEN_VL),
    "qwen3_5_moe": Multimodal(text="qwen3_5_moe_text", towers={VISION: "qwen3_5_moe_vision"}, **QWEN_VL),
    "glm4v": Multimodal(text="glm4v_text", towers={VISION: "glm4v_vision"}, **QWEN_VL),
    "glm46v": Multimodal(text="glm4v_text", towers={VISION: "glm4v_vision"}, **QWEN_VL),
    "glm4v_moe": Multimodal(text="glm4v_moe_text", towers={VISION: "glm4v_moe_vision"}, **QWEN_VL),
    "mllama": Multimodal(text="mllama_text_model", towers={VISION: "mllama_vision_model"}, projector=mllama_projector),
    "llama4": Multimodal(text="llama4_text", towers={VISION: "llama4_vision_model"}, projector=llama4_projector, tied_within=True),
    "cohere2_vision": Multimodal(
        text="cohere2", towers={VISION: "siglip_vision_model"}, projector=cohere2_projector, merge="downsample_factor",
    ),
    "lfm2_vl": Multimodal(text="lfm2", towers={VISION: "siglip2_vision_model"}, projector=lfm2_projector, merge="downsample_factor"),
}


def tower(keys: Keys, model: Multimodal, name: str, width: int) -> Tower | None:
    """One tower with its projector; None where the config says there is none."""
    values = keys.nested(name)
    if values is None:
        if model.optional:
            return None
        raise ConfigError(f"{keys.label(name)} is missing")
    default = model.towers[name]
    kind = Keys(values, "", where=name).word("model_type") or default
    if kind not in TOWERS and kind in (keys.model_type, default.removesuffix("_vision")):
        kind = default  # older files repeat the type of the whole model
    if kind not in TOWERS:
        raise ConfigError(f"{name}.model_type ({kind!r}) is not known to memcore; {REMEDY}")
    inner = Keys(values, kind, where=name)
    count = TOWERS[kind](inner)
    model.projector(keys, inner, width, count)
    side = model.merge if isinstance(model.merge, int) else (inner if inner.value(model.merge) else keys).size(model.merge, otherwise=1)
    ratio = side**2 * count.patches_per_token
    return Tower(
        name=name.removesuffix("_config"), parameters=count.parameters, hidden_size=count.hidden_size, num_layers=count.num_layers,
        intermediate_size=count.intermediate_size, tokens_per_image=int(count.tokens // ratio), linear_parameters=count.linear,
        num_attention_heads=count.num_attention_heads, head_dim=count.head_dim, norm=count.norm, sandwich_norms=count.sandwich_norms,
        qk_norm=count.qk_norm, fused_qkv=count.fused_qkv, rotary=count.rotary, gated=count.gated, activation=count.activation,
        patches_per_token=float(ratio), kept_beside=count.kept_beside,
    )  # fmt: skip


def tower_doubts(towers: tuple[Tower, ...]) -> tuple[str, ...]:
    """What of a trained tower is not counted, one sentence each."""
    return tuple(
        f"A trained {t.name} encoder adds gradients and optimizer states; what it keeps of {'sound' if t.name == 'audio' else 'images'} "
        "for its backward pass is not counted."
        for t in towers
        if not t.reads_images
    )


def multimodal_model(values: Mapping, model: Multimodal, families: Mapping[str, Family]) -> ModelArchitecture:
    """The language model within, with its towers beside it."""
    keys = Keys(values, values["model_type"])
    inner = keys.nested("text_config")
    where = "text_config"
    if inner is None:  # Qwen2-VL's first files say everything at the top
        inner, where = {k: v for k, v in values.items() if k not in model.towers and k != "model_type"}, ""
    kind = Keys(inner, "", where=where).word("model_type") or model.text
    kind = model.text if kind == keys.model_type else kind
    family = families.get(kind)
    if family is None:
        raise ConfigError(f"{where}.model_type ({kind!r}) is not known to memcore; {REMEDY}")
    tied = values.get("tie_word_embeddings", inner.get("tie_word_embeddings", keys.value("tie_word_embeddings")))
    if tied is not None and not model.tied_within:
        inner = {**inner, "tie_word_embeddings": tied}
    text_keys = Keys(inner, kind, family.keys, where=where, required=() if where else family.required)
    text = language_model(text_keys, family)
    towers = tuple(t for t in (tower(keys, model, name, text.hidden_size) for name in model.towers) if t)
    return replace(text, model_type=keys.model_type, towers=towers, uncertain=(*text.uncertain, *tower_doubts(towers)), config=tuple(values.items()))
