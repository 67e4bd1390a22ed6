"""A run without its sizes: every moment of a step that can be its peak, all terms included, as matrices over BASIS.

A Scenario's choices (method, precision, library, sharding, ...) are compiled once and kept; its numbers (batch, length,
rank, GPUs) are put in by `estimate`. Here the terms of the step meet those of the ledger, and GPUs divide what they share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from . import adapters, catalog, ledger, parallel
from .architecture import Embedding, Linear, ModelArchitecture
from .catalog import Sharding
from .layers import Flow
from .ledger import TERM_INDEX, ParameterTensor, Storing
from .scenario import FIELDS, NUMERIC, Scenario
from .step import PHASES, WHOLE, Part, compile_step, pareto, tower_activations
from .tape import BASIS, ONE, SEVERAL
from .tape import TERMS as STEP_TERMS

N_TERMS = len(ledger.TERMS)
STEP_ROWS = [TERM_INDEX[name] for name in STEP_TERMS]
CHOICES = tuple(f for f in FIELDS if f not in NUMERIC)
_ONE, _RANK, _SHARE, _RANK_SHARE = (BASIS.index(n) for n in ("1", "rank", "1/n", "rank/n"))


@dataclass(frozen=True, slots=True)
class Compiled:
    """The moments of a step that can be its peak."""

    events: np.ndarray
    """moments x TERMS x BASIS; of each phase only those that no other exceeds for every size."""
    totals: np.ndarray
    """moments x BASIS: `events` summed over the terms."""
    logits: np.ndarray
    """moments x BASIS: the logits and the loss alone, where they are largest."""
    starts: np.ndarray
    """Where each phase begins among the moments."""
    phases: tuple[str, ...]
    widths: dict[str, tuple[tuple[float, float, bool], ...]]
    """{term: (elements, bytes of one, per rank)} of the stored parameters, where they are whole on this GPU."""
    small_states: tuple[ledger.SmallStates, ...]
    """Optimizer states of small adapter matrices, which no line through the rank describes."""
    shares_states: bool
    """They are divided among the GPUs."""
    host: np.ndarray
    """BASIS: what lives in the host's memory for this GPU. [bytes]"""


def compile_run(run: Scenario, masked: bool, accumulates: bool, dropout: bool, stage: int = 0, in_flight: int = 1) -> Compiled:
    """The compiled form of a run's choices, for one GPU of a pipeline stage; kept, since sliders and solvers change sizes far more often."""
    return _compile(masked, accumulates, dropout, stage, in_flight, *(getattr(run, name) for name in CHOICES))


def stored(run: Scenario) -> np.ndarray:
    """BASIS: bytes a GPU holds in every phase, averaged over the pipeline; found without running any operation."""
    return _stored(*(getattr(run, name) for name in CHOICES))


@lru_cache(maxsize=4096)
def _stored(*choices: object) -> np.ndarray:
    run = _named(choices)
    sharding = catalog.shardings()[run["sharding"]]
    storing = _storing(run)
    parts = ledger.tensors(_model({**run, "pipeline_parallel_size": 1}, 0), storing)
    static, _ = _static(parts, storing, sharding, "weights" if sharding.offloads else run["offload"])
    return static.sum(axis=0) / run["pipeline_parallel_size"]


def trained(run: Scenario) -> np.ndarray:
    """BASIS: parameters that get gradients, however many GPUs divide them."""
    return _trained(*(getattr(run, name) for name in CHOICES))


@lru_cache(maxsize=4096)
def _trained(*choices: object) -> np.ndarray:
    run = _named(choices) | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    return ledger.trained_parameters(ledger.tensors(_model(run, 0), _storing(run)))


def _named(choices: tuple) -> dict:
    run = dict(zip(CHOICES, choices, strict=True))
    if run["method"] == "full":
        run["prepare_kbit"] = "none"  # preparation is for frozen weights
    return run


def stages(run: Scenario) -> list[int]:
    """The pipeline stages that can be the busiest: the first, the last, and the first of each depth between them."""
    of, layers = run.pipeline_parallel_size, len(run.model.layers)
    depths = {}
    for i in range(1, of - 1):
        start, stop = parallel.stage_span(layers, i, of)
        depths.setdefault(run.model.layers[start:stop], i)
    return sorted({0, of - 1, *depths.values()})


