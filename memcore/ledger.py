"""What a training run holds whatever step it is in: weights, adapters, master copies, gradients, optimizer states.

`tensors` lists a model's parameter tensors as a run stores them; each term is one function of that list, in bytes, as a
vector over `tape.BASIS` (adapters grow with the rank). `TERMS` names every term of a breakdown, those of the step
(`tape.TERMS`) included: the chart, the table, the CSV and the method page are made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from . import adapters
from .architecture import Embedding, Experts, Linear, ModelArchitecture, Module, Norm, Weight
from .catalog import Optimizer, Precision, Quantization
from .tape import ONE, RANK, TOKENS
from .units import FLOAT32, HALF, INT64


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the breakdown."""

    key: str
    label: str
    group: str
    """Which of the chart's colours it belongs to."""
    formula: str
    """In words and letters; the table puts the numbers in."""
    meaning: str
    source: str


_AUTOGRAD = "PyTorch autograd: tools/autograd/derivatives.yaml"
TERMS = (
    Term(
        "weights",
        "Weights",
        "weights",
        "parameters × bytes per weight",
        "The model itself: 2 bytes per parameter in 16 bits, about 0.52 where NF4 stores a linear layer.",
        "ZeRO (Rajbhandari et al. 2019), section 3.1; QLoRA (Dettmers et al. 2023), section 3",
    ),
    Term(
        "reference",
        "Reference model",
        "weights",
        "parameters × bytes per weight",
        "DPO compares with a frozen copy of the model it started from; with adapters, that is the model without them.",
        "DPO (Rafailov et al. 2023), section 4",
    ),
    Term(
        "adapters",
        "Adapters",
        "weights",
        "rank × (in + out) per adapted matrix × bytes",
        "LoRA's two small matrices, float32 in PEFT, and full copies of modules_to_save.",
        "LoRA (Hu et al. 2021), section 4.1",
    ),
    Term(
        "master_weights",
        "Float32 master copy",
        "optimizer",
        "trained parameters × 4",
        "Kept by mixed-precision recipes so that small updates are not lost.",
        "Mixed Precision Training (Micikevicius et al. 2018); ZeRO, section 3.1",
    ),
    Term(
        "gradients",
        "Gradients",
        "gradients",
        "trained parameters × bytes per gradient",
        "One number for each trained parameter, from its layer's backward pass to the optimizer step.",
        "ZeRO, section 3.1",
    ),
    Term(
        "optimizer_states",
        "Optimizer states",
        "optimizer",
        "trained parameters × bytes of their moments",
        "Adam keeps two moments for each trained parameter.",
        "Adam (Kingma and Ba 2015); 8-bit Optimizers (Dettmers et al. 2022)",
    ),
    Term(
        "optimizer_temporaries",
        "Optimizer temporaries",
        "optimizer",
        "copies made during the step",
        "What the optimizer allocates while it steps and frees at once.",
        "torch.optim, foreach implementation",
    ),
    Term(
        "checkpoints",
        "Layer inputs kept (checkpointing)",
        "activations",
        "layers × tokens × hidden size × bytes",
        "Under gradient checkpointing only the input of each layer is kept.",
        "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost",
    ),
    Term(
        "activations",
        "Activations",
        "activations",
        "tokens × bytes kept per token, over the layers",
        "Tensors of the forward pass that autograd keeps for the backward pass.",
        _AUTOGRAD,
    ),
    Term(
        "recomputed",
        "One layer, recomputed",
        "activations",
        "tokens × bytes kept per token of one layer",
        "Under gradient checkpointing one layer's activations exist again during its backward pass.",
        _AUTOGRAD,
    ),
    Term(
        "working",
        "Working tensors",
        "activations",
        "outputs and gradients of the operation at work",
        "Outputs, gradients and temporaries of the operation that runs at the peak.",
        _AUTOGRAD,
    ),
    Term(
        "attention_scores",
        "Attention scores",
        "activations",
        "batch × heads × length × length × bytes",
        "Stored only where no flash kernel runs; they grow with the square of the length.",
        "FlashAttention (Dao et al. 2022)",
    ),
    Term(
        "logits",
        "Logits and loss",
        "logits",
        "tokens × vocabulary × bytes",
        "The head's output, its float32 copies and their gradients: up to 14 bytes for each token and vocabulary entry.",
        "Cut Your Losses in Large-Vocabulary Language Models (Wijmans et al. 2025)",
    ),
    Term(
        "weight_casts",
        "16-bit copies of weights",
        "overhead",
        "float32 weights at work × 2",
        "Autocast copies float32 weights to 16 bits and keeps the copies for the backward pass.",
        "torch.autocast",
    ),
    Term(
        "dequantized",
        "One matrix, dequantized",
        "overhead",
        "largest quantized matrix at work × 2",
        "Quantized weights are unpacked to 16 bits, one matrix at a time, at every use.",
        "QLoRA, section 3",
    ),
    Term(
        "gathered",
        "Gathered weights",
        "overhead",
        "unsharded layers at work × bytes",
        "Under FSDP and ZeRO-3 the layers at work are whole on every GPU.",
        "FSDP (Zhao et al. 2023), section 3",
    ),
    Term(
        "buckets",
        "Communication buckets",
        "overhead",
        "bucket size × 2",
        "Gradients are reduced through flat buffers.",
        "DeepSpeed ZeRO configuration, reduce_bucket_size",
    ),
    Term("inputs", "Token ids and labels", "overhead", "tokens × 16", "Two 64-bit integers for each token.", "PyTorch data types"),
)
LEDGER = {t.key: t for t in TERMS}
TERM_INDEX = {t.key: i for i, t in enumerate(TERMS)}


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter tensor, or several alike."""

    elements: float
    """Elements, or elements per rank where `of_rank`."""
    rows: int
    """Of the matrix, 0 for a vector; what factored optimizers keep."""
    copies: int
    width: float
    """Bytes of an element, block scales included."""
    trains: bool
    group: str
    """"weights" or "adapters"."""
    overhead: float = 0.0
    """Bytes once per tensor: row scales, code books."""
    of_rank: bool = False
    in_layer: bool = False
    part: str = ""
    """"embedding", "head", "layer" or "": where sharding and gathering need to know."""
    quantized: bool = False

    @property
    def basis(self) -> np.ndarray:
        return RANK if self.of_rank else ONE


@dataclass(frozen=True, slots=True)
class Storing:
    """How a run stores parameters: the rows of its tables and the choices that decide which tensors there are."""

    method: str
    precision: Precision
    quantization: Quantization
    optimizer: Optimizer
    adapter_width: int
    targets: tuple[str, ...] | None
    saved: tuple[str, ...]
    prepare_kbit: str
    quantizes_head: bool
    fused_experts: bool
    towers: str = "frozen"
    reference: bool = False
    """A frozen copy of the model stands beside it."""
    holds_embedding: bool = True
    holds_head: bool = True

    @property
    def outer_width(self) -> float:
        """Bytes of a weight that is not quantized; 4 where k-bit preparation upcasts them."""
        return FLOAT32 if self.prepare_kbit == "all-fp32" else self.precision.weight_bytes

    @property
    def norm_width(self) -> float:
        return self.precision.weight_bytes if self.prepare_kbit == "none" else FLOAT32

    @property
    def trains_base(self) -> bool:
        return self.method == "full"


@lru_cache(maxsize=2048)
def tensors(model: ModelArchitecture, storing: Storing) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor of the model and its adapters, as the run stores them."""
    return tuple(_tensors(model, storing))


