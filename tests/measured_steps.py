"""The measured training steps of tests/truth/steps.csv, as Scenarios."""

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import memcore

TRUTH = Path(__file__).parent / "truth"
FIELDS = (
    "method quantization precision autocast adapter_precision prepare_kbit optimizer lora_rank lora_target_modules lora_dropout "
    "micro_batch_size sequence_length gradient_checkpointing attention loss kernels software"
).split()
CONVERT = {
    "autocast": lambda text: text == "True",
    "lora_rank": int,
    "micro_batch_size": int,
    "sequence_length": int,
    "lora_dropout": float,
    "lora_target_modules": lambda text: text if text == "all-linear" else tuple(text.split()),
}


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    run: memcore.Scenario
    row: dict
    """The other columns: bytes by phase and kind."""

    def __str__(self):
        r = self.run
        kind = [r.method, r.precision, "autocast" if r.autocast else "", "" if r.method == "full" else r.adapter_precision, r.prepare_kbit]
        size = f"{r.micro_batch_size}x{r.sequence_length}"
        return "-".join([self.row["model"], *filter(None, kind), size, r.gradient_checkpointing, r.attention, r.loss, r.optimizer])

    def __getitem__(self, column):
        return int(self.row[column] or 0)


@cache
def model(name):
    return memcore.model_from_config(json.loads((TRUTH / "configs" / f"{name.replace('/', '--')}.json").read_text()))


def _read():
    with open(TRUTH / "steps.csv", newline="") as file:
        for row in csv.DictReader(file):
            fields = {name: CONVERT.get(name, str)(row[name]) for name in FIELDS if row[name]}
            yield MeasuredStep(memcore.Scenario(model=model(row["model"]), **fields), row)


STEPS = list(_read())
