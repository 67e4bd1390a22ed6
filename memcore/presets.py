"""Well-known set-ups as starting points: a run and its device, from data/presets.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from typing import Any

from . import catalog, files
from .catalog import Device
from .scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A run and the device it is made for."""

    name: str
    label: str
    notes: str
    device: Device
    settings: dict[str, Any]
    """Fields of the Scenario that differ from its defaults; `model` is a Hub id."""
    source: str
    checked: date

    @property
    def run(self) -> Scenario:
        return Scenario(**self.settings)


@cache
def presets() -> catalog.Table[Preset]:
    """Every preset by name, in the order to show them."""
    with open(files.data_folder() / "presets.toml", "rb") as file:
        rows = tomllib.load(file)["preset"]
    known = {field.name for field in fields(Preset)} - {"settings"} | {"run"}
    found: dict[str, Preset] = {}
    for row in rows:
        if set(row) != known or row["name"] in found:
            raise ValueError(
                f"presets.toml: preset {row.get('name', '?')} is there twice, or has other keys than {', '.join(sorted(known))}"
            )
        settings = {name: tuple(value) if isinstance(value, list) else value for name, value in row.pop("run").items()}
        found[row["name"]] = Preset(**row | {"device": catalog.devices()[row["device"]], "settings": settings})
    return catalog.Table("preset", found)
