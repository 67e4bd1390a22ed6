"""What the page says of a trainer's file: which run it describes, what set each field, what was left out; and the files it writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from . import catalog, links
from .architecture import ModelArchitecture
from .configs import lora_fields_from_adapter_config, parse_json
from .markup import escape
from .scenario import FIELDS, SAVED_MODULES, Scenario
from .trainers import TrainerFile, TrainerFileError, Unused, Used, read_trainer_file, trainers, write_trainer_file
from .trainers.errors import show
from .trainers.settings import IGNORED

DETECT = "Find out"
SCRIPTS = ("unsloth",)
"""Trainers whose files are Python."""
SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Read:
    """A trainer's file, as a run the page can take."""

    file: TrainerFile
    run: Scenario
    borrowed: bool
    """Whether the model is the page's, because the file names none that is known."""

    @property
    def controls(self) -> dict[str, Any]:
        """The values of the page's controls for this run; without the model where it is the page's."""
        values = links.of_run(self.run)
        return values if self.borrowed else values | {"model": self.run.model.name}

    @property
    def title(self) -> str:
        """Whose file it is."""
        return f"{self.file.label} {self.file.version}".strip()


def read(text: str | bytes, model: ModelArchitecture, trainer: str = DETECT) -> Read:
    """The run of a trainer's file; of `model` where the file's own is not known. Raises TrainerFileError, in one sentence."""
    named = None if trainer == DETECT else trainer
    file = read_trainer_file(text, named)
    if file.scenario is not None:
        return Read(file, file.scenario, False)
    borrowed = read_trainer_file(text, named, model)
    if borrowed.scenario is None:  # pragma: no cover  (the model was given)
        raise TrainerFileError("the file does not say which model it trains; choose one at the left")
    return Read(TrainerFile(**{**vars(borrowed), "notes": tuple(dict.fromkeys((*file.notes, *borrowed.notes)))}), borrowed.scenario, True)


ADAPTER_KEYS = {"r": "lora_rank", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules", "modules_to_save": "modules_to_save"}
"""Of an adapter_config.json, and the fields they set."""


def is_adapter(text: str) -> bool:
    """Whether a text is PEFT's adapter_config.json, which describes adapters and nothing else of a run."""
    return text.lstrip().startswith("{") and '"peft_type"' in text


def read_adapter(text: str, page: Scenario) -> Read:
    """The page's run with the adapters of an adapter_config.json. Raises ConfigError or ScenarioError, in one sentence."""
    values = parse_json(text, "adapter_config.json")
    lora = lora_fields_from_adapter_config(values)
    saved = lora.get("modules_to_save", ())
    known = tuple(name for name in saved if name in SAVED_MODULES)
    notes = (
        [f"modules_to_save: {', '.join(name for name in saved if name not in known)} trained in full is not in the estimate"]
        if len(known) < len(saved)
        else []
    )
    base = values.get("base_model_name_or_path")
    base = base[:SHOWN_LETTERS] if isinstance(base, str) else ""
    borrowed = base not in catalog.models()
    method = page.method if page.method != "full" else "lora"  # the file does not say how the base is stored
    fields = lora | {"modules_to_save": known, "method": method} | ({} if borrowed else {"model": base})
    run = page.replace(**fields)
    used = [Used(key, values[key], field) for key, field in ADAPTER_KEYS.items() if values.get(key)]
    used += [] if borrowed else [Used("base_model_name_or_path", base, "model")]
    unused = [Unused(key, value, IGNORED) for key, value in values.items() if key not in {u.key for u in used}]
    file = TrainerFile(
        trainer="peft", label="PEFT adapter_config.json", version="", model_name=base, scenario_fields=fields, scenario=run,
        used=tuple(used), unused=tuple(unused), assumed=(), notes=tuple(notes),
    )  # fmt: skip
    return Read(file, run, borrowed)


def fields_set(found: Read, page: Scenario) -> pd.DataFrame:
    """Each field of the file's run, by which key, and what the page has now; as the page prints it, changes first."""
    rows = []
    there, here = found.run.to_dict(), page.to_dict()
    for field in FIELDS:
        keys = [u.key for u in found.file.used if field in re.split(r"[, ]+", u.field)]
        if field not in found.file.scenario_fields and not keys:
            continue
        changes = there[field] != here[field] and not (field == "model" and found.borrowed)
        rows.append(
            {
                "Field": field,
                "Becomes": f"**{_value(there[field])}**" if changes else _value(there[field]),
                "Now": _value(here[field]) if changes else "the same",
                "Because of": escape(", ".join(keys)) or "the trainer's default",
                "changes": changes,
            }
        )
    table = pd.DataFrame(rows)
    return table.sort_values("changes", ascending=False, kind="stable").drop(columns="changes").reset_index(drop=True)


def not_used(file: TrainerFile) -> pd.DataFrame:
    """Keys that matter to memory, or may, and could not be followed; as the page prints them."""
    rows = [u for u in file.unused if u.reason != IGNORED]
    return pd.DataFrame([{"Key": escape(u.key), "Value": _value(u.value), "Why": escape(u.reason)} for u in rows])


def without_effect(file: TrainerFile) -> list[str]:
    """Keys that do not change the peak."""
    return [u.key for u in file.unused if u.reason == IGNORED]


def assumed(file: TrainerFile) -> pd.DataFrame:
    """What the trainer does where the file says nothing, and where that is written; as the page prints it."""
    return pd.DataFrame([{"Key": escape(a.key), "Default": _value(a.value), "Source": _source(a.source)} for a in file.assumed])


def writable() -> dict[str, str]:
    """The trainers a file can be written for, with their names."""
    from .trainers import WRITABLE

    return {name: trainers()[name].label.split(" (")[0] for name in WRITABLE}


def readable() -> dict[str, str]:
    """The trainers whose files are read, with their names."""
    return {DETECT: "Find out which"} | {name: table.label for name, table in trainers().items()}


def write(run: Scenario, trainer: str) -> str:
    """A file for `trainer` to start this run from."""
    return write_trainer_file(run, trainer)


def file_name(run: Scenario, trainer: str) -> str:
    """Such as Llama-3.1-8B-qlora-axolotl.yaml."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", run.model.name.rpartition("/")[2]).strip("-.")[:60]
    return f"{name or 'model'}-{run.method}-{trainer}.{'py' if trainer in SCRIPTS else 'yaml'}"


def language(trainer: str) -> str:
    """How the text is coloured."""
    return "python" if trainer in SCRIPTS else "yaml"


def unnamed(run: Scenario) -> bool:
    """Whether the model has no name that a trainer could load."""
    return run.model.name not in catalog.models()


def _value(value: Any) -> str:
    """A value in a table cell, as no markup."""
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(str, value)) or "none"
    else:
        text = "true" if value is True else "false" if value is False else "–" if value is None else f"{value:,}" if type(value) is int else str(value)
    if len(text) > SHOWN_LETTERS:
        text = show(text, SHOWN_LETTERS).strip("'\"")
    return escape(text)


def _source(source: str) -> str:
    if "://" not in source:
        return _value(source) if len(source) <= SHOWN_LETTERS else source.replace("_", "\\_")
    address = source.split(" ")[0]
    parts = [part for part in address.partition("://")[2].split("/") if part]
    return f"[{parts[-1] if len(parts) > 1 else address}]({address})".replace("_", "\\_")
