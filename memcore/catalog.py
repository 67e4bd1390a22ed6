"""The catalog: data/ read into models, devices, optimizers, precisions, quantizations and software. No numbers of its own.

A table is a CSV file with one row per thing; its columns are the fields of the class it is read into (`data/README.md`
says what each means). Everything is read on first use and kept.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from .files import data_folder
from .units import BYTE_UNITS, MiB, format_count

if TYPE_CHECKING:
    from .architecture import ModelArchitecture

T = TypeVar("T")

LARGEST_DEVICE_BYTES = BYTE_UNITS["TB"] * 100
"""Beyond any device with one memory; a larger number is a slip of the finger or of the unit."""


class UnknownName(KeyError):
    """A name that is not in the catalog; the message gives the closest ones that are."""

    def __init__(self, kind: str, name: object, known: list[str]) -> None:
        self.kind, self.name, self.closest = kind, name, _closest(str(name)[:200], known)
        shown = repr(name if len(str(name)) <= 80 else str(name)[:80] + "…")
        hint = f"did you mean {', '.join(self.closest)}?" if self.closest else f"the catalog has {len(known)} of them"
        super().__init__(f"{kind} {shown} is not in the catalog; {hint}")

    def __str__(self) -> str:
        return str(self.args[0])


class Table(dict[str, T]):
    """Rows of one kind by name, in the order to show them; an unknown name raises UnknownName."""

    def __init__(self, kind: str, rows: Mapping[str, T]) -> None:
        super().__init__(rows)
        self.kind = kind

    def __missing__(self, name: str) -> T:
        raise UnknownName(self.kind, name, list(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU or a machine with unified memory: what it has, and what of that a run may take."""

    name: str
    """The driver's name, with the memory added where one driver name stands for several."""
    driver_name: str
    vendor: str
    label: str
    """For recognition: the name on the box, with its GB."""
    kind: str
    """consumer, laptop, workstation, datacenter, cloud, apple, embedded, slice (MIG) or custom."""
    memory_bytes: float
    """As the driver reports it; with unified memory, the machine's RAM."""
    usable_bytes: float
    """What a run may take of it."""
    usable_basis: str
    """Where `usable_bytes` comes from, in words."""
    unified: bool
    """The memory is the machine's RAM, shared with the operating system."""
    bandwidth_gb_s: float | None = None
    bf16_dense_tflops: float | None = None
    """Of 16-bit matrix products with float32 sums, without sparsity; float16 where bf16 is not supported."""
    bf16_supported: bool = True
    year: int | None = None
    confidence: str = ""
    """Of the memory: "seen-in-log", "inferred" or "given" (custom)."""
    notes: str = ""
    source: str = ""
    specification_source: str = ""
    specification_basis: str = ""
    checked: date | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """What an optimizer keeps for each trained parameter, and what it allocates while it steps."""

    name: str
    label: str
    hf_optim: str
    """The value of Trainer's `optim`; empty where it has none."""
    moments: int
    """State tensors as large as the parameter, in the precision's `moment_bytes`."""
    moments_block_matrices: int
    """The same for the matrices inside the decoder layers (Muon keeps fewer there)."""
    moments_fp32: int
    """State tensors that are float32 whatever the parameter is."""
    moments_8bit: int
    """State tensors of one byte per element, with a float32 scale per block."""
    block_size: int
    min_8bit_elements: int
    """Smaller tensors keep their moments_8bit in float32."""
    factored: bool
    """Matrices keep float32 row and column means in place of a second moment; vectors a float32 second moment."""
    low_rank: int
    """Rank the block matrices' moments are projected to; 0: not projected."""
    temporaries: str
    """What is alive only during the step: "none", copies of "all" trained parameters, or of the "largest" tensor."""
    temporary_copies: int
    temporary_dtype: str
    """"state" (as the moments), "fp32" or "bf16"."""
    step_bytes_per_tensor: int
    """Step counter kept on the device for each parameter tensor."""
    paged_min_elements: int
    """States of tensors from this size live in paged memory, outside the allocator; 0: none do."""
    notes: str
    source: str
    checked: date


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Bytes per parameter in which a recipe stores each part."""

    name: str
    label: str
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    """Float32 copy of the trained weights; 0: none is kept."""
    moment_bytes: int
    """Of one moment of an optimizer whose states follow the parameter."""
    compute_dtype: str
    notes: str
    source: str
    checked: date


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """How the frozen weights of QLoRA are stored."""

    name: str
    label: str
    family: str
    bits: float
    """Of one weight, without scales; 0: not quantized."""
    block_size: int
    """Weights that share one scale; 0: no blocks."""
    block_bits: float
    """Scale (and zero point or bias) of one block."""
    second_block_size: int
    """First-level scales that share one second-level scale."""
    second_block_bits: float
    row_bits: float
    """Scale of one output row."""
    tensor_bytes: int
    """Kept once per quantized matrix: code books, offsets."""
    quantizes_head: bool
    quantizes_embedding: bool
    dequantizes: bool
    """A 16-bit copy of one matrix is made where it is used."""
    notes: str
    source: str
    checked: date

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of one quantized weight with its share of the block scales; rows and whole tensors are apart."""
        bits = self.bits
        if self.block_size:
            bits += self.block_bits / self.block_size
        if self.second_block_size:
            bits += self.second_block_bits / (self.block_size * self.second_block_size)
        return bits / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """A library version: how often it holds the logits, what its modules do differently, and its defaults."""

    name: str
    label: str
    library: str
    released: str
    logits_bytes: float
    """Bytes per token and vocabulary entry alive at the loss with full logits under autocast, as measured."""
    upcasts_logits: str
    """Where logits become float32: in the "model", the "loss", the "outputs" the loop converts, or "no"where."""
    shifts_logits: bool
    """The logits are copied without their last position, instead of shifting the labels."""
    chunks: int
    """Chunks of its chunked loss; 0: `chunk_tokens` says."""
    chunk_tokens: int
    """Tokens of one chunk of its chunked loss; 0: `chunks` says."""
    holds_outputs: bool
    """The loop keeps the model's 16-bit logits to the end of the step."""
    repeats_kv_families: tuple[str, ...]
    """Model types whose keys and values are repeated to the width of the queries before flash attention."""
    quantizes_head: bool
    fused_qkv: bool
    """One matrix for q, k and v, with an adapter on q and v whose output is kept; embedding and head are two tensors."""
    fused_experts: bool
    """Experts are one stacked parameter a projection, which bitsandbytes leaves in 16 bits; else linear modules of their own."""
    default_optimizer: str
    default_gradient_checkpointing: str
    default_loss: str
    default_kernels: str
    basis: str
    """Of the figures: "measured", "read from source", "carried from …" or "assumed"."""
    notes: str
    source: str
    checked: date


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """What several GPUs divide among them, and what that costs on each."""

    name: str
    label: str
    shards_optimizer: bool
    shards_gradients: bool
    shards_weights: bool
    offloads: bool
    """The shards live in host memory."""
    bucket_elements: int
    """Of one flat communication buffer."""
    buckets: int
    notes: str
    source: str
    checked: date


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What a run takes beyond its live tensors, fitted to the measured runs' driver figures: low end, typical, high end."""

    name: str
    label: str
    context_bytes: float
    """CUDA context, kernels and library workspaces: outside torch's allocator."""
    allocated_share: float
    """Blocks the caching allocator holds, as a share of the live peak."""
    logits_share: float
    """The same, as a share of the logits and loss."""
    several_context_bytes: float
    """More of it where several GPUs talk."""
    several_allocated_share: float
    notes: str
    source: str
    checked: date


