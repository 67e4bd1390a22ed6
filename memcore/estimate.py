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
from .layers import FLASH_PACKAGE, Flow
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
        upcasts_logits=software.upcasts_logits,
        shifts_logits=software.shifts_logits,
        chunks=software.chunks,
        fused_qkv=software.fused_qkv,
        keeps_quantized_input=software.fused_qkv,
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
    """What a run holds on its busiest GPU, by phase and term. Numbers, or arrays where the Scenario has arrays. [bytes]"""

    def __init__(self, run: Scenario, phases: dict[str, dict[str, Numeric]], trainable: Numeric, coefficients: dict[str, np.ndarray]):
        self.run = run
        self.phases = phases
        """{phase: {term: bytes}}: the largest moment of each phase of a step."""
        self.trainable_parameters = trainable
        self.parameters = run.model.parameters
        self.totals = {name: sum(terms.values()) for name, terms in phases.items()}
        """{phase: bytes}."""
        self._coefficients = coefficients

    @property
    def allocated(self) -> Numeric:
        """Peak of live tensors: torch.cuda.max_memory_allocated()."""
        return np.maximum.reduce(list(self.totals.values()))

    @property
    def peak_phase(self):
        """Name of the largest phase."""
        names = list(self.totals)
        index = np.argmax(np.broadcast_arrays(*self.totals.values()), axis=0)
        return names[int(index)] if index.ndim == 0 else np.array(names)[index]

    @property
    def reserved(self) -> Numeric:
        """What the caching allocator holds: torch.cuda.max_memory_reserved()."""
        return 1.08 * self.allocated + 0.3e9

    @property
    def device(self) -> Numeric:
        """What the driver shows and a card must provide: reserved and the CUDA context."""
        return self.reserved + 0.8e9

    @property
    def device_band(self) -> tuple[Numeric, Numeric]:
        """Low and high end of `device`."""
        return self.device * 0.9, self.device * 1.2

    def to_frame(self):
        """One row per phase and term, largest moment of each: phase, term, bytes, share, formula with the numbers in, source."""
        import pandas as pd

        if np.ndim(self.allocated):
            raise ValueError("to_frame describes one run; this breakdown is a grid of runs: use sweep")
        rows = []
        for phase, terms in self.phases.items():
            for key, size in terms.items():
                term = ledger.LEDGER[key]
                if size or key == "weights":
                    rows.append(
                        {
                            "phase": phase, "phase_label": PHASE_LABELS[phase], "peak": phase == self.peak_phase, "term": key, "label": term.label, "group": term.group,
                            "bytes": float(size), "share": float(size / self.totals[phase]), "formula": self.formula(phase, key), "meaning": term.meaning, "source": term.source,
                        }
                    )
        return pd.DataFrame(rows)

    def formula(self, phase: str, term: str) -> str:
        """How a term's bytes come about, with this run's numbers: the very coefficients it was computed from."""
        row = self._coefficients[phase][TERM_INDEX[term]]
        parts = [_product(c, name, value) for c, name, value in zip(row, BASIS, basis_of(self.run), strict=True) if c]
        return " + ".join(parts) or "0"


def _product(coefficient: float, name: str, value: Numeric) -> str:
    number = f"{coefficient:,.0f}" if float(coefficient).is_integer() else f"{coefficient:,.4g}"
    return number if name == "1" else f"{number} × {float(value):,.0f} {BASIS_LABELS[name]}"


BASIS_LABELS = {
    "tokens": "tokens", "tokens*s": "batch·length²", "s": "positions", "s*s": "positions²", "rank": "(rank)", "rank*tokens": "rank·tokens",
    "b*ceil128(s)": "padded rows", "b*ceil64(s)": "padded rows", "sort": "partial sums", "labels": "bytes of labels", "chunk": "tokens of a chunk",
}
PHASE_LABELS = {
    "forward": "Forward pass", "loss": "Loss", "backward_loss": "Backward: loss and head", "backward_last_layer": "Backward: last layers",
    "backward_first_layer": "Backward: first layers", "backward_embedding": "Backward: embedding", "optimizer_step": "Optimizer step",
}


def estimate(run: Scenario) -> MemoryBreakdown:
    """The memory of one training step, by phase and term."""
    basis = basis_of(run)
    storing = storing_of(run)
    masked, accumulates = _masked(run), np.asarray(run.gradient_accumulation_steps) > 1
    table: dict[str, np.ndarray] = {}
    coefficients: dict[str, np.ndarray] = {}
    for is_masked in _values(masked):
        for is_accumulating in _values(accumulates):
            compiled = _compile(run.model, flow_of(run, is_masked), storing, is_accumulating)
            here = (masked == is_masked) & (accumulates == is_accumulating)
            for name, events in compiled.phases.items():
                values = evaluate(events, basis)
                terms = _largest_event(values)
                if values.ndim == 2:
                    coefficients[name] = events[values.sum(axis=1).argmax()]
                table[name] = np.where(here, terms, table[name]) if name in table else terms
    phases = {name: dict(zip(ledger.LEDGER, table[name], strict=True)) for name in PHASES if name in table}
    return MemoryBreakdown(run, phases, evaluate(compiled.trained, basis), coefficients)


def _largest_event(values: np.ndarray) -> np.ndarray:
    """events x TERMS x shape -> the terms of the largest event, for each place of the shape."""
    best = values.sum(axis=1).argmax(axis=0)
    if best.ndim == 0:
        return values[best]
    return np.take_along_axis(values, np.broadcast_to(best, (1, values.shape[1], *best.shape)), axis=0)[0]


def _masked(run: Scenario) -> np.ndarray:
    """Whether the length reaches a layer's sliding window, so that PyTorch's SDPA is handed a mask."""
    if run.attention == "flash" and run.model.model_type.startswith(FLASH_PACKAGE):
        return np.asarray(False)
    windows = [b.attention.sliding_window for b in run.model.distinct_layers if b.attention is not None and b.attention.sliding_window]
    return np.asarray(run.sequence_length) >= min(windows) if windows else np.asarray(False)


def _values(flags: np.ndarray) -> list[bool]:
    return [value for value in (False, True) if (flags == value).any()]
