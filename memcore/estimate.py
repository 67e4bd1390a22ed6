"""The estimate: every term of the ledger over the phases of a step, and the largest phase.

`compile_run` turns the choices of a Scenario into matrices once; `estimate` puts the sizes in. The same arithmetic serves
one run and a grid of them, so a chart, a table and the solver cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import catalog, ledger
from .architecture import ModelArchitecture
from .layers import Flow
from .ledger import TERM_INDEX, Storing
from .scenario import Numeric, Scenario
from .step import PHASES, Program, compile_step
from .tape import BASIS
from .tape import TERMS as STEP_TERMS

N_TERMS = len(ledger.TERMS)
STEP_ROWS = [TERM_INDEX[name] for name in STEP_TERMS]
EMBEDDING_SORT_TOKENS = 3072
"""aten/src/ATen/native/cuda/Embedding.cu: above it the gradient is summed through sorted segments."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A run without its sizes."""

    phases: dict[str, np.ndarray]  # events x TERMS x BASIS
    trained: np.ndarray
    program: Program


def flow_of(run: Scenario, masked: bool) -> Flow:
    """What of a Scenario decides which tensors there are."""
    precision, quantization, software = catalog.precisions()[run.precision], catalog.quantizations()[run.quantization], catalog.software()[run.software]
    width = precision.weight_bytes
    outer = 4 if run.prepare_kbit == "all-fp32" else width
    norm = 4 if run.prepare_kbit != "none" else width
    return Flow(
        trains_base=run.method == "full",
        adapters=run.method != "full",
        targets=None if run.lora_target_modules == "all-linear" else run.lora_target_modules,
        saved_modules=run.modules_to_save if run.method != "full" else (),
        weight_width=width,
        norm_width=norm,
        outer_width=outer,
        adapter_width=4 if run.adapter_precision == "fp32" else 2,
        quantization="int8" if run.quantization == "int8" else quantization.family,
        double_quant=quantization.second_block_size > 0,
        quantizes_head=software.quantizes_head or quantization.quantizes_head,
        autocast=run.autocast,
        dropout=bool(np.any(run.lora_dropout)) and run.method != "full",
        checkpointing=run.gradient_checkpointing,
        attention=run.attention,
        masked=masked,
        loss=run.loss,
        fused_kernels=run.kernels == "fused",
        repeats_kv=run.model.model_type in software.repeats_kv_families,
        casts_quantized_input=software.library == "transformers" and software.released < "2025-01",
        holds_outputs=software.holds_outputs,
        upcasts_in_head=False,
        lora_keeps_output=software.keeps_lora_output,
        shares_dropped_input=software.shares_dropped_input,
        splits_loss=False,
    )


def storing_of(run: Scenario) -> Storing:
    software = catalog.software()[run.software]
    quantization = catalog.quantizations()[run.quantization]
    return Storing(
        method=run.method,
        precision=catalog.precisions()[run.precision],
        quantization=quantization,
        optimizer=catalog.optimizers()[run.optimizer],
        adapter_width=4 if run.adapter_precision == "fp32" else 2,
        targets=None if run.lora_target_modules == "all-linear" else run.lora_target_modules,
        saved=run.modules_to_save if run.method != "full" else (),
        prepare_kbit=run.prepare_kbit,
        quantizes_head=software.quantizes_head or quantization.quantizes_head,
    )


@lru_cache(maxsize=2048)
def _compile(model: ModelArchitecture, flow: Flow, storing: Storing, accumulates: bool) -> Compiled:
    program = compile_step(model, flow, accumulates)
    parts = ledger.tensors(model, storing)
    static = np.zeros((N_TERMS, len(BASIS)))
    static[TERM_INDEX["weights"]] = ledger.weight_bytes(parts, "weights")
    static[TERM_INDEX["adapters"]] = ledger.weight_bytes(parts, "adapters")
    static[TERM_INDEX["master_weights"]] = ledger.master_bytes(parts, storing)
    static[TERM_INDEX["optimizer_states"]] = ledger.optimizer_bytes(parts, storing)
    static[TERM_INDEX["inputs"]] = ledger.input_bytes()
    gradients = ledger.gradient_bytes(parts, storing)
    phases = {}
    for name, events in program.phases.items():
        full = np.zeros((len(events), N_TERMS, len(BASIS)))
        full[:, STEP_ROWS] = events
        full += static
        if accumulates:
            full[:, TERM_INDEX["gradients"]] += gradients
        phases[name] = full
    step = static.copy()
    step[TERM_INDEX["gradients"]] = gradients
    step[TERM_INDEX["optimizer_temporaries"]] = ledger.optimizer_temporary_bytes(parts, storing)
    phases["optimizer_step"] = step[None]
    return Compiled({name: phases[name] for name in PHASES if name in phases}, ledger.trained_parameters(parts), program)