@cache
def devices() -> Table[Device]:
    return _table("device", Device, "devices.csv")


@cache
def optimizers() -> Table[Optimizer]:
    return _table("optimizer", Optimizer, "optimizers.csv")


@cache
def precisions() -> Table[Precision]:
    return _table("precision", Precision, "precisions.csv")


@cache
def quantizations() -> Table[Quantization]:
    return _table("quantization", Quantization, "quantizations.csv")


@cache
def shardings() -> Table[Sharding]:
    return _table("sharding", Sharding, "shardings.csv")


@cache
def overheads() -> Table[Overhead]:
    return _table("overhead", Overhead, "overheads.csv")


@cache
def software() -> Table[Software]:
    return _table("software", Software, "software.csv")


def custom_device(amount: float, unit: str = "GB", unified: bool = False) -> Device:
    """A device given as a number of GB or GiB. What a run may take of it follows `usable_memory.csv`.

    >>> custom_device(36, "GB", unified=True).usable_bytes / BYTE_UNITS["GB"]
    27.0
    """
    if unit not in BYTE_UNITS:
        raise ValueError(f"device memory unit ({str(unit)[:20]!r}) must be GB or GiB")
    try:
        memory = float("nan") if isinstance(amount, bool) else float(amount) * BYTE_UNITS[unit]
    except (TypeError, ValueError, OverflowError):
        memory = math.nan
    given = f"{str(amount)[:24]} {unit}"
    if math.isnan(memory):
        raise ValueError(f"device memory ({given}) must be a number, such as 24 {unit}")
    if memory <= 0:
        raise ValueError(f"device memory ({given}) must be above 0; give the memory of one device, such as 24 {unit}")
    if memory > LARGEST_DEVICE_BYTES:
        raise ValueError(f"device memory ({given}) is more than any device has; check the unit")
    usable, basis = _usable(memory, unified)
    if usable <= 0:
        raise ValueError(f"device memory ({given}) is no more than the driver keeps for itself; give at least 1 GiB")
    return Device(
        name="custom", driver_name="", vendor="", label=f"Custom {given}{' unified' if unified else ''}", kind="custom",
        memory_bytes=memory, usable_bytes=usable, usable_basis=basis, unified=unified, confidence="given",
    )  # fmt: skip


