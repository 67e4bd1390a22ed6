"""The table of remedies: what can be changed about a run to save memory, what that gives up, and how it reads.

Each row stands above the small function that yields the changes it has to offer for a run, the mildest first, or none
where it does not apply. `advice` estimates and ranks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from . import catalog
from .architecture import Linear, ModelArchitecture
from .scenario import QLORA_QUANTIZATION, Scenario
from .solver import readable_models
from .timing import describe_ratio, time_ratio
from .units import format_count, format_tokens

Changes = dict[str, Any]
"""Fields of a Scenario and their new values."""

NOTHING, STORAGE, CAPACITY, DATA, MODEL, HARDWARE = range(6)
"""What a remedy gives up, cheapest first: nothing but time, precision of what is stored, what the training can learn, how
much of a sample is seen, the model, money for more hardware."""
GIVES_UP = ("nothing but time", "precision of what is stored", "what the training can learn", "long samples", "the model", "more hardware")

SHORTEST_SEQUENCE = 64
SMALLEST_RANK = 4
SAME_SIZE = 1.3
"""Models whose sizes differ by less than this factor are one choice."""

GPU_COUNTS = (2, 4, 8, 16, 32, 64)
STATELESS_BYTES = 2.5
"""Optimizers whose moments take no more than this per parameter leave an 8-bit one nothing to save."""


Words = Callable[[Scenario, Scenario], str]
"""A text about a run and the changed run."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table of remedies."""

    key: str
    gives_up: int
    label: Words
    price: Words
    source: str
    offers: Callable[[Scenario], Iterator[Changes]]
    """The changes it has to offer, mildest first; none where it does not apply."""


REMEDIES: list[Kind] = []
"""Every remedy, in the order of its definition below."""


def remedy(key: str, gives_up: int, label: str | Words, price: str | Words, source: str) -> Callable:
    """Enter the function below, which yields the changes on offer, into the table."""

    def enter(offers: Callable[[Scenario], Iterator[Changes]]) -> Callable:
        words = [(lambda run, changed, text=text: text) if isinstance(text, str) else text for text in (label, price)]
        REMEDIES.append(Kind(key, gives_up, *words, source, offers))
        return offers

    return enter


ZERO_PAPER = "https://arxiv.org/abs/1910.02054"
LORA_PAPER = "https://arxiv.org/abs/2106.09685"
QLORA_PAPER = "https://arxiv.org/abs/2305.14314"


def _slower(why: str) -> Words:
    """A price whose main part is time."""
    return lambda run, changed: f"{describe_ratio(time_ratio(run, changed)).capitalize()}: {why}"


@remedy(
    "flash_attention",
    NOTHING,
    "Flash attention",
    "None: the result is the same. It needs samples without padding and a supported GPU.",
    "https://arxiv.org/abs/2205.14135",
)
def _flash(run: Scenario) -> Iterator[Changes]:
    if run.attention != "flash":
        yield {"attention": "flash"}


@remedy(
    "fused_optimizer",
    NOTHING,
    "Fused AdamW",
    "None: the same update in one kernel (optim=adamw_torch_fused).",
    "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html",
)
def _fused_optimizer(run: Scenario) -> Iterator[Changes]:
    if run.optimizer == "adamw_torch":
        yield {"optimizer": "adamw_torch_fused"}


@remedy(
    "fused_linear_loss",
    NOTHING,
    "Fused linear loss (Liger)",
    "About as fast: logits are made and used in chunks. The trainer must not need the logits themselves.",
    "https://github.com/linkedin/Liger-Kernel",
)
def _fused_loss(run: Scenario) -> Iterator[Changes]:
    if run.loss != "fused-linear":
        yield {"loss": "fused-linear"}


def _micro_batch_label(run: Scenario, changed: Scenario) -> str:
    batches = f"Micro batch {run.micro_batch_size} → {changed.micro_batch_size}"
    return f"{batches}, accumulation {run.gradient_accumulation_steps} → {changed.gradient_accumulation_steps}"


def _micro_batch_price(run: Scenario, changed: Scenario) -> str:
    speed = describe_ratio(time_ratio(run, changed))
    return f"The global batch stays {changed.global_batch_size:,} sequences; {speed}, less so where small batches leave the GPU idle."


