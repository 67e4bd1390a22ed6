"""Any causal language model's config.json → ModelArchitecture; what is not understood is refused by name.

A family is a row of a table (`classic`, `dense`, `sparse`, `hybrid`, `gemma`, `deepseek_v4`), `blocks` builds from it,
`multimodal` and `towers` add what sees and hears. Facts about a family, its keys, defaults and modules, are those of its
classes in transformers 5.24, or of the code beside its weights; `data/config_defaults.toml` holds the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from ..architecture import ModelArchitecture
from .adapters import Checkpoint, checkpoint, lora_fields_from_adapter_config
from .blocks import language_model
from .classic import CLASSIC
from .custom import custom_model
from .deepseek_v4 import DEEPSEEK_V4
from .dense import DENSE
from .family import Family
from .gemma import GEMMA
from .hybrid import HYBRID
from .multimodal import MULTIMODAL, multimodal_model
from .reading import MAX_PARAMETERS, REMEDY, ConfigError, Keys, parse_json, read_json
from .sparse import SPARSE

__all__ = [
    "Checkpoint", "ConfigError", "checkpoint", "custom_model", "lora_fields_from_adapter_config", "model_from_config", "model_types",
    "parse_json", "read_json",
]

FAMILIES: dict[str, Family] = {**CLASSIC, **DENSE, **SPARSE, **HYBRID, **GEMMA, "deepseek_v4": DEEPSEEK_V4}

ENCODERS = frozenset("""
    albert bert big_bird camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm flaubert fnet funnel ibert
    layoutlm layoutlmv2 layoutlmv3 longformer luke lxmert megatron-bert mobilebert modernbert mpnet mra nezha nomic_bert nystromformer
    eurobert rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert tapas xlm xlm-roberta xlm-roberta-xl xmod yoso
    clip siglip siglip2 vit dinov2 beit deit swin convnext
""".split())
ENCODER_DECODERS = frozenset("""
    bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus pegasus_x
    plbart pop2piano prophetnet seamless_m4t seamless_m4t_v2 speech_to_text switch_transformers t5 t5gemma t5gemma2 trocr udop umt5
    vision-encoder-decoder florence2 pix2struct whisper
""".split())


def model_types() -> tuple[str, ...]:
    """What `model_type` may say."""
    return tuple(sorted({*FAMILIES, *MULTIMODAL}))


def model_from_config(config: Mapping | str | os.PathLike) -> ModelArchitecture:
    """The model a config.json describes; `config` is a dict, or the path of the file or of the folder it is in.

    Raises ConfigError, in one sentence with the key, its value and what is wrong. An unknown `model_type` is read as
    another one only where `architectures` names that one's class; a resemblance of the keys is not enough.

    >>> model_from_config({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...                    "intermediate_size": 128, "vocab_size": 1000}).parameters
    210240
    """
    values = read_json(config)
    said, model_type = values.get("model_type"), _model_type(values)
    if model_type in MULTIMODAL:
        model = multimodal_model({**values, "model_type": model_type}, MULTIMODAL[model_type], FAMILIES)
        if model.parameters > MAX_PARAMETERS:
            raise ConfigError(f"vision_config or audio_config: its sizes make {model.parameters:.0e} parameters, more than any model has")
    else:
        family = FAMILIES[model_type]
        model = language_model(Keys(values, model_type, family.keys, required=family.required), family)
    if said == model_type:
        return model
    doubt = f"model_type ({said!r}) is not known to memcore: it is counted as {model_type}, whose class `architectures` names."
    return replace(model, uncertain=(doubt, *model.uncertain))


def _model_type(values: Mapping) -> str:
    """The model type to read the config as."""
    said = values.get("model_type")
    if isinstance(said, str) and (said in FAMILIES or said in MULTIMODAL):
        return said
    if said is not None and (not isinstance(said, str) or len(said) > 100):
        raise ConfigError("model_type must be a word")
    if said in ENCODERS:
        raise ConfigError(f"model_type ({said!r}) is an encoder, not a causal language model, which memcore counts")
    if said in ENCODER_DECODERS or values.get("is_encoder_decoder") is True:
        raise ConfigError(f"model_type ({said!r}) is an encoder-decoder model; memcore counts causal language models ({REMEDY})")
    by_class = {_plain(name): name for name in model_types()}
    listed = values.get("architectures")
    for name in listed if isinstance(listed, list) else ():
        for ending in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"):
            if isinstance(name, str) and name.endswith(ending) and _plain(name.removesuffix(ending)) in by_class:
                return by_class[_plain(name.removesuffix(ending))]
    if said is None:
        raise ConfigError("model_type is missing")
    close = get_close_matches(said, model_types(), n=3)
    hint = f" (near: {', '.join(close)})" if close else ""
    raise ConfigError(f"model_type ({said!r}) is not known to memcore{hint}; {REMEDY}")


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