def _tensors(model: ModelArchitecture, s: Storing) -> Iterator[ParameterTensor]:
    outer, trains = s.outer_width, s.trains_base
    shared: set[str] = set()
    for block, count in model.distinct_layers.items():
        for m in block.modules:
            copies = count
            if block.shares and m.name.startswith(block.shares):
                if m.name in shared:
                    continue
                shared.add(m.name)
                copies = 1
            yield from _module(model, m, copies, s)
    table, head = model.embed_tokens, model.lm_head
    if s.holds_embedding:
        width = s.quantization.bytes_per_weight if s.quantization.quantizes_embedding else outer
        yield ParameterTensor(table.parameters, table.num_embeddings, 1, width, trains, "weights", part="embedding")
    if s.holds_head and model.final_norm is not None:
        yield from (replace(p, in_layer=False) for p in _module(model, model.final_norm, 1, s))
    if s.holds_head and not (model.tie_word_embeddings and s.holds_embedding):
        if s.quantizes_head and s.quantization.family != "none":
            yield _quantized(head, 1, s, "head")
        else:
            yield ParameterTensor(head.weight_parameters, head.out_features, 1, outer, trains, "weights", part="head")
    if head.bias and s.holds_head:
        yield ParameterTensor(head.out_features, 0, 1, outer, trains, "weights")
    for m in model.extra if s.holds_embedding else ():
        yield from _module(model, m, 1, replace(s, targets=()))
    for tower in model.towers if s.holds_embedding and s.towers != "left-out" else ():
        quantized = tower.linear_parameters if s.quantization.family == "bitsandbytes" and s.towers == "frozen" else 0
        if quantized:
            yield ParameterTensor(quantized, 0, 1, s.quantization.bytes_per_weight, False, "weights")
        yield ParameterTensor(tower.parameters - quantized, 0, 1, outer, s.towers == "trained", "weights")
    for name in s.saved:
        if not (s.holds_embedding if name == "embed_tokens" else s.holds_head):
            continue
        size, rows = (table.parameters, table.num_embeddings) if name == "embed_tokens" else (head.weight_parameters, head.out_features)
        yield ParameterTensor(size, rows, 1, outer, True, "adapters", part="saved")


