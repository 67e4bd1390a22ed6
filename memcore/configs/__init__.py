"""Any causal language model's config.json → ModelArchitecture; what is not understood is refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..architecture import ModelArchitecture
from .blocks import language_model
from .classic import CLASSIC
from .dense import DENSE
from .deepseek_v4 import DEEPSEEK_V4
from .family import Family
from .gemma import GEMMA
from .hybrid import HYBRID
from .multimodal import MULTIMODAL, multimodal_model
from .reading import REMEDY, ConfigError, Keys, read_json
from .sparse import SPARSE

FAMILIES: dict[str, Family] = {**CLASSIC, **DENSE, **SPARSE, **HYBRID, **GEMMA, "deepseek_v4": DEEPSEEK_V4}

__all__ = ["ConfigError", "model_from_config"]


def model_from_config(config: Mapping | str | os.PathLike) -> ModelArchitecture:
    """The model a config.json describes; `config` is a dict, or the path of the file or of the folder it is in."""
    values = read_json(config)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError("model_type is missing" if model_type is None else "model_type must be a word")
    if model_type in MULTIMODAL:
        return multimodal_model(values, MULTIMODAL[model_type], FAMILIES)
    family = FAMILIES.get(model_type)
    if family is None:
        raise ConfigError(f"model_type ({model_type!r}) is not known to memcore; {REMEDY}")
    return language_model(Keys(values, model_type, family.keys, required=family.required), family)
