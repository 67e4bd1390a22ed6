"""write_trainer_file: a Scenario → a file to start from, that reads back as the same Scenario."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

from ..scenario import FIELDS, Scenario
from . import axolotl, llama_factory, mlx_lm, torchtune, trl, unsloth
from .errors import TrainerFileError, hint, show
from .reading import NEEDED, read_trainer_file
from .table import Trainer, trainers

WRITERS: dict[str, Callable[[Scenario], dict[str, Any]]] = {
    "trl": trl.write_trl,
    "axolotl": axolotl.write_axolotl,
    "llama-factory": llama_factory.write_llama_factory,
    "mlx-lm": mlx_lm.write_mlx_lm,
    "torchtune": torchtune.write_torchtune,
    "unsloth": unsloth.write_unsloth,
}
ADAPTER_FIELDS = ("adapter_precision", "lora_rank", "lora_dropout", "lora_target_modules", "modules_to_save", "prepare_kbit")
"""Without effect in a full fine-tune."""


def write_trainer_file(run: Scenario, trainer: str) -> str:
    """A configuration of `trainer` ("trl", "axolotl", "llama-factory", "mlx-lm", "torchtune" or "unsloth") to start this run from.

    Fields the trainer has no key for are written as comments that `read_trainer_file` understands, with what the
    trainer does instead; reading the text gives the same Scenario. A model that is not in the catalog has to be passed
    to `read_trainer_file`.
    """
    if trainer not in WRITERS:
        raise TrainerFileError(f"trainer ({show(trainer)}) must be one of {', '.join(WRITERS)}{hint(trainer, WRITERS)}")
    if not run.model.name.isprintable():
        raise TrainerFileError(f"model ({show(run.model.name)}): a file names it in one line; give the model another name")
    for name in FIELDS:
        if isinstance(getattr(run, name), np.ndarray):
            raise TrainerFileError(f"{name} holds several values; a trainer's file describes one run")
    table = trainers()[trainer]
    keys = _keys(run, table)
    head = [
        f"# {table.label} {table.version}: a file to start from, for {run.model.name}.",
        "# Fill in the data; what is not here is the trainer's default.",
    ]
    plain = _rendered(keys, head, table)
    return _rendered(keys, head + _comments(run, plain, table), table)


def _keys(run: Scenario, table: Trainer) -> dict[str, Any]:
    """The trainer's keys: the model, what one field sets by itself, what several decide together, and what a start needs."""
    special = WRITERS[table.name](run)
    rows = [row for row in table.keys.values() if row.field and not (row.only and run.method == "full")]
    direct = {row.name: _number(getattr(run, row.field)) for row in rows}
    for row in rows:  # parallelism is written where there is some
        if row.default is None and row.field not in NEEDED and getattr(run, row.field) == getattr(Scenario, row.field):
            del direct[row.name]
    first = next(iter(special))
    return {first: special.pop(first)} | direct | special | {key: value for key, value in table.starting.items() if key not in special}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and value else value


def _comments(run: Scenario, plain: str, table: Trainer) -> list[str]:
    """One line for each field that the keys alone do not bring back."""
    back = read_trainer_file(plain, table.name, run.model)
    if back.scenario is None:  # pragma: no cover  (the model was given)
        raise TrainerFileError(f"{table.label} cannot describe this run")
    ours, theirs = run.to_dict(), back.scenario.to_dict()
    different = [name for name in FIELDS if name != "model" and ours[name] != theirs[name]]
    idle = [name for name in different if run.method == "full" and name in ADAPTER_FIELDS]
    missing = [name for name in different if name not in idle]
    lines = []
    if missing:
        lines += [
            "#",
            f"# {table.label} has no key for these; the trainer alone would do what stands behind. memcore reads them from here:",
        ]
        for name in missing:
            why = table.elsewhere.get(name)
            lines.append(_line(name, ours[name], _shown(theirs[name]) + (f"; {name} {why}" if why else "")))
    if idle:
        lines += ["#", "# Without effect in a full fine-tune, kept for memcore:"]
        lines += [_line(name, ours[name], "") for name in idle]
    return lines


def _line(name: str, value: Any, instead: str) -> str:
    return f"# memcore: {name} = {json.dumps(value)}" + (f"  # {instead}" if instead else "")


def _shown(value: Any) -> str:
    return " ".join(value) or "none" if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)


def _rendered(keys: dict[str, Any], comments: list[str], table: Trainer) -> str:
    if table.name == "unsloth":
        return unsloth.render(keys, comments)
    body = yaml.safe_dump(_nested(keys), sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    return "\n".join(comments) + "\n\n" + body


def _nested(keys: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as mappings in mappings."""
    nested: dict[str, Any] = {}
    for key, value in keys.items():
        *outer, last = key.split(".")
        inner = nested
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested
