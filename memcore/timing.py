"""How long a training step takes, as arithmetic: FLOPs of its matrix products and bytes it must move.

Good for ratios between two ways to run the same training, which is what it is for; hours need a utilisation, and the one
assumed is stated. Published speeds of pairs of runs stand beside it in data/measured_speeds.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache

import numpy as np

from . import catalog, ledger, program
from .architecture import Experts, Linear, ModelArchitecture
from .catalog import Device
from .scenario import Numeric, Scenario
from .units import GB

REFERENCE = "NVIDIA A100-SXM4-80GB"
"""Stands for devices whose speed the catalog does not know."""

UTILISATION = 0.5
"""Share of the data sheet's FLOPs and bandwidth that a training run reaches; the runs of measured_speeds.csv reach 0.45 to 0.56
of the FLOPs. It cancels in a ratio."""

LINK_BYTES_PER_SECOND = 25 * GB
"""Between GPUs without a faster link, and between a GPU and its host: PCIe 4.0 x16, by the standard 32 GB/s in each
direction, less its overhead."""

SCORE_BYTES_MOVED = 20
"""Eager attention's traffic for one score in the forward pass: product written (2), mask added (4), softmax in float32 (6),
cast back (6), read by the second product (2). The backward pass moves about twice that."""

SOURCE = (
    "FLOPs per trained token: 6 per parameter for full fine-tuning, 4 with frozen weights, 2 more to recompute a layer "
    "(Kaplan et al. 2020, section 2.1; Korthikanti et al. 2022, section 5); and the bytes that weights and dequantization move"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSpeed:
    """Two published runs that differ in one thing, and their speed."""

    remedy: str
    what: str
    before_tokens_per_second: float
    after_tokens_per_second: float
    device: str
    source: str
    address: str
    checked: date

    @property
    def ratio(self) -> float:
        """How many times as long the same tokens take after the change."""
        return self.before_tokens_per_second / self.after_tokens_per_second


@cache
def measured_speeds() -> tuple[MeasuredSpeed, ...]:
    """The rows of measured_speeds.csv."""
    convert = {"before_tokens_per_second": float, "after_tokens_per_second": float, "checked": date.fromisoformat}
    return tuple(
        MeasuredSpeed(**{column: convert.get(column, str)(text) for column, text in row.items()})
        for row in catalog._rows("measured_speeds.csv")
    )


def flops_per_token(run: Scenario) -> Numeric:
    """FLOPs of one training step per token: matrix products of layers and head, and attention.

    A matrix product of P parameters takes 2P FLOPs per token forward, 2P for the gradient of its input, 2P for that of
    its weights where they train, and 2P to run again under gradient checkpointing. Lookups, norms and activation
    functions are left out.
    """
    work = _matrices(run.model, _targets(run))
    again, full = run.gradient_checkpointing != "none", run.method == "full"
    head_trains = full or "lm_head" in run.modules_to_save
    products = 2 * (work.layers * (2 + full + again) + work.head * (2 + head_trains))
    if not full:
        products = products + 2 * work.adapted_sides * run.lora_rank * (3 + again)
    return products + _attention_flops(run) * (3 + again)


def seconds_per_token(run: Scenario, device: Device | None = None) -> Numeric:
    """Time for one token of training data on all GPUs together. [seconds]

    A pass over the weights takes the longer of its FLOPs and of reading them. On top: dequantization, eager attention's
    scores, gradients added up, the optimizer's reading and writing, what tensor parallelism sends between the GPUs, and
    the bubble of a pipeline. What sharding and offload send is hidden behind the arithmetic as far as that lasts.
    """
    flops_per_second, bytes_per_second = _speed(device)
    sharding = catalog.shardings()[run.sharding]
    work, stored = _matrices(run.model, _targets(run)), _stored(run)
    tokens, steps, replicas = (
        np.asarray(v, dtype=np.float64) for v in (run.tokens, run.gradient_accumulation_steps, run.data_parallel_size)
    )
    again = run.gradient_checkpointing != "none"
    stages = run.pipeline_parallel_size if run.pipeline_schedule == "1f1b" else 1
    slices = run.tensor_parallel_size * stages  # of the weights, at work at the same time
    parts = slices * run.context_parallel_size  # of the arithmetic
    weights = work.resident / slices

    arithmetic = tokens * flops_per_token(run) / parts / flops_per_second
    seconds = np.maximum(arithmetic, (2 + (run.method == "full") + again) * 2 * weights / bytes_per_second)
    quantization = catalog.quantizations()[run.quantization]
    if quantization.dequantizes:
        seconds = seconds + (2 + again) * weights * (quantization.bytes_per_weight + 2) / bytes_per_second
    if run.attention == "eager":
        scores = run.tokens * work.scores_per_token(run.sequence_length) / parts
        seconds = seconds + (3 + again) * SCORE_BYTES_MOVED * scores / bytes_per_second
    seconds = seconds + np.where(steps > 1, 3 * stored.gradients / slices, 0.0) / bytes_per_second
    layer_input = 2 * tokens * run.model.hidden_size / run.context_parallel_size * len(run.model.layers) / stages
    if run.tensor_parallel_size > 1:  # an all-reduce after attention and one after the MLP, in every pass
        share = (run.tensor_parallel_size - 1) / run.tensor_parallel_size
        seconds = seconds + 2 * (2 + again) * 2 * share * layer_input / LINK_BYTES_PER_SECOND
    seconds = seconds * (1 + (stages - 1) / steps)

    owners = slices * (replicas if sharding.shards_optimizer else 1.0)
    on_host = sharding.offloads or run.offload != "none"
    stepping_at = LINK_BYTES_PER_SECOND if on_host else bytes_per_second
    seconds = seconds + (2 * stored.updated + stored.gradients) / owners / stepping_at / steps

    others = (replicas - 1) / replicas
    sent = others * (2 * stored.gradients / steps + (stored.weights * (2 + again) if sharding.shards_weights else 0.0)) / slices
    if sharding.offloads or run.offload == "weights":
        sent = sent + stored.weights * (2 + again) / owners
    if run.activation_offload:
        sent = sent + 2 * layer_input
    seconds = np.maximum(seconds, sent / LINK_BYTES_PER_SECOND)
    return (seconds / (tokens * replicas))[()]


def time_ratio(run: Scenario, changed: Scenario, device: Device | None = None) -> float:
    """How many times as long the same number of tokens takes after a change."""
    return float(seconds_per_token(changed, device) / seconds_per_token(run, device))


def describe_ratio(ratio: float) -> str:
    """ "about 1.3× slower", "about 1.5× faster", or "about as fast" within 5 %."""
    if abs(ratio - 1) < 0.05:
        return "about as fast"
    return f"about {ratio:.2g}× slower" if ratio > 1 else f"about {1 / ratio:.2g}× faster"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a number of tokens takes, as an estimate."""

    tokens: float
    hours: float
    gpu_hours: float
    cost: float
    """In the currency of the price; 0 where none was given."""
    utilisation: float


