"""A link is a scenario: the controls of the page, how their values are read from an address and written into one.

Each control is a field of `Scenario`, or one of the few things the page needs beside it. `read` never
fails: what it cannot understand it leaves out and says so in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from urllib.parse import urlencode

from . import catalog, scenario
from .scenario import COUNTS, DEGREES, LARGEST, QLORA_QUANTIZATION, SAVED_MODULES, Scenario, choices
from .units import BYTE_UNITS, format_tokens, parse_tokens

CUSTOM = "Custom…"
UPLOAD = "config.json…"
HUB = "Hub id…"
DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"
DEFAULT_DEVICE = "NVIDIA GeForce RTX 4090"
METHODS = {"full": "Full", "lora": "LoRA", "qlora": "QLoRA"}
"""Fields that are whole numbers from 1, with the largest that a Scenario takes."""
VIEWS = ("Estimate", "Compare", "Devices", "Trainer files", "Accuracy", "Method")
SHOWN_LETTERS = 40
LONGEST_ID = 200
MOST_MODULES = 64
ELSEWHERE = ("unit", "view", "pin", "train_tokens", "utilisation", "gpu_price")
"""Controls outside the sidebar: what they say is not part of a run."""
MOST_PINS = 4
LARGEST_DROPOUT = math.nextafter(1.0, 0.0)
LARGEST_PRICE = 1000.0
LONGEST_PIN = 2000


@dataclass(frozen=True, slots=True)
class Control:
    """One control of the page."""

    key: str
    default: Any
    parse: Callable[[list[str]], Any]
    """Text of a link to a value; a ValueError says what was expected."""
    write: Callable[[Any], str | list[str]] = str
    shows: Callable[[Any], str] | None = None
    """How the widget writes the value into the address, where that differs from `write`."""


@cache
def controls() -> dict[str, Control]:
    """Every control by its key, in the order of the page."""
    return {c.key: c for c in _controls()}


def read(parameters: Mapping[str, Sequence[str]]) -> tuple[dict[str, Any], list[str]]:
    """The values a link gives to controls, and a sentence for each part of it that was not understood."""
    values: dict[str, Any] = {}
    notices = []
    known = controls()
    for key, texts in parameters.items():
        if key not in known:
            notices.append(f"{_quote(key)} is not a control of this page and was left out")
            continue
        if not texts:
            continue
        try:
            values[key] = known[key].parse(list(texts))
        except ValueError as error:
            shown = known[key].write(known[key].default)
            instead = ", ".join(shown) if isinstance(shown, list) else shown
            notices.append(f"{key} {_quote(' '.join(texts))} {error}; using {instead or 'none'} instead")
    return values, notices


def write(values: Mapping[str, Any]) -> str:
    """The query of the link to these values; what is at its default is left out."""
    known = controls()
    return urlencode([(k, known[k].write(v)) for k, v in values.items() if k in known and v != known[k].default], doseq=True)


def spell(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The parameters of a link to these values, in the words of the widgets: what they write into the address themselves."""
    known = controls()
    words = {key: (known[key].shows or known[key].write)(value) for key, value in values.items() if value != known[key].default}
    return {key: word if isinstance(word, list) else [word] for key, word in words.items()}


def of_run(run: Scenario) -> dict[str, Any]:
    """The values of the controls for a run, all but its model: that may have no name in the catalog."""
    values = {name: getattr(run, name) for name in scenario.FIELDS if name != "model"}
    if run.quantization == "none":  # the control is qlora's, whatever the method
        del values["quantization"]
    if run.lora_target_modules == "all-linear":
        values["lora_target_modules"] = ()
    return values


def of_device(device: catalog.Device) -> dict[str, Any]:
    """The values of the controls for a device: of the catalog, or one given by its memory."""
    if device.name in catalog.devices():
        return {"device": device.name}
    memory = round(device.memory_bytes / BYTE_UNITS["GiB"], 2)
    return {"device": CUSTOM, "custom_memory": memory, "custom_memory_unit": "GiB", "custom_unified": device.unified}


def _controls() -> list[Control]:
    defaults = {field.name: field.default for field in fields(Scenario)}
    found = [
        Control("model", DEFAULT_MODEL, _model),
        Control("custom_parameters", "8B", _text),
        Control("hub_id", "", _id),
        Control("device", DEFAULT_DEVICE, _device, shows=lambda name: getattr(catalog.devices().get(name), "label", name)),
        Control("custom_memory", 24.0, _number, _write_number),
        Control("custom_memory_unit", "GB", _one_of({"GB": "GB", "GiB": "GiB"})),
        Control("custom_unified", False, _flag, _write_flag),
        Control("method", defaults["method"], _one_of(METHODS), shows=METHODS.__getitem__),
        Control("quantization", QLORA_QUANTIZATION, _one_of({name: name for name in choices("quantization") if name != "none"})),
        Control("sequence_length", defaults["sequence_length"], _whole("sequence_length", parse_tokens), format_tokens),
        Control("micro_batch_size", defaults["micro_batch_size"], _whole("micro_batch_size", _integer)),
    ]
    taken = {c.key for c in found}
    found += [_of_field(name, default) for name, default in defaults.items() if name not in taken]
    found.append(Control("train_tokens", "10M", _text))
    found.append(Control("utilisation", 50, _percent))
    found.append(Control("gpu_price", 0.0, _price, _write_number))
    found.append(Control("pin", (), _pins, list))
    found.append(Control("unit", "GiB", _one_of({"GiB": "GiB", "GB": "GB"})))
    found.append(Control("view", VIEWS[0], _one_of({name: name for name in VIEWS})))
    return found