def basis_of(run: Scenario) -> list[Numeric]:
    """The sizes of a run, in the order of BASIS."""
    b, s, r = (np.asarray(v, dtype=np.float64) for v in (run.micro_batch_size, run.sequence_length, run.lora_rank))
    tokens = b * s
    vocabulary, hidden = run.model.vocab_size, run.model.hidden_size
    chunk_rows = np.ceil(tokens / np.ceil(vocabulary / hidden))
    chunk = np.minimum(2.0 ** np.ceil(np.log2(chunk_rows)), tokens)
    sort = np.where(tokens > EMBEDDING_SORT_TOKENS, np.floor(tokens / 10) + np.minimum(tokens, vocabulary), 0.0)
    labels = np.where(b == 1, 8 * s + 8, 8 * tokens)
    values = {
        "1": 1.0, "tokens": tokens, "tokens*s": tokens * s, "s": s, "s*s": s * s, "rank": r, "rank*tokens": r * tokens,
        "b*ceil128(s)": b * np.ceil(s / 128) * 128, "b*ceil64(s)": b * np.ceil(s / 64) * 64, "sort": sort, "labels": labels, "chunk": chunk,
    }
    return [values[name] for name in BASIS]


def evaluate(coefficients: np.ndarray, basis: list[Numeric]) -> np.ndarray:
    """Sum over BASIS, in its order, so that one run and a grid of runs agree to the last bit. coefficients: ... x BASIS."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in basis))
    total = np.zeros(coefficients.shape[:-1] + shape)
    for i, value in enumerate(basis):
        column = coefficients[..., i]
        if column.any():
            total += column.reshape(column.shape + (1,) * len(shape)) * value
    return total


class MemoryBreakdown:
    """What a run holds on its busiest GPU, by phase and term. [bytes]"""

    def __init__(self, run: Scenario, phases: dict[str, dict[str, Numeric]], trainable: Numeric):
        self.run = run
        self.phases = phases
        self.trainable_parameters = trainable
        self.parameters = run.model.parameters
        self.totals = {name: sum(terms.values()) for name, terms in phases.items()}

    @property
    def allocated(self) -> Numeric:
        return np.maximum.reduce(list(self.totals.values()))

    @property
    def peak_phase(self):
        names = list(self.totals)
        index = np.argmax(np.broadcast_arrays(*self.totals.values()), axis=0)
        return names[int(index)] if index.ndim == 0 else np.array(names)[index]

    @property
    def reserved(self) -> Numeric:
        return 1.08 * self.allocated + 0.3e9

    @property
    def device(self) -> Numeric:
        return self.reserved + 0.8e9

    @property
    def device_band(self) -> tuple[Numeric, Numeric]:
        return self.device * 0.9, self.device * 1.2


def estimate(run: Scenario) -> MemoryBreakdown:
    """The memory of one training step, by phase and term."""
    basis = basis_of(run)
    storing = storing_of(run)
    compiled = _compile(run.model, flow_of(run, False), storing, False)
    phases = {}
    for name, events in compiled.phases.items():
        values = evaluate(events, basis)  # events x TERMS x shape
        totals = values.sum(axis=1)
        best = totals.argmax(axis=0)
        terms = np.take_along_axis(values, np.broadcast_to(best, (1, values.shape[1], *best.shape)), axis=0)[0] if best.ndim else values[best]
        phases[name] = {t.key: terms[i] for i, t in enumerate(ledger.TERMS)}
    return MemoryBreakdown(run, phases, evaluate(compiled.trained, basis))