def layer_tensors(model: ModelArchitecture, s: Storing) -> list[tuple[ParameterTensor, ...]]:
    """The weights of one layer of each kind; adapters apart."""
    return [
        tuple(p for m in block.modules for p in _module(model, m, 1, s) if p.group == "weights") for block in model.distinct_layers
    ]


def _module(model: ModelArchitecture, m: Module, copies: int, s: Storing) -> Iterator[ParameterTensor]:
    """A module's tensors, and those of its adapters."""

    def plain(elements: int, rows: int, width: float = s.outer_width, in_layer: bool = True) -> ParameterTensor:
        return ParameterTensor(elements, rows, copies, width, s.trains_base, "weights", in_layer=in_layer)

    if isinstance(m, Norm):
        yield from [plain(m.size, 0, s.norm_width)] * (m.weight + m.bias)
    elif isinstance(m, Linear):
        if s.quantization.family != "none" and m.kind == "linear":
            yield _quantized(m, copies, s, "layer")
        else:
            yield plain(m.weight_parameters, m.out_features)
        if m.bias:
            yield plain(m.out_features, 0)
        if not s.trains_base and adapters.reaches(model, m, s.targets, s.fused_experts):
            yield from _adapter(m.in_features, m.out_features, copies, s)
    elif isinstance(m, Experts):
        if m.fused and s.fused_experts:
            wide = m.intermediate_size * (2 if m.gated else 1)
            ranks = (0, 0) if s.trains_base else adapters.expert_ranks(model, m, s.targets)
            for rows, columns, times in zip((wide, m.hidden_size), (m.hidden_size, m.intermediate_size), ranks, strict=True):
                yield plain(m.num_experts * rows * columns, m.num_experts * rows)
                if times:
                    yield from _adapter(columns, rows, copies, s, m.num_experts * times)
        else:
            for part in adapters.expert_linears(model, m):
                yield from _module(model, part, copies * m.num_experts, s)
        if m.bias:
            yield plain(m.parameters - m.weight_parameters, 0)
    elif isinstance(m, Embedding):
        yield plain(m.parameters, m.num_embeddings, in_layer=False)
    elif isinstance(m, Weight):
        yield plain(m.parameters, 0)


