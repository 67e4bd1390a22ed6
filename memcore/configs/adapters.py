"""What else lies beside a config.json: PEFT's adapter_config.json, and the index of a checkpoint in several files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from ..architecture import ModelArchitecture
from .reading import ConfigError, Keys, read_json

UNKNOWN = {  # key of PEFT's LoraConfig → what it would change
    "use_dora": "adds a vector of magnitudes to every adapted module",
    "rank_pattern": "gives modules different ranks",
    "layers_to_transform": "adapts some layers only",
    "target_parameters": "adapts parameters that are no modules",
}


def lora_fields_from_adapter_config(config: Mapping | str | os.PathLike) -> dict[str, object]:
    """The fields of a Scenario that an adapter_config.json says: rank, dropout, target modules, modules trained in full.

    What changes memory and has no field is refused by name; what changes no memory (alpha, initialisation) is left out.
    [https://huggingface.co/docs/peft/package_reference/lora]
    """
    keys = Keys(read_json(config, "adapter_config.json"), "")
    kind = keys.word("peft_type", "LORA")
    if kind.upper() != "LORA":
        raise ConfigError(f"peft_type ({kind!r}) is not known to memcore; LORA is")
    for name, effect in UNKNOWN.items():
        if keys.value(name):
            raise ConfigError(f"{name} {effect}, which is not known to memcore; remove it for an estimate without")
    fields: dict[str, object] = {"method": "lora", "lora_rank": keys.size("r", otherwise=8, maximum=2**16)}
    if keys.value("lora_dropout") is not None:
        fields["lora_dropout"] = keys.number("lora_dropout", maximum=math.nextafter(1.0, 0.0))
    targets = keys.value("target_modules")
    if targets == "all-linear":
        fields["lora_target_modules"] = targets
    elif isinstance(targets, str):
        raise keys.refuse("target_modules", "is a pattern; list the modules' names instead")
    elif targets is not None:
        fields["lora_target_modules"] = _names(keys, "target_modules")
    if keys.value("modules_to_save"):
        fields["modules_to_save"] = _names(keys, "modules_to_save")
    return fields


def _names(keys: Keys, key: str) -> tuple[str, ...]:
    """The last part of each name: PEFT accepts paths, which end in a module's name."""
    names = keys.list(key, of=str) or []
    return tuple(dict.fromkeys(name.rpartition(".")[2] or name for name in names))


class Checkpoint(NamedTuple):
    """What model.safetensors.index.json says about a checkpoint, beside a model's count."""

    total_bytes: int
    bytes_per_parameter: float
    agrees: bool
    remark: str


WIDTHS = {4: "float32", 2: "16 bits", 1: "8 bits"}
MAX_INDEX_BYTES = 64 * 2**20
TOLERANCE = 1e-3
"""Buffers and routing biases that a checkpoint stores and memcore does not count stay below this share."""


def checkpoint(model: ModelArchitecture, index: Mapping | str | os.PathLike) -> Checkpoint:
    """Checks a model's count against the total size of its checkpoint (`metadata.total_size`, in bytes)."""
    keys = Keys(read_json(index, "model.safetensors.index.json", MAX_INDEX_BYTES), "")
    inner = Keys(keys.nested("metadata") or {}, "", where="metadata")
    total = int(inner.number("total_size", -1.0, minimum=-1, maximum=1e18))
    if total < 0:
        raise ConfigError("metadata.total_size is missing")
    twice = model.lm_head.weight_parameters if model.tie_word_embeddings else 0  # some checkpoints store a tied head again
    per = total / model.parameters
    for width, word in WIDTHS.items():
        for stored in (model.parameters, model.parameters + twice):
            if abs(total / (width * stored) - 1) < TOLERANCE:
                return Checkpoint(total, per, True, f"The checkpoint's {total:,} bytes are those of the counted parameters in {word}.")
    remark = f"The checkpoint has {per:.3f} bytes for each counted parameter: it is quantized, or not this model."
    return Checkpoint(total, per, False, remark)
