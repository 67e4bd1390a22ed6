"""A trainer's file as text → its keys and values. Nothing is executed, and nothing expands before it is measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from .command import parse_command
from .errors import TrainerFileError, show
from .python import parse_python

MAX_CHARACTERS = 256 * 1024
"""A trainer's file is a few thousand characters, a notebook a few tens of thousands."""
MAX_DEPTH = 24
MAX_VALUES = 5_000
MAX_ALIASES = 20
"""YAML anchors are rarely used here; doubling twenty times is what a bomb would need."""
MAX_SCALAR = 20_000

REMEMBERED = re.compile(r"^[ \t]*# memcore: ([a-z_]{1,40}) = (.*)$", re.MULTILINE)
"""What `write_trainer_file` leaves where a trainer has no key for a field: "# memcore: loss = "chunked"  # full-logits"."""
COMMAND = re.compile(
    r"^(?:[A-Z][A-Z0-9_]*=\S*\s+)*(?:!|\$ ?)?"
    r"(?:accelerate|torchrun|deepspeed|trl|llamafactory-cli|axolotl|tune|mlx_lm\.lora|mlx_lm|(?:\S*/)?python[0-9.]*|\S+\.py|--[a-z][\w-]*)(?:\s|=|$)"
)
PYTHON = re.compile(r"\b(?:from_pretrained|get_peft_model|SFTConfig|TrainingArguments|LoraConfig)\s*\(")


@dataclass(frozen=True)
class Document:
    """What a file says, without knowing yet which trainer reads it."""

    syntax: str
    """"yaml", "json", "command" or "python"."""
    values: dict[str, object]
    """Values by key; the keys of nested mappings joined by dots."""
    program: str = ""
    """Of a command line: what it starts, such as "trl sft"."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Keys whose value is not written out (a variable, a call), and why."""
    remembered: dict[str, object] = field(default_factory=dict)
    """Scenario fields that memcore wrote beside the trainer's own keys."""


