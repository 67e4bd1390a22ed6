"""read_trainer_file: a trainer's file → the Scenario it describes, with what was used, assumed and left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..scenario import FIELDS, NUMERIC, Scenario, ScenarioError
from . import axolotl, llama_factory, mlx_lm, torchtune, trl, unsloth
from .command import LAUNCHER_KEYS, gpus
from .errors import TrainerFileError, hint, show
from .models import resolve
from .settings import Assumed, Settings, Unused, Used
from .table import Trainer, trainers
from .text import Document, parse

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture

Reader = Callable[[Settings, "ModelArchitecture | None", str], dict[str, Any]]
READERS: dict[str, Reader] = {
    "axolotl": axolotl.read_axolotl,
    "llama-factory": llama_factory.read_llama_factory,
    "torchtune": torchtune.read_torchtune,
    "trl": trl.read_trl,
    "transformers": trl.read_transformers,
    "mlx-lm": mlx_lm.read_mlx_lm,
    "unsloth": unsloth.read_unsloth,
}
MODEL_KEYS = {"torchtune": "model._component_", "axolotl": "base_model", "mlx-lm": "model", "unsloth": "model_name"}
NEEDED = ("sequence_length", "micro_batch_size", "gradient_accumulation_steps", "lora_rank")
"""Fields a file decides; where neither it nor its trainer does, memcore's own default is said."""


@dataclass(frozen=True, kw_only=True)
class TrainerFile:
    """What a trainer's file says."""

    trainer: str
    """Whose file it is; a key of `trainers()`."""
    label: str
    version: str
    """Of the library whose defaults were applied."""
    model_name: str
    """As the file has it."""
    scenario_fields: dict[str, Any]
    """The run, as keyword arguments of a Scenario; without the model where that is not known."""
    scenario: Scenario | None
    """The run; None where the model is not in the catalog and was not given."""
    used: tuple[Used, ...]
    unused: tuple[Unused, ...]
    assumed: tuple[Assumed, ...]
    notes: tuple[str, ...]
    """What a reader should know before trusting the numbers, one sentence each."""


def read_trainer_file(text: str | bytes, trainer: str | None = None, model: ModelArchitecture | str | None = None) -> TrainerFile:
    """The run that a trainer's file or command line describes.

    `trainer` is a key of `trainers()`, found out from the keys where it is left out. `model` replaces the model the file
    names: a Hub id of the catalog, or an architecture. Raises TrainerFileError where the file cannot be read or
    contradicts itself.

    >>> run = read_trainer_file("base_model: meta-llama/Llama-3.1-8B\\nadapter: lora\\nlora_r: 8\\nsequence_len: 2048")
    >>> run.trainer, run.scenario.method, run.scenario.micro_batch_size
    ('axolotl', 'lora', 1)
    """
    document = parse(text)
    if document.syntax == "command" and document.program.split(" ")[0].partition(".")[0] in ("axolotl", "tune"):
        raise TrainerFileError(f"{document.program[:60]!r} names a configuration that is not here; paste the contents of that file")
    table = _named(trainer) if trainer is not None else _recognised(document)
    settings = Settings(table, document.values, document.unreadable)
    name, key = _model_name(settings)
    architecture, stored = _architecture(name, key, model, settings)
    try:
        decided = READERS[table.name](settings, architecture, stored)
        adapters = decided["method"] != "full"
        fields = (
            {"software": table.software}
            | _direct(settings, adapters)
            | decided
            | _launched(document, settings)
            | _remembered(document, settings)
        )
        fields = {field: value for field, value in fields.items() if value is not None}
        scenario = Scenario(model=architecture, **fields) if architecture is not None else None
    except ScenarioError as error:
        raise TrainerFileError(f"{table.label}: {error}") from None
    return TrainerFile(
        trainer=table.name, label=table.label, version=table.version, model_name=name, scenario_fields=fields, scenario=scenario,
        used=tuple(settings.used.values()), unused=settings.unused(adapters), assumed=tuple(settings.assumed.values()),
        notes=tuple(settings.notes),
    )  # fmt: skip