def _usable(memory: float, unified: bool) -> tuple[float, str]:
    """Bytes a run may take of a memory whose device is not in the catalog, and why."""
    kind = "unified" if unified else "discrete"
    rule = [row for row in _rows("usable_memory.csv") if row["kind"] == kind and float(row["from_mib"]) * MiB <= memory][-1]
    return min(memory * float(rule["share"]), memory - float(rule["reserve_mib"]) * MiB), rule["notes"]


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """What the catalog knows about a model besides its shapes."""

    id: str
    config: Mapping[str, Any]
    """The keys of the model's config.json."""
    release: str
    """Year and month."""
    source: str
    """Address of the config."""
    checked: date
    basis: str = "read"
    """How the config is known: "read" (a copy of the file), "table" (shapes published in a table) or "recalled"."""
    context_length: int | None = None
    license: str = ""
    gated: bool = False
    """The Hub asks for an agreement before the download."""
    published_parameters: int | None = None
    """Exact total published elsewhere; None where only a rounded one is known."""
    published_difference: int = 0
    """Published total less what is counted here, where the difference is itemised in `published_note`."""
    published_source: str = ""
    published_note: str = ""
    notes: str = ""
    well_known: bool = False
    """One of the families shown first."""

    @cached_property
    def label(self) -> str:
        """For a list that is searched by any part of it: the id, its size where published, its month, its licence."""
        size = format_count(self.published_parameters - self.published_difference) if self.published_parameters else ""
        return " · ".join(part for part in (self.id, size, self.release, self.license, "gated" if self.gated else "") if part)

    @property
    def family(self) -> str:
        return self.config["model_type"]


RECORD_KEYS = {field.name for field in fields(ModelRecord)} - {"config", "well_known"}


@cache
def model_records() -> Table[ModelRecord]:
    """Every model of data/models by Hub id: well-known families first, then the others, each newest first."""
    records = {}
    for path in sorted((data_folder() / "models").glob("*.toml")):
        with open(path, "rb") as file:
            content = tomllib.load(file)
        for entry in content["model"]:
            record = _record(entry, path.name, content.get("well_known", False))
            if record.id in records:
                raise ValueError(f"{path.name}: model {record.id} is there twice")
            records[record.id] = record
    newest_first = sorted(records.values(), key=lambda r: (r.release, r.published_parameters or 0), reverse=True)
    ordered = sorted(newest_first, key=lambda r: not r.well_known)
    return Table("model", {record.id: record for record in ordered})


def _record(entry: dict[str, Any], file: str, well_known: bool) -> ModelRecord:
    known = {key: value for key, value in entry.items() if key in RECORD_KEYS}
    config = {key: value for key, value in entry.items() if key not in RECORD_KEYS and key != "null_keys"}
    for dotted in entry.get("null_keys", ()):  # TOML has no null
        *outer, key = dotted.split(".")
        part = config
        for name in outer:
            part = part[name]
        part[key] = None
    try:
        return ModelRecord(config=config, well_known=well_known, **known)
    except TypeError as error:
        raise ValueError(f"{file}: model {entry.get('id', '?')}: {error}") from None


class Models(Mapping[str, "ModelArchitecture"]):
    """The catalog's models by Hub id. An architecture is built when it is first asked for; going over the ids builds none."""

    def __init__(self, records: Table[ModelRecord]) -> None:
        self._records = records
        self._built: dict[str, ModelArchitecture] = {}

    def __getitem__(self, id: str) -> ModelArchitecture:
        if id not in self._built:
            from .configs import model_from_config

            self._built[id] = replace(model_from_config(self._records[id].config), name=id)
        return self._built[id]

    def __contains__(self, id: object) -> bool:
        return id in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self)} models>"


