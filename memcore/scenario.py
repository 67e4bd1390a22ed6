"""Scenario: one training run, described completely and checked once."""

from __future__ import annotations

import ast
import inspect
import reprlib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .architecture import ModelArchitecture

Numeric = int | float | np.ndarray
"""A number, or an array of them: every formula takes either, and arrays broadcast against each other."""

CHOICES = {
    "method": ("full", "lora", "qlora"),
    "adapter_precision": ("fp32", "bf16"),
    "gradient_checkpointing": ("none", "full", "full-reentrant"),
    "attention": ("flash", "flash-attn", "sdpa", "eager"),
    "loss": ("full-logits", "triton", "fused-linear", "chunked"),
    "kernels": ("torch", "fused"),
    "prepare_kbit": ("none", "norms-fp32", "all-fp32"),
    "offload": ("none", "optimizer", "weights"),
    "pipeline_schedule": ("1f1b", "one-by-one"),
    "objective": ("sft", "dpo", "dpo-precomputed", "reward"),
    "towers": ("frozen", "trained", "left-out"),
}
CATALOG_CHOICES = {
    "quantization": "quantizations",
    "precision": "precisions",
    "optimizer": "optimizers",
    "software": "software",
    "sharding": "shardings",
}
"""Fields whose values are the rows of a catalog table, by the catalog function that reads it."""

LARGEST = {
    "lora_rank": 2**16,
    "micro_batch_size": 2**20,
    "sequence_length": 2**27,
    "gradient_accumulation_steps": 2**20,
    "data_parallel_size": 2**20,
}
"""Sizes: whole numbers from 1 to far beyond any run, so that a slip of the finger is told from a plan."""

DEGREES = {"tensor_parallel_size": 2**10, "pipeline_parallel_size": 2**10, "context_parallel_size": 2**16, "gpus_per_node": 2**10}
"""How a model or its sequence is divided among GPUs: single whole numbers, since each changes which tensors there are."""
COUNTS = {"image_tokens": 2**24}
"""Whole numbers that may be 0."""
SWITCHES = ("autocast", "sequence_parallel", "activation_offload")

SAVED_MODULES = ("embed_tokens", "lm_head")
QLORA_QUANTIZATION = "nf4-double-quant"


