"""Any causal language model's config.json → ModelArchitecture; what is not understood is refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..architecture import ModelArchitecture, Tower
from .blocks import language_model
from .classic import CLASSIC
from .dense import DENSE
from .deepseek_v4 import DEEPSEEK_V4
from .family import Family
from .gemma import GEMMA
from .hybrid import HYBRID
from .reading import REMEDY, ConfigError, Keys, read_json
from .sparse import SPARSE
from .towers import siglip

FAMILIES: dict[str, Family] = {**CLASSIC, **DENSE, **SPARSE, **HYBRID, **GEMMA, "deepseek_v4": DEEPSEEK_V4}

__all__ = ["ConfigError", "model_from_config"]


def model_from_config(config: Mapping | str | os.PathLike) -> ModelArchitecture:
    """The model a config.json describes; `config` is a dict, or the path of the file or of the folder it is in."""
    values = read_json(config)
    model_type = values.get("model_type")
    if model_type == "gemma3":
        inner = values["text_config"]
        text = language_model(Keys(inner, "gemma3_text", where="text_config"), FAMILIES["gemma3_text"])
        keys = Keys(values["vision_config"], "siglip_vision_model", where="vision_config")
        n, _ = siglip(keys)
        from dataclasses import replace
        h, t = keys.size("hidden_size"), text.hidden_size
        return replace(text, model_type="gemma3", towers=(Tower(name="vision", parameters=n + h * t + h, hidden_size=h, num_layers=keys.layers(), tokens_per_image=256),))
    family = FAMILIES.get(model_type)
    if family is None:
        raise ConfigError(f"model_type ({model_type!r}) is not known to memcore; {REMEDY}")
    return language_model(Keys(values, model_type, family.keys, required=family.required), family)