@lru_cache(maxsize=4096)
def _compile(masked: bool, accumulates: bool, dropout: bool, stage: int, in_flight: int, *choices: object) -> Compiled:
    run = _named(choices)
    of = run["pipeline_parallel_size"]
    part = Part(first=stage == 0, last=stage == of - 1, in_flight=in_flight)
    model = _model(run, stage)
    sharding = catalog.shardings()[run["sharding"]]
    offloads = "weights" if sharding.offloads else run["offload"]
    storing, flow = _storing(run, part), _flow(run, masked, dropout, sharding)
    accumulates = accumulates and offloads == "none"  # else gradients leave as they are made
    program = compile_step(model, flow, accumulates, part)
    parts = ledger.tensors(model, storing)
    static, host = _static(parts, storing, sharding, offloads)
    gradients = ledger.gradient_bytes(parts, storing)
    widening = max(storing.precision.gradient_bytes / flow.weight_width, 1.0) if flow.trains_base else 1.0
    seen = tower_activations(model, flow) if run["towers"] == "trained" and part.first else None
    late = {} if accumulates else _late_gradients(model, parts, storing, flow, part, program.layer_gradients * widening)
    gathered = _Gathered(parts, ledger.layer_tensors(model, storing), flow, sharding, offloads)
    phases = {}
    for name, events in program.phases.items():
        full = np.zeros((len(events), N_TERMS, len(BASIS)))
        full[:, STEP_ROWS] = events
        full[:, TERM_INDEX["gradients"]] *= widening
        full[:, TERM_INDEX["gradients"]] += late.get(name, 0.0)
        if sharding.shards_gradients:
            _share(full[:, TERM_INDEX["gradients"]])
        if seen is not None:
            full[:, STEP_ROWS] += seen
        if offloads != "none":
            full[:, TERM_INDEX["gradients"]] = 0
        if run["activation_offload"]:
            _keep_two_inputs(full[:, TERM_INDEX["checkpoints"]], model)
        full += static
        full[:, TERM_INDEX["gathered"]] += gathered.during(name)
        if accumulates:
            full[:, TERM_INDEX["gradients"]] += _shared(gradients, sharding.shards_gradients)
        phases[name] = full
    step = static.copy()
    step[TERM_INDEX["gradients"]] = _shared(gradients, sharding.shards_gradients)
    step[TERM_INDEX["optimizer_temporaries"]] = _shared(ledger.optimizer_temporary_bytes(parts, storing), sharding.shards_optimizer)
    if run["activation_offload"]:
        host = host + np.max([events[:, STEP_TERMS.index("checkpoints")].max(axis=0) for events in program.phases.values()], axis=0)
    if offloads != "none":  # the host's optimizer steps on the host's gradients
        host = host + step[TERM_INDEX["gradients"]]
        step[TERM_INDEX["gradients"]] = step[TERM_INDEX["optimizer_temporaries"]] = 0
    phases["optimizer_step"] = step[None]
    names = tuple(name for name in PHASES if name in phases)
    parts_of = [phases[name] for name in names]
    events = np.concatenate(parts_of)
    starts = np.cumsum([0, *(len(p) for p in parts_of[:-1])])
    widths = (
        {} if sharding.shards_weights else {"weights": ledger.by_width(parts, "weights"), "adapters": ledger.by_width(parts, "adapters")}
    )
    small = ledger.small_adapter_states(parts, storing)
    logits = pareto(events[:, TERM_INDEX["logits"], None])[:, 0]
    return Compiled(
        events,
        events.sum(axis=1),
        logits,
        starts,
        names,
        widths,
        small if offloads == "none" else (),
        sharding.shards_optimizer,
        host,
    )