class ScenarioError(ValueError):
    """A field of a Scenario has a value it cannot have; the message says which, and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One training run. The defaults are what a stock Hugging Face TRL and PEFT run does.

    Sizes may be arrays that broadcast against each other; every result of `estimate` is then an array of their shape.
    """

    model: ModelArchitecture
    """The model: a ModelArchitecture, or the Hub id of one in the catalog."""
    method: str = "qlora"
    """"full" trains every weight, "lora" adapters beside frozen weights, "qlora" adapters beside quantized ones."""
    quantization: str = ""
    """How qlora stores the frozen weights, a row of quantizations.csv; left out: nf4-double-quant for qlora, else "none"."""
    precision: str = "bf16"
    """How weights, gradients and optimizer states are stored, a row of precisions.csv."""
    autocast: bool = True
    """Whether torch.autocast runs the forward pass in 16 bits; with precision "fp32" this is Trainer(bf16=True)."""
    adapter_precision: str = "fp32"
    """How adapters are stored: "fp32" is PEFT's default."""
    optimizer: str = "adamw_torch"
    """The optimizer by its Hugging Face `optim` name, a row of optimizers.csv."""
    lora_rank: Numeric = 16
    """Width of the adapters."""
    lora_dropout: Numeric = 0.0
    """Share of an adapter's input that is dropped; above 0 it keeps a mask."""
    lora_target_modules: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: "all-linear", or the model's own module names."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained in full beside the adapters: "embed_tokens", "lm_head"."""
    micro_batch_size: Numeric = 4
    """Sequences per GPU in one forward pass; pairs of them where preferences are learned."""
    sequence_length: Numeric = 4096
    """Tokens of each sequence, padding included; the longest one sets the peak."""
    gradient_accumulation_steps: Numeric = 1
    """Forward and backward passes per optimizer step."""
    gradient_checkpointing: str = "full"
    """"full" keeps only the input of each layer and recomputes the rest, "full-reentrant" does so the older way."""
    attention: str = "flash"
    """"flash" is PyTorch's own, "flash-attn" the package, which needs no mask for sliding windows; "sdpa" has a padding mask, "eager" stores scores."""
    loss: str = "full-logits"
    """How the loss is computed: from all logits at once, by a Triton kernel, fused with the head (Liger), or in chunks."""
    kernels: str = "torch"
    """"fused" for Unsloth-style norms, rotary embedding and MLP, which keep less."""
    prepare_kbit: str = "none"
    """What preparation for k-bit training upcasts: nothing, the norms, or every weight that is not quantized."""
    software: str = "transformers-5"
    """Library and version, a row of software.csv: what its modules keep, and how often it copies the logits."""
    data_parallel_size: Numeric = 1
    """GPUs that each work on their own micro batch."""
    sharding: str = "none"
    """What those GPUs divide among them: nothing, optimizer states, also gradients, or also weights ("fsdp" is ZeRO-3; "hsdp" within a node)."""
    offload: str = "none"
    """What of the shards lives in host memory: optimizer states with their gradients, or the weights too."""
    activation_offload: bool = False
    """Whether the layer inputs kept under gradient checkpointing are moved to host memory until they are needed."""
    tensor_parallel_size: int = 1
    """GPUs that divide every layer: heads, MLP widths and vocabulary."""
    sequence_parallel: bool = False
    """Whether those GPUs also divide the tokens between the products of a layer."""
    pipeline_parallel_size: int = 1
    """GPUs that hold consecutive layers; the first has the embedding, the last the head."""
    pipeline_schedule: str = "1f1b"
    """"1f1b" keeps as many micro batches in flight as stages follow, "one-by-one" (device_map="auto") a single one."""
    context_parallel_size: int = 1
    """GPUs that divide each sequence's tokens."""
    objective: str = "sft"
    """What is learned: text ("sft"), preferences ("dpo": pairs, and a frozen reference unless its figures are precomputed), or a reward."""
    towers: str = "frozen"
    """Vision and audio encoders, where the model has them: frozen (their weights only), trained in full, or not loaded."""
    image_tokens: int = 0
    """Tokens that images add to each sequence, after the encoder's projector; a length limit for text does not cap them."""
    gpus_per_node: int = 8
    """GPUs of one machine: what hybrid sharding divides among, and how many share a host's memory."""

    def __post_init__(self) -> None:
        from . import catalog

        put = object.__setattr__
        if isinstance(self.model, str):
            try:
                put(self, "model", catalog.model(self.model))
            except catalog.UnknownName as error:
                raise ScenarioError(f"{error}; memcore.model_from_config reads the config.json of any other") from None
        elif not hasattr(self.model, "layers"):
            raise ScenarioError(f"model ({_show(self.model)}) must be a ModelArchitecture or the id of one in the catalog")
        _check_choice("method", self.method)
        if isinstance(self.quantization, str) and not self.quantization:
            put(self, "quantization", QLORA_QUANTIZATION if self.method == "qlora" else "none")
        for name in CHOICES | CATALOG_CHOICES:
            _check_choice(name, getattr(self, name))
        for name in SWITCHES:
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise ScenarioError(f"{name} ({_show(value)}) must be True or False")
            put(self, name, bool(value))
        for name, largest in (DEGREES | COUNTS).items():
            value, least = getattr(self, name), int(name in DEGREES)
            if isinstance(value, np.integer):
                put(self, name, value := int(value))
            if not (type(value) is int and least <= value <= largest):
                raise ScenarioError(f"{name} ({_show(value)}) must be one whole number from {least} to {largest}")
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if not (type(value) is int and 0 < value <= largest):
                value = _number(name, value, 1, largest, f"a whole number from 1 to {largest}", whole=True)
                put(self, name, value if isinstance(value, np.ndarray) else int(value))
        if not (type(self.lora_dropout) is float and 0 <= self.lora_dropout < 1):
            below_one = np.nextafter(1.0, 0.0)
            put(self, "lora_dropout", _number("lora_dropout", self.lora_dropout, 0, below_one, "a number from 0 up to, not including, 1"))
        self._check_broadcast()
        self._check_method()
        self._check_modules()
        self._check_parallel()

    def _check_broadcast(self) -> None:
        shapes = {name: value.shape for name in NUMERIC if isinstance(value := getattr(self, name), np.ndarray)}
        if len(shapes) > 1:
            try:
                np.broadcast_shapes(*shapes.values())
            except ValueError:
                raise ScenarioError(f"the shapes of {', '.join(f'{n} {s}' for n, s in shapes.items())} do not broadcast") from None

    def _check_method(self) -> None:
        if self.method == "qlora" and self.quantization == "none":
            raise ScenarioError(f"quantization ('none') leaves qlora nothing to do; choose {QLORA_QUANTIZATION!r}, or method 'lora'")
        if self.method != "qlora" and self.quantization != "none":
            raise ScenarioError(
                f"quantization ({self.quantization!r}) is for method 'qlora' only; choose 'none', or 'qlora' instead of {self.method!r}"
            )

    def _check_modules(self) -> None:
        put = object.__setattr__
        targets, saved = self.lora_target_modules, self.modules_to_save
        if not (isinstance(targets, str) and targets == "all-linear"):
            put(self, "lora_target_modules", _names("lora_target_modules", targets, "'all-linear' or a tuple of module names"))
            if not self.lora_target_modules:
                raise ScenarioError("lora_target_modules (()) names no module; choose 'all-linear' or at least one name")
            known = getattr(self.model, "lora_targets", None)
            if known and self.method != "full":
                _check_known("lora_target_modules", self.lora_target_modules, known, self.model)
        if not (isinstance(saved, tuple) and not saved):
            put(self, "modules_to_save", _names("modules_to_save", saved, "a tuple of module names"))
            _check_known("modules_to_save", self.modules_to_save, SAVED_MODULES, self.model)

    def _check_parallel(self) -> None:
        from . import catalog

        if self.tensor_parallel_size > 1:
            from .parallel import ParallelError, check_tensor_parallel

            try:
                check_tensor_parallel(self.model, self.tensor_parallel_size)
            except ParallelError as error:
                raise ScenarioError(f"{error}; choose another tensor_parallel_size") from None
        if self.pipeline_parallel_size > len(self.model.layers):
            raise ScenarioError(
                f"pipeline_parallel_size ({self.pipeline_parallel_size}) exceeds the {len(self.model.layers)} layers of {self.model.name}"
            )
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise ScenarioError(
                "sequence_parallel (True) divides tokens among the GPUs of tensor_parallel_size (1); choose a larger tensor_parallel_size, or False"
            )
        if self.offload != "none" and self.sharding == "none":
            raise ScenarioError(
                f"offload ({self.offload!r}) is for sharded runs; choose sharding 'zero2' or 'fsdp' (also on one GPU), or offload 'none'"
            )
        if self.offload == "weights" and not catalog.shardings()[self.sharding].shards_weights:
            raise ScenarioError(
                f"offload ('weights') needs weights that are sharded; choose sharding 'fsdp', or offload 'optimizer' with {self.sharding!r}"
            )
        if self.activation_offload and self.gradient_checkpointing == "none":
            raise ScenarioError(
                "activation_offload (True) moves the inputs of checkpointed layers; choose gradient_checkpointing 'full', or False"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scenario):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in FIELDS)

    @property
    def sequences(self) -> Numeric:
        """Sequences in one forward pass: preference pairs are two."""
        return self.micro_batch_size * (1 if self.objective == "sft" else 2)

    @property
    def tokens(self) -> Numeric:
        """Tokens in one forward pass on one GPU."""
        return self.sequences * self.length

    @property
    def length(self) -> Numeric:
        """Tokens of one sequence, those of its images included."""
        return self.sequence_length + self.image_tokens

    @property
    def gpus(self) -> Numeric:
        """All GPUs of the run."""
        return self.data_parallel_size * self.gpus_of_a_replica

    @property
    def gpus_of_a_replica(self) -> int:
        """GPUs that work on one micro batch together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size

    @property
    def global_batch_size(self) -> Numeric:
        """Sequences per optimizer step, over all GPUs."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_size

    def replace(self, **changes: Any) -> Scenario:
        """The same run with some fields changed; a changed method brings its own quantization unless that is given too."""
        _check_fields(changes)
        if changes.get("method", self.method) != self.method:
            changes = {"quantization": ""} | changes
        return Scenario(**{name: getattr(self, name) for name in FIELDS} | changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them: the model by its name, arrays and tuples as lists."""
        return {name: _plain(getattr(self, name)) for name in FIELDS} | {"model": self.model.name}

    @classmethod
    def from_dict(cls, values: dict[str, Any], model: ModelArchitecture | None = None) -> Scenario:
        """The run that `to_dict` described; a model that is not in the catalog is passed beside it."""
        _check_fields(values)
        return cls(**values | ({} if model is None else {"model": model}))


FIELDS = tuple(f.name for f in fields(Scenario))
NUMERIC = (*LARGEST, "lora_dropout")
"""The fields that may be arrays."""


@cache
def choices(field: str) -> tuple[str, ...]:
    """The values a field can take, in the order of its table."""
    if field in CATALOG_CHOICES:
        from . import catalog

        return tuple(getattr(catalog, CATALOG_CHOICES[field])())
    return CHOICES[field]


@cache
def explanations() -> dict[str, str]:
    """Each field of a Scenario and the sentence below it."""
    body = ast.parse(inspect.getsource(Scenario)).body[0].body
    return {a.target.id: inspect.cleandoc(b.value.value) for a, b in zip(body, body[1:], strict=False) if isinstance(a, ast.AnnAssign)}


def _check_choice(name: str, value: object) -> None:
    if not isinstance(value, str) or value not in choices(name):
        raise ScenarioError(f"{name} ({_show(value)}) must be one of {', '.join(choices(name))}{_hint(value, choices(name))}")


def _check_known(name: str, values: tuple[str, ...], known: tuple[str, ...], model: ModelArchitecture) -> None:
    for value in values:
        if value not in known:
            raise ScenarioError(f"{name} ({value!r}): {model.name} has {', '.join(known)}{_hint(value, known)}")


def _check_fields(names: dict[str, Any]) -> None:
    for name in names:
        if name not in FIELDS:
            raise ScenarioError(f"a Scenario has no field {name!r}{_hint(name, FIELDS)}; its fields are {', '.join(FIELDS)}")


ALSO_CALLED = {"zero3": "fsdp", "ddp": "none", "flash_attention_2": "flash-attn"}
"""What others call a value."""


def _hint(value: object, known: tuple[str, ...]) -> str:
    if isinstance(value, str) and ALSO_CALLED.get(value) in known:
        return f"; did you mean {ALSO_CALLED[value]}?"
    close = get_close_matches(str(value), known, 3, 0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _number(name: str, value: object, low: float, high: float, rule: str, whole: bool = False) -> float | np.ndarray:
    """A float, or a float64 array of its own that cannot be written to; booleans and text are no numbers."""
    wrong = value
    try:
        given = np.asarray(value)
        if given.size and (given.dtype.kind in "iuf" or type(value) is int):
            array = given.astype(np.float64)
            fine = (array >= low) & (array <= high) & (array == np.floor(array) if whole else True)
            if fine.all():
                array.flags.writeable = False
                return array if array.ndim else float(array)
            wrong = array[~fine][0].item() if array.ndim else value
    except (ValueError, OverflowError):  # ragged lists, integers beyond every float
        pass
    raise ScenarioError(f"{name} ({_show(wrong)}) must be {rule}")


def _names(name: str, value: object, rule: str) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(dict.fromkeys(value))
    raise ScenarioError(f"{name} ({_show(value)}) must be {rule}")


def _show(value: object) -> str:
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = 60
    try:
        return shown.repr(value.item() if isinstance(value, np.generic) else value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a very large number"


def _same(a: object, b: object) -> bool:
    return np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value