def parse(text: str | bytes) -> Document:
    """Keys and values of a file of any trainer, in whichever of the four ways it is written."""
    text = _decoded(text)
    remembered = _remembered(text)
    body = text.strip()
    first = next((line.strip() for line in body.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if not first:
        raise TrainerFileError("the file is empty; paste the trainer's configuration or its command line")
    if first.startswith("{"):
        return Document("json", flatten(_json(body)), remembered=remembered)
    if COMMAND.match(first):
        program, values, unreadable = parse_command(body)
        return Document("command", flatten(values), program, unreadable, remembered)
    if PYTHON.search(body):
        values, unreadable, calls = parse_python(body)
        return Document("python", flatten(values), " ".join(calls), unreadable, remembered)
    return Document("yaml", flatten(_yaml(text)), remembered=remembered)


def flatten(values: dict) -> dict[str, object]:
    """The leaves of nested mappings by dotted key, in order; lists stay whole, however deep, if they are not endless."""
    flat: dict[str, object] = {}
    count = 0
    for key, value in _leaves(values, "", 0):
        flat[key] = value
        inner = [value]
        while inner:
            count += 1
            if count > MAX_VALUES:
                raise TrainerFileError(f"the file has more than {MAX_VALUES:,} values; a trainer's file has a few dozen")
            part = inner.pop()
            inner += part if isinstance(part, list) else part.values() if isinstance(part, dict) else ()
            if len(inner) > 2 * MAX_VALUES:
                raise TrainerFileError(f"{show(key)} has more than {MAX_VALUES:,} values below it; a trainer's file has a few dozen")
    return flat


def _leaves(values: dict, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    if depth > MAX_DEPTH:
        raise TrainerFileError(f"the file is nested more than {MAX_DEPTH} levels deep")
    for key, value in values.items():
        if not isinstance(key, str):
            raise TrainerFileError(f"key {show(key)} is not a name; keys of a trainer's file are words")
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield prefix + key, value


def _decoded(text: str | bytes) -> str:
    if not isinstance(text, (str, bytes)):
        raise TrainerFileError(f"a trainer's file is text, not {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise TrainerFileError(f"the file is {len(text) / 2**20:.1f} MiB long; a trainer's file has at most {MAX_CHARACTERS // 1024} KiB")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TrainerFileError(f"the file is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", text)
    if odd:
        raise TrainerFileError(f"the file is not text: it contains the control character {odd[0]!r} (position {odd.start()})")
    return text


def _remembered(text: str) -> dict[str, object]:
    """The JSON value of each "# memcore:" line; what stands behind it is for people."""
    found = {}
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    for name, value in REMEMBERED.findall(text):
        try:
            found[name], end = decoder.raw_decode(value)
        except (ValueError, RecursionError):
            raise TrainerFileError(f"# memcore: {name} ({show(value)}) is not a JSON value; remove the line") from None
        if value[end:].strip() and not value[end:].lstrip().startswith("#"):
            raise TrainerFileError(f"# memcore: {name} ({show(value)}) is not a JSON value; remove the line")
    return found


def _json(text: str) -> dict:
    try:
        values = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise TrainerFileError(f"the file is nested more than {MAX_DEPTH} levels deep") from None
    except json.JSONDecodeError as error:
        raise TrainerFileError(f"the file is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except TrainerFileError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise TrainerFileError(f"the file is not valid JSON: {show(str(error))}") from None
    return values


def _once(pairs: list[tuple[str, object]]) -> dict:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise TrainerFileError(f"{show(key)} is given twice; keep one")
            seen.add(key)
    return values


def _no_constant(name: str) -> None:
    raise TrainerFileError(f"{name} is not a number a trainer's file can hold; write the value itself")


class _Loader(yaml.SafeLoader):
    """Plain values only: no tags, no dates, no key twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    loader.flatten_mapping(node)
    return _once([(_key(loader.construct_object(key, deep=True)), loader.construct_object(value, deep=True)) for key, value in node.value])


def _key(key: object) -> object:
    if isinstance(key, (dict, list)):
        raise TrainerFileError("a key of the file is itself a list or a mapping; keys of a trainer's file are words")
    return key


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return loader.construct_scalar(node)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = yaml.SafeLoader.construct_yaml_float(loader, node)
    if not math.isfinite(value):
        raise TrainerFileError(
            f"{show(node.value)} (line {node.start_mark.line + 1}) is not a number a trainer's file can hold; write the value itself"
        )
    return value


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.yaml_implicit_resolvers = {  # as the trainers' own loaders do: 2e-4 without a dot is a number too; 12:30 is text
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"),
    list("-+0123456789."),
)
_Loader.yaml_implicit_resolvers = {  # a whole number first
    first: sorted(resolvers, key=lambda r: r[0].endswith("float")) for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def _yaml(text: str) -> dict:
    try:
        _measure(text)
        values = yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.constructor.ConstructorError as error:
        raise TrainerFileError(f"the file is not plain YAML: {error.problem}{_line(error)}; write plain values") from None
    except yaml.reader.ReaderError as error:
        raise TrainerFileError(f"the file is not text: {show(error.reason)} (position {error.position})") from None
    except yaml.MarkedYAMLError as error:
        raise TrainerFileError(f"the file is not valid YAML: {show(error.problem or error.context)}{_line(error)}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:  # explicit tags
        if isinstance(error, TrainerFileError):
            raise
        raise TrainerFileError(f"the file is not valid YAML: {show(str(error))}") from None
    if not isinstance(values, dict):
        kind = {list: "a list", str: "plain text", type(None): "empty"}.get(type(values), type(values).__name__)
        raise TrainerFileError(f"the file must be a mapping of keys to values (key: value, one a line), and is {kind}")
    return values


def _measure(text: str) -> None:
    """Refuses what would grow or nest, while it is still a stream of events."""
    depth = aliases = values = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        values += 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SCALAR:
            raise TrainerFileError(f"a value of the file is {len(event.value):,} characters long (line {event.start_mark.line + 1})")
        elif isinstance(event, yaml.DocumentStartEvent) and values > 2:
            raise TrainerFileError(f"the file holds more than one document (line {event.start_mark.line + 1}); keep one")
        if depth > MAX_DEPTH:
            raise TrainerFileError(f"the file is nested more than {MAX_DEPTH} levels deep (line {event.start_mark.line + 1})")
        if aliases > MAX_ALIASES:
            raise TrainerFileError(f"the file has more than {MAX_ALIASES} YAML aliases (*name); write the values out")
        if values > MAX_VALUES:
            raise TrainerFileError(f"the file has more than {MAX_VALUES:,} values; a trainer's file has a few dozen")


def _line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f" (line {mark.line + 1})" if mark else ""
