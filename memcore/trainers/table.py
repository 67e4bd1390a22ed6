"""data/trainers/*.toml: for each trainer its keys, the Scenario fields they set, and what it does where a key is absent."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cache
from typing import Any

from .. import catalog, files

ORDER = ("axolotl", "llama-factory", "torchtune", "trl", "transformers", "mlx-lm", "unsloth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of a trainer's file."""

    name: str
    field: str = ""
    """The Scenario field it sets directly, value for value."""
    decides: str = ""
    """Where several keys together decide: the fields they decide, in words."""
    kind: str = "any"
    """"size" (a whole number from 1), "share" (0 up to 1), "flag", "text", "names" or "any"."""
    default: Any = None
    """What the library uses where the key is absent; None: nothing, or it depends."""
    source: str = ""
    """Where the default is written, below the table's own source."""
    values: str = ""
    """The table of values, theirs → ours."""
    aliases: tuple[str, ...] = ()
    """Other names of the same key: older ones, and those of scripts around the library."""
    only: str = ""
    """"adapters": without effect in a full fine-tune."""
    null: str = ""
    """What an explicit null means, where that is not the default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """One trainer, as its table describes it."""

    name: str
    label: str
    version: str
    """Of the library whose sources were read."""
    software: str
    """The row of software.csv."""
    source: str
    checked: date
    signature: tuple[str, ...] = ()
    """Keys by which a file of this trainer is known."""
    commands: tuple[str, ...] = ()
    """Words of a command line that start it."""
    calls: tuple[str, ...] = ()
    """Python calls that only its snippets make."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tables of values, theirs → ours; None: memcore has nothing like it."""
    ignored: tuple[str, ...] = ()
    """Keys that do not change the peak: "seed", or "dataset.*" with all below it."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Keys that do, in a way a Scenario cannot say, and what the estimate does instead."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Scenario fields that are decided outside the file, and where."""
    starting: Mapping[str, Any] = field(default_factory=dict)
    """Keys that a file to start from needs besides the scenario's."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Sentences for the reader, by the case they belong to."""

    def key(self, name: str) -> Key | None:
        """The row of a key, by its name or an older one."""
        return self.keys.get(name) or next((key for key in self.keys.values() if name in key.aliases), None)

    def names(self) -> tuple[str, ...]:
        """Every key the table knows something about."""
        known = [alias for key in self.keys.values() for alias in (key.name, *key.aliases)]
        return (*known, *self.unsupported, *(name for name in self.ignored if not name.endswith("*")))

    def ignores(self, name: str) -> bool:
        return any(name == known or known.endswith("*") and name.startswith(known[:-1]) for known in self.ignored)


@cache
def trainers() -> catalog.Table[Trainer]:
    """Every trainer memcore reads, by name."""
    return catalog.Table("trainer", {name: _trainer(name) for name in ORDER})


@cache
def shared() -> dict[str, Any]:
    """What several trainers have in common."""
    return _toml("shared")


def _toml(name: str) -> dict[str, Any]:
    with open(files.data_folder() / "trainers" / f"{name}.toml", "rb") as file:
        return tomllib.load(file)


def _trainer(name: str) -> Trainer:
    content = _toml(name)
    base = _trainer(content.pop("extends")) if "extends" in content else None
    rows = {key: Key(name=key, **_tuples(row)) for key, row in content.pop("keys", {}).items()}
    values = {"optimizer": optimizer_names()} | shared()["values"]
    for kind, words in content.pop("values", {}).items():
        values[kind] = values.get(kind, {}) | words
    trainer = Trainer(keys=rows, values=values, **_tuples(content))
    if base is None:
        return trainer
    merged = {
        part: dict(getattr(base, part)) | dict(getattr(trainer, part)) for part in ("keys", "values", "unsupported", "elsewhere", "notes")
    }
    merged["keys"] = {name: key for name, key in merged["keys"].items() if name in rows or not _replaced(key, rows)}
    merged["unsupported"] = {name: why for name, why in merged["unsupported"].items() if name not in trainer.keys}
    return replace(trainer, ignored=(*trainer.ignored, *base.ignored), **merged)


def _replaced(key: Key, rows: dict[str, Key]) -> bool:
    """Whether a table that extends another has its own row for the same thing."""
    return any(key.name in row.aliases or key.field and key.field == row.field for row in rows.values())


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    """TOML lists as the tuples of a frozen class."""
    tuple_fields = {f.name for cls in (Key, Trainer) for f in fields(cls) if str(f.type).startswith("tuple")}
    return {name: tuple(value) if name in tuple_fields else value for name, value in row.items()}


@cache
def optimizer_names() -> dict[str, str]:
    """Hugging Face's `optim` names → rows of optimizers.csv; a new row is known here without more."""
    names: dict[str, str] = {}
    for row in catalog.optimizers().values():
        if row.hf_optim:
            names.setdefault(row.hf_optim, row.name)
    return names | shared()["optimizer_aliases"]
