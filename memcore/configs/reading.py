"""Reading what a user hands in: a dict or a config.json, and its keys one at a time, checked on the way out."""

from __future__ import annotations

import functools
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..files import data_folder


class ConfigError(ValueError):
    """A config.json that cannot be read or is not understood; the message names the key, its value and what is wrong."""


MAX_FILE_BYTES = 4 * 2**20
"""A config.json is a few kB; the largest, with one entry per quantized layer, a few hundred."""
MAX_DEPTH = 64
MAX_LAYERS = 4096
MAX_SIZE = 2**24
"""The widest tensor sides in use are vocabularies of a few hundred thousand rows."""
LARGEST_NUMBER = 1e12
"""Of a factor or a share."""
MAX_PARAMETERS = 10**14

SYNONYMS = (
    # the library reads and writes these for one another (attribute_map of its configuration classes)
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    ("layer_types", "layers_block_type"),
    ("sliding_window", "attention_window_size"),
)

REMEDY = "parameters can be given as a number instead"


def read_json(source: Mapping | str | os.PathLike, what: str = "config.json", limit: int = MAX_FILE_BYTES) -> dict:
    """A JSON object from a dict or a path; anything else is refused in one sentence, before it costs memory."""
    if isinstance(source, Mapping):
        _check_depth(source, what)
        return dict(source)
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"{what} must be a JSON object or a path to one, not {type(source).__name__}")
    if isinstance(source, str) and source.lstrip()[:1] == "{":
        return parse_json(source, what, limit)
    try:
        path = Path(source)
        path = path / what if path.is_dir() else path
        if not path.is_file():
            raise ConfigError(f"there is no file {_short(os.fspath(path))}")
        if path.stat().st_size > limit:
            raise _too_long(what, path.stat().st_size, limit)
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror or type(error).__name__}") from None
    except ConfigError:
        raise
    except ValueError:  # a null character, half a surrogate pair
        raise ConfigError(f"{what}: {_short(repr(source))} is not a path") from None
    return parse_json(raw, what, limit)


def parse_json(raw: bytes | str, what: str = "config.json", limit: int = MAX_FILE_BYTES) -> dict:
    """The same from the text itself (an upload, a paste)."""
    if len(raw) > limit:
        raise _too_long(what, len(raw), limit)
    if isinstance(raw, bytes):
        try:
            raw = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{what} is not UTF-8 text (byte {error.start})") from None
    try:
        values = json.loads(raw, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ConfigError(f"{what} is nested more than {MAX_DEPTH} levels deep") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{what} is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except ConfigError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"{what} is not valid JSON: {_short(str(error))}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what} must be a JSON object, not a {type(values).__name__}")
    _check_depth(values, what)
    return values


def _too_long(what: str, size: int, limit: int) -> ConfigError:
    return ConfigError(f"{what} is {size / 2**20:.1f} MiB long; at most {limit // 2**20} MiB are believed")


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict:
    values = dict(pairs)
    if len(values) < len(pairs):
        for key, value in pairs:
            if value != values[key]:
                raise ConfigError(f"{_short(key)} is given twice, with different values")
    return values


def _check_depth(values: Mapping, what: str) -> None:
    level: dict[int, Mapping | list | tuple] = {0: values}
    for _ in range(MAX_DEPTH):
        level = {id(inner): inner for outer in level.values() for inner in (outer.values() if isinstance(outer, Mapping) else outer)
                 if isinstance(inner, (Mapping, list, tuple))}
        if not level:
            return
    raise ConfigError(f"{what} is nested more than {MAX_DEPTH} levels deep")


def _short(value: object, limit: int = 60) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 8:
        value = [*value[:8], ...]
    try:
        text = value if isinstance(value, str) and value.isprintable() else repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= limit else text[: limit - 1] + "…"


@functools.cache
def _defaults() -> dict[str, dict]:
    """What each configuration class of transformers uses where a key is absent."""
    return tomllib.loads(data_folder().joinpath("config_defaults.toml").read_text(encoding="utf-8"))