def _adapter(in_features: int, out_features: int, copies: int, s: Storing, times: int = 1) -> Iterator[ParameterTensor]:
    """The two matrices of an adapter; `times` as wide where it stands for stacked matrices."""
    for side in (in_features, out_features):
        yield ParameterTensor(times * side, side, copies, s.adapter_width, True, "adapters", of_rank=True, in_layer=True)


def _quantized(m: Linear, copies: int, s: Storing, part: str) -> ParameterTensor:
    q = s.quantization
    overhead = m.out_features * q.row_bits / 8 + q.tensor_bytes
    return ParameterTensor(
        m.weight_parameters,
        m.out_features,
        copies,
        q.bytes_per_weight,
        False,
        "weights",
        overhead,
        in_layer=part == "layer",
        part=part,
        quantized=True,
    )


def weight_bytes(parts: tuple[ParameterTensor, ...], group: str) -> np.ndarray:
    """Bytes of the stored parameters of one group."""
    return _sum(p.basis * (p.copies * p.elements * p.width) + ONE * (p.copies * p.overhead) for p in parts if p.group == group)


def by_width(parts: tuple[ParameterTensor, ...], group: str) -> tuple[tuple[float, float, bool], ...]:
    """(elements, bytes of one, per rank) of the stored parameters of one group, for the formula beside the number."""
    found: dict[tuple[float, bool], float] = {}
    for p in parts:
        if p.group == group:
            found[p.width, p.of_rank] = found.get((p.width, p.of_rank), 0.0) + p.copies * p.elements
    return tuple((elements, width, of_rank) for (width, of_rank), elements in found.items())


def packed_width(p: ParameterTensor) -> float:
    """Bytes of a packed weight without its scales: whole halves of a byte."""
    return int(p.width * 2) / 2


def unsharded_bytes(parts: tuple[ParameterTensor, ...]) -> np.ndarray:
    """What FSDP leaves whole on every GPU: the scales and code books of quantized matrices."""
    return _sum(ONE * (p.copies * (p.elements * (p.width - packed_width(p)) + p.overhead)) for p in parts if p.quantized)


def trained_parameters(parts: tuple[ParameterTensor, ...]) -> np.ndarray:
    """How many parameters get gradients."""
    return _sum(p.basis * (p.copies * p.elements) for p in parts if p.trains)


def gradient_bytes(parts: tuple[ParameterTensor, ...], s: Storing) -> np.ndarray:
    """A gradient has its parameter's dtype, unless the recipe keeps wider ones."""
    return _sum(p.basis * (p.copies * p.elements * _gradient_width(p, s)) for p in parts if p.trains)


def _gradient_width(p: ParameterTensor, s: Storing) -> float:
    return max(p.width, s.precision.gradient_bytes) if p.group == "weights" else p.width


def master_bytes(parts: tuple[ParameterTensor, ...], s: Storing) -> np.ndarray:
    """The float32 copy of every trained parameter that is not float32 itself."""
    return _sum(p.basis * (p.copies * p.elements * s.precision.master_bytes) for p in parts if p.trains and p.width < FLOAT32)


def _moment_width(p: ParameterTensor, s: Storing) -> float:
    if p.group == "adapters" and p.part != "saved":
        return max(p.width, s.precision.moment_bytes if s.precision.master_bytes else 0)
    return max(s.precision.moment_bytes, p.width)