def duration(
    run: Scenario, tokens: float, device: Device | None = None, utilisation: float = UTILISATION, price_per_gpu_hour: float = 0.0
) -> Plan:
    """An estimate of hours and cost for so many tokens of training, at a stated share of the device's peak speed."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation ({utilisation!r}) must be above 0 and at most 1")
    if not 0 <= tokens < float("inf"):
        raise ValueError(f"tokens ({tokens!r}) must be a number of at least 0")
    hours = float(tokens * seconds_per_token(run, device) * UTILISATION / utilisation / 3600)
    gpu_hours = hours * float(run.gpus)
    return Plan(tokens=tokens, hours=hours, gpu_hours=gpu_hours, cost=gpu_hours * price_per_gpu_hour, utilisation=utilisation)


def _speed(device: Device | None) -> tuple[float, float]:
    """FLOPs and bytes per second that a run reaches on a device."""
    if device is None or not (device.bf16_dense_tflops and device.bandwidth_gb_s):
        device = catalog.devices()[REFERENCE]
    return device.bf16_dense_tflops * 1e12 * UTILISATION, device.bandwidth_gb_s * GB * UTILISATION


def _targets(run: Scenario) -> tuple[str, ...] | None:
    """Modules with adapters; None: all of them."""
    if run.method == "full":
        return ()
    return None if run.lora_target_modules == "all-linear" else run.lora_target_modules


@dataclass(frozen=True, slots=True)
class _Matrices:
    layers: float
    """Weights a token meets in the layers' matrix products: of experts, those that work on it."""
    resident: float
    """All weights of the layers' matrices."""
    head: float
    adapted_sides: float
    """Inputs and outputs of adapted matrices: times the rank, the adapters' parameters."""
    attending: tuple[tuple[int, int, int], ...]
    """Query width, heads and window (0: none) of each layer's attention."""

    def scores_per_token(self, sequence_length: Numeric) -> Numeric:
        """Scores one token has, over all heads and layers."""
        return sum(heads * _seen(sequence_length, window) for _, heads, window in self.attending)