def _late_gradients(
    model: ModelArchitecture, parts: tuple[ParameterTensor, ...], storing: Storing, flow: Flow, part: Part, seen: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradients that the tape's operations do not make, so that at the end of the backward pass all of the ledger's are there.

    Mixers that are not measured run as stand-ins; position tables and per-layer embeddings get theirs with the embedding.
    """
    layers = ledger.gradient_bytes(tuple(p for p in parts if p.in_layer), storing) - seen
    tables = sum(m.parameters for m in model.extra if isinstance(m, Embedding)) if flow.trains_base and part.first else 0
    return {
        "backward_first_layer": layers,
        "backward_embedding": layers + ONE * (tables * max(flow.weight_width, storing.precision.gradient_bytes)),
    }


def _model(run: dict, stage: int) -> ModelArchitecture:
    """The part of the model one GPU holds, with a reward model's head of one output in place of the vocabulary's."""
    model = run["model"]
    if run["objective"] == "reward":
        head = Linear("score", "other", model.hidden_size, 1)
        model = replace(model, lm_head=head, tie_word_embeddings=False, final_softcap=False)
    return parallel.stage(parallel.tensor_parallel(model, run["tensor_parallel_size"]), stage, run["pipeline_parallel_size"])


def _saved(run: dict) -> tuple[str, ...]:
    """Modules trained in full beside adapters; a reward model's head always is."""
    if run["method"] == "full":
        return ()
    return tuple(dict.fromkeys((*run["modules_to_save"], "lm_head"))) if run["objective"] == "reward" else run["modules_to_save"]


def _shared(vector: np.ndarray, shards: bool) -> np.ndarray:
    if not shards:
        return vector
    vector = vector.copy()
    _share(vector)
    return vector


def _share(vectors: np.ndarray) -> None:
    """Constants and what grows with the rank become one GPU's share; in place."""
    vectors[..., _SHARE] += vectors[..., _ONE]
    vectors[..., _RANK_SHARE] += vectors[..., _RANK]
    vectors[..., _ONE] = vectors[..., _RANK] = 0


def _keep_two_inputs(checkpoints: np.ndarray, model: ModelArchitecture) -> None:
    """With layer inputs in host memory a GPU holds two of them in the backward pass; in place.

    The one at work and the one before, which torchtune's OffloadActivations frees only when the node after it has run
    (pytorch/torchtune 05cda5e9dd03, training/_activation_offloading.py); transformers' torch.autograd.graph.save_on_cpu
    (huggingface/transformers pull 48444) fetches one at a time. Read, not measured. Left out: up to five inputs that
    torchtune's second stream still copies to the host in the forward pass (max_fwd_stash_size).
    """
    checkpoints *= min(2 / len(model.layers), 1.0)


def _static(parts: tuple[ParameterTensor, ...], storing: Storing, sharding: Sharding, offloads: str) -> tuple[np.ndarray, np.ndarray]:
    """What is there in every phase, on this GPU and on its host."""
    static = np.zeros((N_TERMS, len(BASIS)))
    host = ONE * 0.0
    whole = ledger.unsharded_bytes(parts) if sharding.shards_weights else ONE * 0.0
    weights = ledger.weight_bytes(parts, "weights") - whole
    terms = {
        "weights": (weights, sharding.shards_weights, offloads == "weights"),
        "reference": (weights * storing.reference, sharding.shards_weights, offloads == "weights"),
        "adapters": (ledger.weight_bytes(parts, "adapters"), sharding.shards_weights, offloads == "weights"),
        "master_weights": (ledger.master_bytes(parts, storing), sharding.shards_optimizer, offloads != "none"),
        "optimizer_states": (ledger.optimizer_bytes(parts, storing), sharding.shards_optimizer, offloads != "none"),
    }
    for key, (size, shards, leaves) in terms.items():
        size = _shared(size, shards)
        if leaves:
            host = host + size
        else:
            static[TERM_INDEX[key]] = size
    static[TERM_INDEX["weights"]] += whole
    static[TERM_INDEX["reference"]] += whole * storing.reference
    static[TERM_INDEX["inputs"]] = ledger.input_bytes()
    static[TERM_INDEX["buckets"]] = ONE * (sharding.bucket_elements * sharding.buckets * ledger.HALF)
    return static, host


class _Gathered:
    """Weights that are whole while they work: embedding and head from the first use to the end, and the layers at work.

    One layer at the first layer's backward pass, two at the last (the one at work and the one fetched ahead); in full
    fine-tuning one. Measured on published FSDP runs. Of layers that differ, the largest. One GPU has nothing to
    gather (torch/distributed/fsdp: a world of one is not sharded), except from its host.
    """

    def __init__(self, parts: tuple[ParameterTensor, ...], layers: list[tuple[ParameterTensor, ...]], flow: Flow, sharding: Sharding, offloads: str):
        self.sharding = sharding
        self.when = ONE if offloads == "weights" else SEVERAL
        width = flow.weight_width
        self.root = sum(p.elements * p.copies * (p.width if p.quantized else width) for p in parts if p.part in ("embedding", "head"))
        self.layer = max(sum(p.elements * p.copies * (ledger.packed_width(p) if p.quantized else width) for p in layer) for layer in layers)
        self.ahead = 1 if flow.trains_base else 2

    def during(self, phase: str) -> np.ndarray:
        if not self.sharding.shards_weights:
            return ONE * 0.0
        layers = {"forward": 1, "backward_last_layer": self.ahead, "backward_first_layer": 1}.get(phase, 0)
        return self.when * (self.root + layers * self.layer)


def _flow(run: dict, masked: bool, dropout: bool, sharding: Sharding) -> Flow:
    """What of a run decides which tensors there are."""
    precision, quantization, software = (
        catalog.precisions()[run["precision"]],
        catalog.quantizations()[run["quantization"]],
        catalog.software()[run["software"]],
    )
    width, autocast, method = precision.weight_bytes, run["autocast"], run["method"]
    if sharding.shards_weights and method == "full" and autocast:
        width, autocast = ledger.HALF, False  # FSDP's mixed precision: shards stay as they are, what is gathered is 16-bit
    return Flow(
        trains_base=method == "full",
        adapters=method != "full",
        targets=adapters.targets(run["model"], run["lora_target_modules"]),
        saved_modules=_saved(run),
        weight_width=width,
        norm_width=ledger.FLOAT32 if run["prepare_kbit"] != "none" else width,
        outer_width=ledger.FLOAT32 if run["prepare_kbit"] == "all-fp32" else width,
        adapter_width=ledger.FLOAT32 if run["adapter_precision"] == "fp32" else ledger.HALF,
        quantization="int8" if run["quantization"] == "int8" else quantization.family,
        fused_experts=software.fused_experts and quantization.family != "mlx",
        dequantizes=quantization.dequantizes,
        scale_block=quantization.block_size if quantization.second_block_size else 0,
        quantizes_head=software.quantizes_head or quantization.quantizes_head,
        autocast=autocast,
        dropout=dropout and method != "full",
        checkpointing=run["gradient_checkpointing"],
        attention=run["attention"],
        masked=masked,
        loss="full-logits" if run["objective"] == "reward" else run["loss"],
        fused_kernels=run["kernels"] == "fused",
        repeats_kv=run["model"].model_type in software.repeats_kv_families,
        casts_quantized_input=software.library == "transformers" and software.released < "2025-01",
        holds_outputs=software.holds_outputs,
        sequence_parallel=run["tensor_parallel_size"] if run["sequence_parallel"] else 1,
        sharded_gradients=sharding.shards_gradients,
        sharded_weights=sharding.shards_weights,
        upcasts_logits=software.upcasts_logits,
        shifts_logits=software.shifts_logits,
        chunks=software.chunks,
        fused_qkv=software.fused_qkv,
        keeps_quantized_input=software.fused_qkv,
    )


def _storing(run: dict, part: Part = WHOLE) -> Storing:
    software, quantization = catalog.software()[run["software"]], catalog.quantizations()[run["quantization"]]
    return Storing(
        method=run["method"],
        precision=catalog.precisions()[run["precision"]],
        quantization=quantization,
        optimizer=catalog.optimizers()[run["optimizer"]],
        adapter_width=ledger.FLOAT32 if run["adapter_precision"] == "fp32" else ledger.HALF,
        targets=adapters.targets(run["model"], run["lora_target_modules"]),
        saved=_saved(run),
        prepare_kbit=run["prepare_kbit"],
        quantizes_head=software.quantizes_head or quantization.quantizes_head,
        fused_experts=software.fused_experts and quantization.family != "mlx",
        towers=run["towers"],
        reference=run["objective"] == "dpo" and run["method"] == "full",
        holds_embedding=part.first,
        holds_head=part.last,
    )