def optimizer_bytes(parts: tuple[ParameterTensor, ...], s: Storing) -> np.ndarray:
    """Moments by kind: in the parameter's dtype, float32, or 8-bit blocks; and a step counter where it lives on the device."""
    o = s.optimizer
    total = ONE * 0.0
    for p in parts:
        if not p.trains:
            continue
        matrix = p.rows > 0
        moments = o.moments_block_matrices if matrix and p.in_layer else o.moments
        per_element = moments * _moment_width(p, s)
        small = p.elements < o.min_8bit_elements and not p.of_rank
        if o.moments_8bit:
            per_element += o.moments_8bit * (FLOAT32 if small else 1 + FLOAT32 / o.block_size)
        per_element += o.moments_fp32 * FLOAT32
        if o.paged_min_elements and (p.of_rank or p.elements >= o.paged_min_elements):
            per_element = 0.0
        if o.low_rank and matrix and p.in_layer and not p.of_rank:
            columns = p.elements / p.rows
            long, short = max(p.rows, columns), min(p.rows, columns)
            rank = min(o.low_rank, short)
            total = total + ONE * (p.copies * rank * (long * moments + short) * _moment_width(p, s))
            continue
        if o.factored:
            columns = p.elements / p.rows if matrix and not p.of_rank else 0
            size = (p.rows + columns) if matrix else p.elements
            total = total + (ONE * (p.copies * size * FLOAT32) + (RANK * (p.copies * FLOAT32) if p.of_rank else 0))
            continue
        total = total + p.basis * (p.copies * p.elements * per_element) + ONE * (p.copies * o.step_bytes_per_tensor)
    return total


@dataclass(frozen=True, slots=True)
class SmallStates:
    """Adapter matrices whose states are stored otherwise while rank x `side` is below `elements`: bytes per rank more."""

    side: int
    elements: int
    per_rank: float


def small_adapter_states(parts: tuple[ParameterTensor, ...], s: Storing) -> tuple[SmallStates, ...]:
    """What 8-bit and paged optimizers keep for small adapter matrices beyond what `optimizer_bytes` counts for large ones.

    bitsandbytes: tensors under 4,096 elements keep float32 states, and those under 100,000 are never paged.
    """
    o = s.optimizer
    found = []
    for p in parts:
        if not (p.trains and p.of_rank):
            continue
        copies, side = p.copies * p.elements, int(p.elements)
        resident = o.moments_fp32 * FLOAT32 + o.moments_8bit * (1 + FLOAT32 / o.block_size if o.block_size else 0)
        if o.paged_min_elements:
            found.append(SmallStates(side, o.paged_min_elements, copies * resident))
        if o.moments_8bit:
            found.append(SmallStates(side, o.min_8bit_elements, copies * o.moments_8bit * (FLOAT32 - 1 - FLOAT32 / o.block_size)))
    return tuple(found)


def optimizer_temporary_bytes(parts: tuple[ParameterTensor, ...], s: Storing) -> np.ndarray:
    """What is alive only while the optimizer steps: copies of all trained parameters (foreach), or of the largest tensor."""
    o = s.optimizer
    trained = [p for p in parts if p.trains]
    if o.temporaries == "none" or not trained:
        return ONE * 0.0
    widths = {"fp32": lambda p: FLOAT32, "bf16": lambda p: HALF, "state": lambda p: _moment_width(p, s)}[o.temporary_dtype]
    if o.temporaries == "all":
        return _sum(p.basis * (p.copies * p.elements * o.temporary_copies * widths(p)) for p in trained)
    fixed = [p for p in trained if not p.of_rank] or trained
    largest = max(fixed, key=lambda p: p.elements)
    return largest.basis * (largest.elements * o.temporary_copies * widths(largest))


def input_bytes() -> np.ndarray:
    """Token ids and labels, 64-bit integers."""
    return TOKENS * (2 * INT64)


def _sum(vectors) -> np.ndarray:
    total = ONE * 0.0
    for v in vectors:
        total = total + v
    return total