def _of_field(name: str, default: Any) -> Control:
    """The control of a Scenario's field, by the kind of its default."""
    if name in MODULE_NAMES:
        return Control(name, (), MODULE_NAMES[name], list)
    if isinstance(default, bool):
        return Control(name, default, _flag, _write_flag)
    if isinstance(default, int):
        return Control(name, default, _whole(name, _integer))
    if isinstance(default, float):
        return Control(name, default, _share, _write_number)
    return Control(name, default, _one_of({value: value for value in choices(name)}))


def _one_of(labels: Mapping[str, str]) -> Callable[[list[str]], str]:
    by_text = {label.lower(): value for value, label in labels.items()} | {value.lower(): value for value in labels}

    def parse(texts: list[str]) -> str:
        value = by_text.get(texts[-1].strip().lower())
        if value is None:
            raise ValueError(f"must be one of {', '.join(labels)}")
        return value

    return parse


def _model(texts: list[str]) -> str:
    name = texts[-1].strip()
    if name.lower().rstrip("….") == "custom":
        return CUSTOM
    if name.lower().rstrip("….") == "config.json":
        return UPLOAD
    if name.lower().rstrip("….") == "hub id":
        return HUB
    found = {known.lower(): known for known in catalog.models()}.get(name.lower())
    if found is None:
        raise ValueError(f"is not in the catalog{_did_you_mean('model', name, list(catalog.models()))}")
    return found


def _device(texts: list[str]) -> str:
    name = texts[-1].strip()
    if name.lower().rstrip("….") == "custom":
        return CUSTOM
    devices = catalog.devices()
    found = {d.label.lower(): d.name for d in devices.values()} | {d.name.lower(): d.name for d in devices.values()}
    if name.lower() not in found:
        raise ValueError(f"is not in the catalog{_did_you_mean('device', name, list(devices))}")
    return found[name.lower()]


def _did_you_mean(kind: str, name: str, known: list[str]) -> str:
    closest = catalog.UnknownName(kind, name, known).closest
    return f" (close to {', '.join(closest)})" if closest else ""


def _whole(field: str, parse_one: Callable[[str], int]) -> Callable[[list[str]], int]:
    def parse(texts: list[str]) -> int:
        least, largest = int(field not in COUNTS), (LARGEST | DEGREES | COUNTS)[field]
        rule = f"must be a whole number from {least} to {largest:,}"
        try:
            value = parse_one(texts[-1])
        except ValueError:
            raise ValueError(rule) from None
        if not least <= value <= largest:
            raise ValueError(rule)
        return value

    return parse


def _integer(text: str) -> int:
    if len(text) > 18:
        raise ValueError
    return int(text)


def _percent(texts: list[str]) -> int:
    try:
        value = _integer(texts[-1])
    except ValueError:
        value = 0
    if not 1 <= value <= 100:
        raise ValueError("must be a whole number from 1 to 100")
    return value


def _number(texts: list[str]) -> float:
    try:
        value = float(texts[-1])
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _write_number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(value)).removesuffix(".0")


def _price(texts: list[str]) -> float:
    value = _number(texts)
    if not 0 <= value <= LARGEST_PRICE:
        raise ValueError(f"must be a number from 0 to {LARGEST_PRICE:,.0f}")
    return value


def _share(texts: list[str]) -> float:
    value = _number(texts)
    if not 0 <= value <= LARGEST_DROPOUT:
        raise ValueError("must be a number from 0 up to, not including, 1")
    return value


def _flag(texts: list[str]) -> bool:
    values = {"true": True, "false": False, "1": True, "0": False}
    if texts[-1].lower() not in values:
        raise ValueError("must be true or false")
    return values[texts[-1].lower()]


def _write_flag(value: bool) -> str:
    return str(value).lower()


def _text(texts: list[str]) -> str:
    return texts[-1][:SHOWN_LETTERS]


def _id(texts: list[str]) -> str:
    return texts[-1][:LONGEST_ID]


def _modules(texts: list[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for text in texts for name in text.replace(",", " ").split()))
    return () if names in ((), ("all-linear",)) else names[:MOST_MODULES]


def _saved(texts: list[str]) -> tuple[str, ...]:
    names = _modules(texts)
    if unknown := [name for name in names if name not in SAVED_MODULES]:
        raise ValueError(f"has {unknown[0][:SHOWN_LETTERS]!r}, which is not one of {', '.join(SAVED_MODULES)}")
    return names


def _pins(texts: list[str]) -> tuple[str, ...]:
    """Runs to compare, as `pins` reads them."""
    if len(texts) > MOST_PINS:
        raise ValueError(f"may be there {MOST_PINS} times")
    if any(len(text) > LONGEST_PIN for text in texts):
        raise ValueError("is too long")
    return tuple(texts)


MODULE_NAMES = {"lora_target_modules": _modules, "modules_to_save": _saved}


def _quote(text: str) -> str:
    return repr(text if len(text) <= SHOWN_LETTERS else text[:SHOWN_LETTERS] + "…")