def _seen(sequence_length: Numeric, window: int) -> Numeric:
    return np.minimum(sequence_length, window) if window else sequence_length


@lru_cache(maxsize=1024)
def _matrices(model: ModelArchitecture, targets: tuple[str, ...] | None) -> _Matrices:
    layers = resident = sides = 0.0
    attending = []
    for block, count in model.distinct_layers.items():
        for m in block.modules:
            if isinstance(m, Linear):
                layers += count * m.weight_parameters
                resident += count * m.weight_parameters
                if m.kind != "router" and (targets is None or m.name in targets):
                    sides += count * (m.in_features + m.out_features)
            elif isinstance(m, Experts):
                layers += count * m.weight_parameters * m.experts_per_token / m.num_experts
                resident += count * m.weight_parameters
        if block.attention is not None:
            shape = block.attention
            attending += [(shape.query_size, shape.num_attention_heads, shape.sliding_window)] * count
    return _Matrices(layers, resident, float(model.lm_head.weight_parameters), sides, tuple(attending))


def _attention_flops(run: Scenario) -> Numeric:
    """Scores and their product with the values, per token and forward pass; a flash kernel skips the half that is masked."""
    half = 1.0 if run.attention == "eager" else 0.5
    return sum(4 * half * width * _seen(run.sequence_length, window) for width, _, window in _matrices(run.model, _targets(run)).attending)


@dataclass(frozen=True, slots=True)
class _Stored:
    weights: Numeric
    gradients: Numeric
    updated: Numeric
    """Trained weights, master copies and optimizer states: read and written by each optimizer step."""


def _stored(run: Scenario) -> _Stored:
    rank = np.asarray(run.lora_rank, dtype=np.float64)
    weights, gradients, updated = _stored_vectors(*(getattr(run, name) for name in program.CHOICES))
    return _Stored(*(always + of_rank * rank for always, of_rank in (weights, gradients, updated)))


@lru_cache(maxsize=1024)
def _stored_vectors(*choices: object) -> tuple[tuple[float, float], ...]:
    run = dict(zip(program.CHOICES, choices, strict=True))
    storing = program._storing(run)
    parts = ledger.tensors(run["model"], storing)
    trained = tuple(p for p in parts if p.trains)
    updated = ledger.optimizer_bytes(parts, storing) + ledger.master_bytes(parts, storing)
    updated = updated + ledger.weight_bytes(trained, "weights") + ledger.weight_bytes(trained, "adapters")
    vectors = (ledger.weight_bytes(parts, "weights"), ledger.gradient_bytes(parts, storing), updated)
    return tuple((float(v @ ledger.ONE), float(v @ ledger.RANK)) for v in vectors)