@remedy(
    "smaller_micro_batch",
    NOTHING,
    _micro_batch_label,
    _micro_batch_price,
    "https://huggingface.co/docs/transformers/en/grad_accumulation",
)
def _smaller_micro_batch(run: Scenario) -> Iterator[Changes]:
    batch = int(run.micro_batch_size)
    for parts in range(2, batch + 1):
        if batch % parts == 0:
            yield {"micro_batch_size": batch // parts, "gradient_accumulation_steps": int(run.gradient_accumulation_steps) * parts}


@remedy(
    "checkpointing",
    NOTHING,
    "Gradient checkpointing",
    _slower("each layer runs a second time in the backward pass."),
    "https://arxiv.org/abs/1604.06174",
)
def _checkpointing(run: Scenario) -> Iterator[Changes]:
    if run.gradient_checkpointing == "none":
        yield {"gradient_checkpointing": "full"}


@remedy(
    "precomputed_reference",
    NOTHING,
    "Reference log-probabilities computed beforehand",
    "One pass of the untrained model over the data before training starts, and none in it.",
    "https://huggingface.co/docs/trl/en/dpo_trainer",
)
def _precomputed_reference(run: Scenario) -> Iterator[Changes]:
    if run.objective == "dpo":
        yield {"objective": "dpo-precomputed"}


@remedy(
    "activation_offload",
    NOTHING,
    "Layer inputs kept in the PC's memory",
    _slower("they are moved there and back while the layers work; it takes as much RAM as it saves."),
    "https://github.com/huggingface/transformers/pull/48444",
)
def _activation_offload(run: Scenario) -> Iterator[Changes]:
    if run.gradient_checkpointing != "none" and not run.activation_offload:
        yield {"activation_offload": True}


@remedy(
    "optimizer_offload",
    NOTHING,
    "Optimizer states in the PC's memory (ZeRO-Offload)",
    _slower("the CPU makes the optimizer step; it takes as much RAM as it saves."),
    "https://arxiv.org/abs/2101.06840",
)
def _optimizer_offload(run: Scenario) -> Iterator[Changes]:
    if run.offload == "none" and not catalog.shardings()[run.sharding].offloads:
        yield {"offload": "optimizer"} | ({"sharding": "zero2"} if run.sharding == "none" else {})


@remedy(
    "no_upcasts",
    STORAGE,
    "No float32 upcasts of frozen weights",
    "Norms, embedding and head stay in 16 bits, as newer TRL has it.",
    "https://github.com/huggingface/trl/pull/4335",
)
def _no_upcasts(run: Scenario) -> Iterator[Changes]:
    if run.prepare_kbit != "none":
        yield {"prepare_kbit": "none"}


@remedy(
    "eight_bit_optimizer",
    STORAGE,
    "8-bit AdamW",
    "Moments are kept in 8 bits, block by block; its authors find the same results.",
    "https://arxiv.org/abs/2110.02861",
)
def _eight_bit_optimizer(run: Scenario) -> Iterator[Changes]:
    if _state_bytes(run) > STATELESS_BYTES:
        yield {"optimizer": "adamw_bnb_8bit"}


@remedy(
    "paged_optimizer",
    STORAGE,
    "Paged 8-bit AdamW",
    "States move to the PC's memory when the card's runs out: slow steps then, and RAM for them.",
    QLORA_PAPER,
)
def _paged_optimizer(run: Scenario) -> Iterator[Changes]:
    if _state_bytes(run) > 0:
        yield {"optimizer": "paged_adamw_8bit"}


def _state_bytes(run: Scenario) -> float:
    """Optimizer states per trained parameter on the device; 0 for optimizers that keep next to none there."""
    optimizer = catalog.optimizers()[run.optimizer]
    if optimizer.paged_min_elements or optimizer.factored or optimizer.low_rank:
        return 0.0
    moment = catalog.precisions()[run.precision].moment_bytes if run.method == "full" else 4
    return optimizer.moments * moment + optimizer.moments_fp32 * 4 + optimizer.moments_8bit


@remedy("qlora", STORAGE, "QLoRA: frozen weights in 4 bits", _slower("weights are dequantized at every use."), QLORA_PAPER)
def _qlora(run: Scenario) -> Iterator[Changes]:
    if run.method == "lora" or run.method == "qlora" and _width(run.quantization) > _width(QLORA_QUANTIZATION):
        yield {"method": "qlora", "quantization": QLORA_QUANTIZATION}


def _width(quantization: str) -> float:
    return catalog.quantizations()[quantization].bytes_per_weight


@remedy(
    "fewer_modules",
    CAPACITY,
    lambda run, changed: f"Fewer target modules: {', '.join(changed.lora_target_modules)} only",
    "Adapters on fewer matrices learn less; QLoRA's authors needed all linear layers to match full fine-tuning.",
    LORA_PAPER,
)
def _fewer_modules(run: Scenario) -> Iterator[Changes]:
    if run.method != "full" and run.lora_target_modules == "all-linear":
        targets = attention_targets(run.model)
        if targets and len(targets) < len(run.model.lora_targets):
            yield {"lora_target_modules": targets}


@lru_cache(maxsize=512)
def attention_targets(model: ModelArchitecture) -> tuple[str, ...]:
    """Query and value projections, LoRA's own choice (Hu et al. 2021, section 7.1); the fused one where they are one matrix."""
    for roles in (("q", "v"), ("qkv",), ("q_b", "kv_b"), ("q", "kv_b")):
        names = {m.role: m.name for block in model.distinct_layers for m in block.modules if isinstance(m, Linear) and m.role in roles}
        if len(names) == len(roles):
            return tuple(names[role] for role in roles)
    return ()


@remedy(
    "lower_rank",
    CAPACITY,
    lambda run, changed: f"Lower rank: {run.lora_rank} → {changed.lora_rank}",
    "Narrower adapters can learn less, which matters for large data.",
    LORA_PAPER,
)
def _lower_rank(run: Scenario) -> Iterator[Changes]:
    rank = int(run.lora_rank)
    while run.method != "full" and rank // 2 >= SMALLEST_RANK:
        rank //= 2
        yield {"lora_rank": rank}


@remedy(
    "lora",
    CAPACITY,
    "LoRA in place of full fine-tuning",
    "Only adapters train: enough for most tasks, less so for data far from the pre-training data.",
    LORA_PAPER,
)
def _lora(run: Scenario) -> Iterator[Changes]:
    if run.method == "full":
        yield {"method": "lora", "quantization": "none"}


@remedy(
    "qlora_instead",
    CAPACITY,
    "QLoRA in place of full fine-tuning",
    "Only adapters train, beside weights kept in 4 bits.",
    QLORA_PAPER,
)
def _qlora_instead(run: Scenario) -> Iterator[Changes]:
    if run.method == "full":
        yield {"method": "qlora", "quantization": QLORA_QUANTIZATION}


def _length_label(run: Scenario, changed: Scenario) -> str:
    return f"Shorter sequences: {format_tokens(run.sequence_length)} → {format_tokens(changed.sequence_length)} tokens"


def _length_price(run: Scenario, changed: Scenario) -> str:
    return (
        f"What is longer than {changed.sequence_length:,} tokens is cut off: check that a typical sample still fits, "
        "or the model never sees the end of the answer."
    )


@remedy("shorter_sequences", DATA, _length_label, _length_price, "https://huggingface.co/docs/trl/en/reducing_memory_usage")
def _shorter_sequences(run: Scenario) -> Iterator[Changes]:
    for halvings in (1, 2, 3):
        length = int(run.sequence_length) >> halvings
        if length >= SHORTEST_SEQUENCE:
            yield {"sequence_length": length}


def _model_price(run: Scenario, changed: Scenario) -> str:
    sizes = f"{format_count(changed.model.parameters)} parameters in place of {format_count(run.model.parameters)}"
    return f"{sizes}: another model, compare their quality first."


@remedy(
    "smaller_model",
    MODEL,
    lambda run, changed: f"Smaller model: {changed.model.name} ({format_count(changed.model.parameters)})",
    _model_price,
    "data/models",
)
def _smaller_model(run: Scenario) -> Iterator[Changes]:
    for model in smaller_in_family(run.model):
        yield {"model": model}


@lru_cache(maxsize=512)
def smaller_in_family(model: ModelArchitecture) -> tuple[ModelArchitecture, ...]:
    """Smaller catalog models by the same maker, of the same type and no more than a year older, the largest first; of those close
    in size the one named most alike."""
    records = catalog.model_records()
    if model.name not in records:
        return ()
    maker, oldest = model.name.partition("/")[0], _months(records[model.name]) - 11
    family = [
        other
        for other in readable_models()
        if other.model_type == model.model_type
        and other.name.partition("/")[0] == maker
        and other.parameters * SAME_SIZE < model.parameters
        and _months(records[other.name]) >= oldest
    ]
    kept: list[ModelArchitecture] = []
    for other in sorted(family, key=lambda other: -SequenceMatcher(None, other.name, model.name).ratio()):
        if all(max(a / b, b / a) > SAME_SIZE for m in kept for a, b in [(m.parameters, other.parameters)]):
            kept.append(other)
    return tuple(sorted(kept, key=lambda other: -other.parameters))


def _months(record: catalog.ModelRecord) -> int:
    year, _, month = record.release.partition("-")
    return 12 * int(year) + int(month or 1)


def _gpus_price(run: Scenario, changed: Scenario) -> str:
    return (
        f"{changed.data_parallel_size} GPUs in place of {run.data_parallel_size}; "
        "weights, gradients and states are divided, activations are not. "
        f"The global batch grows to {changed.global_batch_size:,} sequences unless accumulation is lowered."
    )


@remedy(
    "more_gpus",
    HARDWARE,
    lambda run, changed: f"{changed.data_parallel_size} GPUs, weights and states sharded ({changed.sharding})",
    _gpus_price,
    ZERO_PAPER,
)
def _more_gpus(run: Scenario) -> Iterator[Changes]:
    gpus = int(run.data_parallel_size)
    sharding = run.sharding if catalog.shardings()[run.sharding].shards_weights else "fsdp"
    for count in (gpus, *GPU_COUNTS):
        if count > gpus or count == gpus > 1 and sharding != run.sharding:
            yield {"sharding": sharding, "data_parallel_size": count}
