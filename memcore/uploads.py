"""The files that lie beside a model, as somebody uploads or pastes them: config.json, adapter_config.json, the checkpoint's index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from . import configs
from .architecture import ModelArchitecture
from .configs import Checkpoint, ConfigError
from .configs.adapters import WIDTHS
from .units import format_bytes, one_line

LARGEST = 16 * 2**20
"""Bytes of all files together; the index of a large checkpoint has several MiB, a config.json a few KiB."""


@dataclass(frozen=True)
class Uploaded:
    """What some files say together."""

    model: ModelArchitecture | None = None
    """None where there is no config.json among them, or none that is understood."""
    lora: dict[str, Any] = field(default_factory=dict)
    """The fields of a Scenario that an adapter_config.json says."""
    checkpoint: Checkpoint | None = None
    problems: tuple[str, ...] = ()
    """One sentence for each file that could not be used."""


def read(files: Iterable[tuple[str, bytes | str]]) -> Uploaded:
    """What files say, by name and contents; never fails. Which file is which is told by its keys, then by its name."""
    model, lora, index = None, {}, None
    problems = []
    for name, content in files:
        try:
            values = configs.parse_json(content, name, LARGEST)
            kind = kind_of(name, values)
            if kind == "index":
                index = values
            elif kind == "adapter":
                lora = configs.lora_fields_from_adapter_config(values)
            else:
                model = named(configs.model_from_config(values), values)
        except ConfigError as error:
            problems.append(_with_name(name, str(error)))
        except Exception as error:  # whatever a stranger's file does, the page stays
            problems.append(f"{name} could not be read: {type(error).__name__}")
    checkpoint = None
    if index is not None and model is not None:
        try:
            checkpoint = configs.checkpoint(model, index)
        except ConfigError as error:
            problems.append(_with_name("model.safetensors.index.json", str(error)))
    elif index is not None and not problems:
        problems.append("the checkpoint's index says how large a model's files are, not its shape: add its config.json")
    return Uploaded(model, lora, checkpoint, tuple(problems))


def kind_of(name: str, values: dict[str, Any]) -> str:
    """ "config", "adapter" or "index"."""
    if "peft_type" in values or "adapter_config" in name:
        return "adapter"
    if "weight_map" in values or name.endswith(".index.json"):
        return "index"
    return "config"


def named(model: ModelArchitecture, config: dict[str, Any]) -> ModelArchitecture:
    """The model under the name its config gives it, or none."""
    given = config.get("_name_or_path")
    name = one_line(given) if isinstance(given, str) else ""
    return replace(model, name=name or f"uploaded {model.model_type}")


def compared(model: ModelArchitecture, found: Checkpoint, unit: str = "GiB") -> str:
    """What the checkpoint's total says about the count, in a sentence: equal, or by how much it differs."""
    total = format_bytes(found.total_bytes, unit)
    width = min(WIDTHS, key=lambda w: abs(found.total_bytes - w * model.parameters))
    difference = found.total_bytes - width * model.parameters
    if difference == 0:
        return f"Its checkpoint has {total}: equal to the counted parameters in {WIDTHS[width]}, to the byte."
    much = f"{format_bytes(abs(difference), 'auto')} {'more' if difference > 0 else 'less'} than the counted parameters in {WIDTHS[width]}"
    if found.agrees:
        return f"Its checkpoint has {total}, {much}: buffers, or a tied head stored twice."
    return f"Its checkpoint has {total}, {much}: it is quantized, or of another model, or memcore counts this one wrongly."


def _with_name(name: str, sentence: str) -> str:
    return sentence if name in sentence else f"{name}: {sentence}"