def _named(trainer: str) -> Trainer:
    try:
        return trainers()[trainer]
    except (catalog.UnknownName, TypeError):
        raise TrainerFileError(f"trainer ({show(trainer)}) must be one of {', '.join(trainers())}{hint(trainer, trainers())}") from None


def _recognised(document: Document) -> Trainer:
    """The trainer that knows most of a file's keys."""
    program = f" {document.program} "
    if document.syntax in ("command", "python"):
        for table in reversed(trainers().values()):  # what is built on Trainer before Trainer itself
            words = table.commands if document.syntax == "command" else table.calls
            if any(f" {word}" in program or f"/{word} " in program for word in words):
                return table
    candidates = [table for table in trainers().values() if document.syntax != "python" or table.name in ("unsloth", "trl")]
    scores = {table.name: _score(table, document.values) for table in candidates}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] < 2:
        names = ", ".join(list(document.values)[:5])
        raise TrainerFileError(f"the keys ({names[:100]}) are those of no trainer memcore reads; name it: {', '.join(trainers())}")
    return trainers()[best]


def _score(table: Trainer, values: dict[str, Any]) -> int:
    known = set(table.names())
    top = {key.partition(".")[0] for key in values}
    return sum(3 for key in table.signature if key in values or key in top) + sum(key in known for key in values)


def _model_name(s: Settings) -> tuple[str, str]:
    """The model's name, and the key that gives it."""
    key = MODEL_KEYS.get(s.table.name, "model_name_or_path")
    if s.table.name == "torchtune":
        return torchtune.model_name(s), key
    name = s.get(key)
    if name is None:
        s.note(f"{key} is missing: the file does not say which model it trains")
    found = s.find(key)
    return name or "", found[0] if found else key


def _architecture(name: str, key: str, model: ModelArchitecture | str | None, s: Settings) -> tuple[ModelArchitecture | None, str]:
    from .models import stored_as

    stored = stored_as(name)[1]
    if isinstance(model, str):
        try:
            return catalog.model(model), stored
        except catalog.UnknownName as error:
            raise TrainerFileError(str(error)) from None
    if model is not None:
        return model, stored
    return resolve(name, s, key) if name else (None, stored)


def _direct(s: Settings, adapters: bool) -> dict[str, Any]:
    """The fields that one key sets by itself."""
    fields: dict[str, Any] = {}
    for name, row in s.table.keys.items():
        if not row.field or row.only and not adapters:
            continue
        value = s.values.get(name)
        if row.null and name in s.values and value is None:
            s.note(f"{name} is null: the longest sample sets the peak; {Scenario.sequence_length} tokens are assumed")
            continue
        if (found := s.get(name)) is not None:
            fields[row.field] = found
    for field in NEEDED:
        row = next((row for row in s.table.keys.values() if row.field == field), None)
        if field in fields or row is None or row.only and not adapters:
            continue
        s.assume(row.name, getattr(Scenario, field), "memcore's own default: neither the file nor the trainer sets one")
    return fields


def _launched(document: Document, s: Settings) -> dict[str, Any]:
    """GPUs, where the command line says how many it starts on."""
    keys, number = gpus(document.values)
    for key in keys:
        s.used[key] = Used(key, document.values[key], "data_parallel_size")
    for key in LAUNCHER_KEYS:
        if key in document.values and key not in s.used and s.table.key(key) is None:
            s.refused.setdefault(key, "belongs to the launcher")
    if "config" in document.values and document.syntax == "command":
        s.note(f"--config ({show(document.values['config'])}) is a file that is not here; paste its contents, too")
    return {"data_parallel_size": number} if number else {}


def _remembered(document: Document, s: Settings) -> dict[str, Any]:
    """The fields that memcore wrote in comments."""
    fields = {}
    for name, value in document.remembered.items():
        if name not in FIELDS or name == "model":
            raise TrainerFileError(f"# memcore: {name} is no field of a Scenario{hint(name, FIELDS)}; remove the line")
        if name in NUMERIC and isinstance(value, list):
            raise TrainerFileError(f"# memcore: {name} ({show(value)}) holds several values; a trainer's file describes one run")
        fields[name] = tuple(value) if isinstance(value, list) else value
        s.used[f"# memcore: {name}"] = Used(f"# memcore: {name}", value, name)
    return fields
