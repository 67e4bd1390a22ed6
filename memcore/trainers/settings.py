"""The keys of one file, taken one at a time: what was used, what was assumed, and what is left over."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..scenario import LARGEST
from .errors import TrainerFileError, hint, show
from .table import Key, Trainer


class Used(NamedTuple):
    """A key of the file, and the Scenario fields it decided."""

    key: str
    value: Any
    field: str


class Unused(NamedTuple):
    """A key of the file that the estimate does not depend on, and why."""

    key: str
    value: Any
    reason: str


class Assumed(NamedTuple):
    """A key the file does not have, the value the trainer then uses, and where that is written."""

    key: str
    value: Any
    source: str


class Settings:
    """A file's values as its trainer would read them."""

    def __init__(self, table: Trainer, values: dict[str, Any], unreadable: dict[str, str]) -> None:
        self.table = table
        self.values = values
        self.unreadable = unreadable
        self.used: dict[str, Used] = {}
        self.assumed: dict[str, Assumed] = {}
        self.refused: dict[str, str] = {}
        self.notes: list[str] = []
        for key in values:
            row = table.keys.get(key.rpartition(".")[0]) if "." in key and key not in table.keys else None
            if row and row.kind != "any":
                raise TrainerFileError(f"{row.name} must be a single value, and has {show(key)} below it")

    def get(self, name: str) -> Any:
        """The value of a key: the file's, or the library's default."""
        row = self.table.keys[name]
        found = self.find(name)
        if found is None:
            self._check_readable(row)
            if row.default is not None:
                self.assume(name, row.default, row.source if "://" in row.source else f"{self.table.source}/{row.source}")
            return convert(name, row.default, row) if row.kind == "names" and row.default is not None else row.default
        key, raw = found
        value = convert(key, raw, row)
        self.used.setdefault(key, Used(key, raw, row.field or row.decides))
        return value

    def find(self, name: str) -> tuple[str, Any] | None:
        """The key under which the file gives this one (nulls count as absent), and its value."""
        row = self.table.keys[name]
        given = [(key, self.values[key]) for key in (row.name, *row.aliases) if self.values.get(key) is not None]
        for key, value in given[1:]:
            if value != given[0][1]:
                raise TrainerFileError(f"{given[0][0]} ({show(given[0][1])}) and {key} ({show(value)}) disagree; keep one of them")
            self.used.setdefault(key, Used(key, value, row.field or row.decides))
        return given[0] if given else None

    def given(self, name: str) -> bool:
        return self.find(name) is not None

    def choice(self, name: str) -> Any:
        """The value of a key in our words; None where memcore has nothing like it, which is noted."""
        row = self.table.keys[name]
        value = self.get(name)
        if value is None:
            return None
        table = self.table.values[row.values]
        word = str(value).lower() if isinstance(value, (str, bool)) else str(value)
        if table.get(word):
            return table[word]
        found = self.find(name)
        key = found[0] if found else name
        close = hint(word, table)
        default = table.get(str(row.default).lower()) if row.default is not None else None
        instead = f"; the estimate uses {default} instead" if default else ""
        self.refuse(key, f"{show(value)} is not known to memcore{close}{instead}")
        self.note(f"{key} ({show(value)}) is not known to memcore{close}{instead}")
        return default

    def refuse(self, key: str, reason: str) -> None:
        """The key was read, and cannot be followed."""
        self.used.pop(key, None)
        self.refused[key] = reason

    def assume(self, key: str, value: Any, source: str) -> None:
        self.assumed.setdefault(key, Assumed(key, value, source))

    def note(self, sentence: str) -> None:
        if sentence and sentence not in self.notes:
            self.notes.append(sentence)

    def unused(self, adapters: bool) -> tuple[Unused, ...]:
        """What is left over, each with its reason; what may matter first."""
        left = []
        for key, value in self.values.items():
            if key in self.used:
                continue
            left.append(Unused(key, value, self._reason(key, adapters)))
        left += [Unused(key, None, IGNORED if self.table.ignores(key) else f"{key} {why}") for key, why in self.unreadable.items()]
        return tuple(sorted(left, key=lambda item: item.reason == IGNORED))

    def _reason(self, key: str, adapters: bool) -> str:
        row, value = self.table.key(key), self.values[key]
        off = value in (None, False, 0, "no", "none", "false", "off") or value == 1 and key.endswith(("_size", "_degree", "_dim"))
        if key in self.refused:
            return self.refused[key]
        if self.table.ignores(key) or key.startswith("environment.") or off and key in self.table.unsupported:
            return IGNORED
        if key in self.table.unsupported:
            return self.table.unsupported[key]
        if value is None:
            return "is empty; the default counts" if row else IGNORED
        if row is not None:
            return "without effect in a full fine-tune" if row.only and not adapters else "without effect beside the other settings"
        return f"not known to memcore{hint(key, self.table.names())}"

    def _check_readable(self, row: Key) -> None:
        for key in (row.name, *row.aliases):
            if key in self.unreadable:
                self.note(f"{key} {self.unreadable[key]}" + (f"; {show(row.default)} is assumed" if row.default is not None else ""))


IGNORED = "does not change the peak"


def convert(key: str, value: Any, row: Key) -> Any:
    """A value as its key's kind asks for it; anything else is refused, naming key and value."""
    match row.kind:
        case "size":
            return _size(key, value, LARGEST.get(row.field, 2**30))
        case "share":
            number = _number(value)
            if number is None or not 0 <= number < 1:
                raise TrainerFileError(f"{key} ({show(value)}) must be a number from 0 up to, not including, 1")
            return float(number)
        case "flag":
            return _flag(key, value)
        case "names":
            return _names(key, value)
        case "text":
            if isinstance(value, (str, int, float)):
                return str(value).lower() if isinstance(value, bool) else str(value)
            raise TrainerFileError(f"{key} ({show(value)}) must be a word")
    return value


def _size(key: str, value: Any, largest: int) -> int:
    number = _number(value)
    if number is None or number != math.floor(number) or not 1 <= number <= largest:
        raise TrainerFileError(f"{key} ({show(value)}) must be a whole number from 1 to {largest}")
    return int(number)


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        try:
            value = float(value.replace("_", "")) if len(value) <= 40 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _flag(key: str, value: Any) -> bool:
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
        "none": False,
        "": False,
    }
    word = str(value).lower() if isinstance(value, (str, bool, int)) else "?"
    if len(word) > 5 or word not in words:
        raise TrainerFileError(f"{key} ({show(value)}) must be true or false")
    return words[word]


def _names(key: str, value: Any) -> tuple[str, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise TrainerFileError(f"{key} ({show(value)}) must be a list of module names")
    if len(parts) > 500:
        raise TrainerFileError(f"{key} lists {len(parts):,} modules; name the last part of each, such as q_proj")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