@cache
def models() -> Models:
    return Models(model_records())


def model(id: str) -> ModelArchitecture:
    """The model with this Hub id; UnknownName with the closest ones where the catalog does not have it."""
    return models()[id]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A published training run and the peak that was measured on it."""

    id: str
    group: str
    """The publication it comes from, in one word."""
    scenario: Mapping[str, Any]
    """The settings, as the keyword arguments of a Scenario; `model` is a Hub id."""
    device: str
    meter: str
    """"allocated", "active" or "reserved" (torch's figures), or "nvidia-smi" (the driver's)."""
    measured_bytes: int
    """Per GPU where there are several."""
    nvidia_smi_bytes: int | None
    """The driver's peak less idle for the same run, where known."""
    notes: str
    source: str
    address: str
    checked: date


RUN_COLUMNS = {field.name for field in fields(MeasuredRun)}
RUN_TYPES = {
    "int": ("lora_rank", "micro_batch_size", "sequence_length", "gradient_accumulation_steps", "data_parallel_size"),
    "float": ("lora_dropout",),
    "bool": ("autocast",),
    "tuple[str, ...]": ("lora_target_modules", "modules_to_save"),
}
"""The Scenario columns of measured_runs.csv that are not text."""


@cache
def measured_runs() -> Table[MeasuredRun]:
    """Published runs by id. An empty cell leaves the field at the Scenario's default."""
    types = {column: name for name, columns in RUN_TYPES.items() for column in columns}
    runs = {}
    for row in _rows("measured_runs.csv"):
        about = {column: row.pop(column) for column in list(row) if column in RUN_COLUMNS}
        values = {field.name: CONVERTERS[str(field.type)](about[field.name]) for field in fields(MeasuredRun) if field.name != "scenario"}
        settings = {column: CONVERTERS[types.get(column, "str")](text) for column, text in row.items() if text}
        if settings.get("lora_target_modules") == ("all-linear",):
            settings["lora_target_modules"] = "all-linear"
        runs[values["id"]] = MeasuredRun(scenario=settings, **values)
    return Table("measured run", runs)


def _rows(file: str) -> list[dict[str, str]]:
    with open(data_folder() / file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def _table(kind: str, cls: type[T], file: str) -> Table[T]:
    convert = {field.name: CONVERTERS[str(field.type)] for field in fields(cls)}  # type: ignore[arg-type]
    rows: dict[str, T] = {}
    for number, row in enumerate(_rows(file), start=2):
        values = {}
        for column, text in row.items():
            try:
                if column.endswith("_mib"):
                    name = column.removesuffix("_mib") + "_bytes"
                    values[name] = convert[name](text) * MiB
                else:
                    values[column] = convert[column](text)
            except (KeyError, ValueError, TypeError, AttributeError):
                raise ValueError(f"{file}, line {number}: {column!r} cannot be {text!r}") from None
        if values["name"] in rows:
            raise ValueError(f"{file}, line {number}: {values['name']!r} is there twice")
        rows[values["name"]] = cls(**values)
    return Table(kind, rows)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _flag(text: str) -> bool:
    return {"0": False, "1": True, "False": False, "True": True}[text]


CONVERTERS = {
    "str": str.strip,
    "int": int,
    "float": _number,
    "bool": _flag,
    "date": date.fromisoformat,
    "int | None": lambda text: int(text) if text else None,
    "float | None": lambda text: _number(text) if text else None,
    "date | None": lambda text: date.fromisoformat(text) if text else None,
    "tuple[str, ...]": lambda text: tuple(text.split()),
}
"""How the text of a cell becomes the value of a field of this type."""


def _closest(name: str, known: list[str]) -> list[str]:
    """Up to three known names like this one: those that contain it, then those spelled like it."""
    from difflib import get_close_matches

    wanted = name.strip().lower()
    by_key: dict[str, str] = {}
    for full in known:
        by_key.setdefault(full.lower(), full)
        by_key.setdefault(full.lower().rpartition("/")[2], full)
    contained = sorted({full for full in known if len(wanted) >= 3 and wanted in full.lower()}, key=lambda full: (len(full), full))
    spelled = [by_key[key] for key in get_close_matches(wanted, by_key, n=6, cutoff=0.6)]
    tail = [by_key[key] for key in get_close_matches(wanted.rpartition("/")[2], by_key, n=6, cutoff=0.6)]
    return list(dict.fromkeys([*contained, *spelled, *tail]))[:3]