class Keys:
    """The keys of one config (or of one nested inside it), read by memcore's names.

    `renamed` maps memcore's names (Llama's, mostly) to the family's own; either is accepted, as the library does. A key
    that is absent has the default of the family's configuration class in transformers; `null` means what the reader
    passes as `otherwise`.
    """

    def __init__(
        self, values: Mapping, model_type: str, renamed: Mapping[str, str] | None = None, where: str = "", required: Iterable[str] = ()
    ) -> None:
        self.values, self.model_type, self.renamed, self.where = values, model_type, renamed or {}, where
        for name in required:
            if self.given(name) is None:
                raise ConfigError(f"{self.label(name)} is missing")

    def over(self, changes: Mapping[str, object]) -> Keys:
        """The same config with some keys changed: one layer of a model whose layers differ."""
        return Keys({**self.values, **{self.spellings(k)[0]: v for k, v in changes.items()}}, self.model_type, self.renamed, self.where)

    def spellings(self, name: str) -> tuple[str, ...]:
        """What a key may be called: as the family spells it, as memcore does, as others do."""
        key = self.renamed.get(name, name)
        others = (s for group in SYNONYMS if name in group or key in group for s in group)
        return tuple(dict.fromkeys((key, name, *others)))

    def label(self, name: str) -> str:
        """The key as the user wrote it, with the path to it."""
        spellings = self.spellings(name)
        key = next((s for s in spellings if s in self.values), spellings[0])
        return f"{self.where}.{key}".lstrip(".")

    def given(self, name: str) -> object:
        """The value in the file alone, None where absent or null."""
        return next((self.values[s] for s in self.spellings(name) if s in self.values), None)

    def value(self, name: str) -> object:
        """The value in the file, else the class default, else None."""
        defaults = _defaults().get(self.model_type, {})
        for values in (self.values, defaults):
            for spelling in self.spellings(name):
                if spelling in values:
                    return values[spelling]
        return None

    def refuse(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.label(name)} ({_short(self.value(name))}) {problem}")

    def size(self, name: str, otherwise: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number within physical bounds."""
        value = self.value(name)
        if value is None:
            if otherwise is None:
                raise ConfigError(f"{self.label(name)} is missing")
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "must be a whole number")
        if value < minimum:
            raise self.refuse(name, f"must be at least {minimum}")
        if value > maximum:
            raise self.refuse(name, f"is larger than any model's: at most {maximum} is believed")
        return value

    def flag(self, name: str, otherwise: bool = False) -> bool:
        value = self.value(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.refuse(name, "must be true or false")
        return value

    def on(self, flag: bool | str) -> bool:
        """A flag of a family's description: fixed, or the name of the key that decides, "!" before it for its opposite."""
        if isinstance(flag, bool):
            return flag
        return not self.flag(flag[1:]) if flag.startswith("!") else self.flag(flag)

    def number(self, name: str, otherwise: float = 0.0, minimum: float = 0.0, maximum: float = math.inf) -> float:
        value = self.value(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise self.refuse(name, "must be a number")
        if not minimum <= value <= min(maximum, LARGEST_NUMBER):
            raise self.refuse(name, f"must lie between {minimum:g} and {min(maximum, LARGEST_NUMBER):g}")
        return float(value)

    def word(self, name: str, otherwise: str = "") -> str:
        value = self.value(name)
        if value is None:
            return otherwise
        if not isinstance(value, str) or len(value) > 200:
            raise self.refuse(name, "must be a word")
        return value

    def list(self, name: str, length: int | None = None, of: type = object) -> list | None:
        """A list, of a given length where one entry is meant for each layer; None where absent."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise self.refuse(name, "must be a list")
        if length is not None and len(value) != length:
            raise ConfigError(f"{self.label(name)} has {len(value)} entries for {length} layers")
        for entry in value:
            if not isinstance(entry, of) or isinstance(entry, bool) and of is not bool:
                raise ConfigError(f"{self.label(name)} holds {_short(entry)}, which is not a {of.__name__}")
        return list(value)

    def layers(self, name: str = "num_hidden_layers", minimum: int = 1) -> int:
        return self.size(name, minimum=minimum, maximum=MAX_LAYERS)

    def nested(self, name: str) -> dict | None:
        """A config within the config; None where absent."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(name, "must be an object")
        return dict(value)
