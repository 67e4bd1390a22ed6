"""The estimate: every term of the ledger over the phases of a step, and the largest phase.

`program` compiles a Scenario's choices once; here the sizes are put in. The same arithmetic serves one run and a grid of
them, so a chart, a table and the solver cannot disagree.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from . import catalog, ledger, program
from .catalog import Overhead
from .layers import FLASH_PACKAGE
from .ledger import TERM_INDEX
from .parallel import in_flight
from .program import Compiled, compile_run
from .program import stages as candidate_stages
from .scenario import NUMERIC, Numeric, Scenario
from .tape import BASIS

EMBEDDING_SORT_TOKENS = 3072
"""aten/src/ATen/native/cuda/Embedding.cu: above it the gradient is summed through sorted segments."""


def basis_of(run: Scenario) -> list[Numeric]:
    """The sizes of a run on one GPU, in the order of BASIS."""
    b, length, r, replicas = (np.asarray(v, dtype=np.float64) for v in (run.sequences, run.length, run.lora_rank, run.data_parallel_size))
    s = np.ceil(length / run.context_parallel_size)
    tokens = b * s
    n = replicas * run.context_parallel_size
    if run.sharding == "hsdp":
        n = np.minimum(n, max(run.gpus_per_node // run.tensor_parallel_size, 1))
    vocabulary, hidden = run.model.vocab_size, run.model.hidden_size
    chunk_rows = np.ceil(tokens / np.ceil(vocabulary / hidden))
    chunk = np.minimum(2.0 ** np.ceil(np.log2(chunk_rows)), tokens)
    sort = np.where(tokens > EMBEDDING_SORT_TOKENS, np.floor(tokens / 10) + np.minimum(tokens, vocabulary), 0.0)
    labels = np.where(b == 1, 8 * s + 8, 8 * tokens)
    values = {
        "1": 1.0,
        "tokens": tokens,
        "tokens*s": tokens * length,
        "s": s,
        "rank": r,
        "rank*tokens": r * tokens,
        "image tokens": b * float(run.image_tokens),
        "1, n>1": 1.0 * (n > 1),
        "tokens, n>1": tokens * (n > 1),
        "1/n": 1 / n,
        "rank/n": r / n,
        "b*ceil128(s)": b * np.ceil(s / 128) * 128,
        "b*ceil64(s)": b * np.ceil(s / 64) * 64,
        "sort": sort,
        "labels": labels,
        "chunk": chunk,
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

    def __init__(self, run: Scenario, basis: list[Numeric], cases: list[tuple[np.ndarray, Compiled]]):
        self.run = run
        self._basis = basis
        self._cases = cases
        self._shape = np.broadcast_shapes(*(np.shape(getattr(run, name)) for name in NUMERIC))
        self._small = [_small_states(compiled, basis) for _, compiled in cases]
        self._values = [evaluate(compiled.totals, basis) + small for (_, compiled), small in zip(cases, self._small, strict=True)]

    def _choose(self, values: list) -> Numeric:
        """Each place of a grid from the case it belongs to."""
        if not self._shape:
            return values[0]
        if len(values) == 1:
            return np.array(np.broadcast_to(values[0], self._shape))
        return np.select(
            [np.broadcast_to(where, self._shape) for where, _ in self._cases], [np.broadcast_to(v, self._shape) for v in values]
        )

    @cached_property
    def parameters(self) -> int:
        """Of the whole checkpoint."""
        return self.run.model.parameters

    @cached_property
    def trainable_parameters(self) -> Numeric:
        """Parameters that get gradients, over all GPUs."""
        return self._choose([evaluate(program.trained(self.run), self._basis)[()]])

    @cached_property
    def totals(self) -> dict[str, Numeric]:
        """{phase: bytes}: the largest moment of each phase of a step."""
        names = dict.fromkeys(name for _, compiled in self._cases for name in compiled.phases)
        maxima = [  # a pipeline stage without the head has no loss
            dict(zip(c.phases, np.maximum.reduceat(v, c.starts), strict=True)) for (_, c), v in zip(self._cases, self._values, strict=True)
        ]
        return {name: self._choose([m.get(name, 0.0) for m in maxima]) for name in names}

    @cached_property
    def phases(self) -> dict[str, dict[str, Numeric]]:
        """{phase: {term: bytes}} of those moments."""
        result = {}
        for name in self.totals:
            per_case = [self._terms(compiled, values, name) for (_, compiled), values in zip(self._cases, self._values, strict=True)]
            for terms, small in zip(per_case, self._small, strict=True):
                terms[TERM_INDEX["optimizer_states"]] += small
            result[name] = {term.key: self._choose([t[i] for t in per_case]) for i, term in enumerate(ledger.TERMS)}
        return result

    def _terms(self, compiled: Compiled, values: np.ndarray, phase: str) -> np.ndarray:
        """TERMS x shape: the terms of the largest moment of a phase, wherever on a grid it is which."""
        if phase not in compiled.phases:
            return np.zeros((len(ledger.TERMS), *self._shape))
        start, stop = _span(compiled, phase)
        best = values[start:stop].argmax(axis=0)
        if best.ndim == 0:
            return evaluate(compiled.events[start + best], self._basis)
        terms = np.zeros((len(ledger.TERMS), *self._shape))
        for moment in np.unique(best):
            terms = np.where(best == moment, evaluate(compiled.events[start + moment], self._basis), terms)
        return terms

    def coefficients(self, phase: str) -> np.ndarray:
        """TERMS x BASIS of the largest moment of a phase; for one run, not a grid."""
        compiled, values = self._cases[0][1], self._values[0]
        start, stop = _span(compiled, phase)
        return compiled.events[start + int(values[start:stop].argmax())]

    @cached_property
    def allocated(self) -> Numeric:
        """Peak of live tensors: torch.cuda.max_memory_allocated()."""
        return self._choose([v.max(axis=0) for v in self._values])

    @cached_property
    def peak_phase(self):
        """Name of the largest phase."""
        names = list(self.totals)
        index = np.argmax(np.broadcast_arrays(*self.totals.values()), axis=0)
        return names[int(index)] if index.ndim == 0 else np.array(names)[index]

    @cached_property
    def host(self) -> Numeric:
        """What lives in the host's memory for one GPU where states or weights are offloaded."""
        return self._choose([evaluate(compiled.host, self._basis)[()] for _, compiled in self._cases])

    @cached_property
    def reserved(self) -> Numeric:
        """What the caching allocator typically holds: torch.cuda.max_memory_reserved()."""
        return self.allocated + self._held(catalog.overheads()["typical"])

    @cached_property
    def device(self) -> Numeric:
        """What the driver typically shows and a card must provide: reserved, CUDA context and workspaces."""
        return self._beyond("typical")

    @cached_property
    def device_band(self) -> tuple[Numeric, Numeric]:
        """Low and high end of `device`: 97 % of the measured runs lie between them."""
        return self._beyond("low"), self._beyond("high")

    def _beyond(self, name: str) -> Numeric:
        overhead = catalog.overheads()[name]
        return self.allocated + self._held(overhead) + overhead.context_bytes + self._several * overhead.several_context_bytes

    def _held(self, overhead: Overhead) -> Numeric:
        """Blocks of the caching allocator that are free at the peak."""
        return (
            overhead.allocated_share + self._several * overhead.several_allocated_share
        ) * self.allocated + overhead.logits_share * self._logits

    @cached_property
    def _several(self) -> Numeric:
        return (np.asarray(self.run.gpus) > 1) * 1.0

    @cached_property
    def _logits(self) -> Numeric:
        """The most the logits and the loss ever hold."""
        return self._choose([evaluate(compiled.logits, self._basis).max(axis=0) for _, compiled in self._cases])

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
                            "phase": phase,
                            "phase_label": PHASE_LABELS[phase],
                            "peak": phase == self.peak_phase,
                            "term": key,
                            "label": term.label,
                            "group": term.group,
                            "bytes": float(size),
                            "share": float(size / self.totals[phase]),
                            "formula": self.formula(phase, key),
                            "meaning": term.meaning,
                            "source": term.source,
                        }
                    )
        return pd.DataFrame(rows)

    def formula(self, phase: str, term: str) -> str:
        """How a term's bytes come about, with this run's numbers: the very coefficients it was computed from."""
        stored = self._cases[0][1].widths.get(term)
        if stored:
            return self._stored_formula(stored, float(self.phases[phase][term]))
        row = self.coefficients(phase)[TERM_INDEX[term]]
        per_trained = float(self.phases[phase][term]) / max(float(self.trainable_parameters), 1.0)
        if term in PER_TRAINED and self.run.gpus_of_a_replica == 1 and per_trained and (per_trained * 256).is_integer():
            return f"{float(self.trainable_parameters):,.0f} × {per_trained:.12g} bytes"
        parts = [_product(c, name, value) for c, name, value in zip(row, BASIS, basis_of(self.run), strict=True) if c]
        if term == "optimizer_states" and self._small[0]:
            parts.append(f"{float(self._small[0]):,.0f}")
        return " + ".join(parts) or "0"

    def _stored_formula(self, stored: tuple[tuple[float, float, bool], ...], size: float) -> str:
        """Parameters times their bytes, and what is kept once per matrix: code books and row scales."""
        rank = float(self.run.lora_rank)
        counts = [(elements * (rank if of_rank else 1), width) for elements, width, of_rank in stored]
        rest = size - sum(count * width for count, width in counts)
        return " + ".join([f"{count:,.0f} × {width:.12g} bytes" for count, width in counts] + ([f"{rest:,.0f}"] if rest >= 1 else []))


def _product(coefficient: float, name: str, value: Numeric) -> str:
    number = f"{coefficient:,.0f}" if float(coefficient).is_integer() else f"{coefficient:,.4g}"
    return number if name == "1" else f"{number} × {float(value):,.0f} {BASIS_LABELS[name]}"


PER_TRAINED = ("master_weights", "gradients", "optimizer_states", "optimizer_temporaries")
"""Terms that are so many bytes for each trained parameter, where all of them are alike."""
BASIS_LABELS = {
    "tokens": "tokens",
    "tokens*s": "batch·length²",
    "s": "positions",
    "rank": "(rank)",
    "rank*tokens": "rank·tokens",
    "b*ceil128(s)": "padded rows",
    "b*ceil64(s)": "padded rows",
    "sort": "partial sums",
    "labels": "bytes of labels",
    "chunk": "tokens of a chunk",
    "image tokens": "image tokens",
    "1, n>1": "(several GPUs)",
    "tokens, n>1": "tokens",
    "1/n": "(one GPU's share)",
    "rank/n": "(rank, one GPU's share)",
}
PHASE_LABELS = {
    "forward": "Forward pass",
    "loss": "Loss",
    "backward_loss": "Backward: loss and head",
    "backward_last_layer": "Backward: last layers",
    "backward_first_layer": "Backward: first layers",
    "backward_embedding": "Backward: embedding",
    "optimizer_step": "Optimizer step",
}


def _small_states(compiled: Compiled, basis: list[Numeric]) -> Numeric:
    """Optimizer states of adapter matrices that are small at this rank. [bytes]"""
    rank = basis[BASIS.index("rank")]
    total = sum((np.where(rank * s.side < s.elements, s.per_rank * rank, 0.0) for s in compiled.small_states), np.float64(0.0))
    return total * basis[BASIS.index("1/n")] if compiled.shares_states else total


def _span(compiled: Compiled, phase: str) -> tuple[int, int]:
    i = compiled.phases.index(phase)
    return int(compiled.starts[i]), int(compiled.starts[i + 1]) if i + 1 < len(compiled.phases) else len(compiled.totals)


def estimate(run: Scenario) -> MemoryBreakdown:
    """The memory of one training step on the busiest GPU, by phase and term.

    Numeric fields of the Scenario may be arrays that broadcast against each other; then every result is an array.
    """
    basis = basis_of(run)
    masked, accumulated, dropout = _masked(run), _accumulated(run), _dropout(run)
    cases = [
        _busiest(run, basis, (masked == is_masked) & (accumulated == count) & (dropout == drops), is_masked, count, drops)
        for is_masked in np.unique(masked).tolist()
        for count in np.unique(accumulated).tolist()
        for drops in np.unique(dropout).tolist()
    ]
    return MemoryBreakdown(run, basis, [case for found in cases for case in found])


def stages(run: Scenario) -> list[MemoryBreakdown]:
    """One GPU of each pipeline stage, first to last; `estimate` is the busiest of them."""
    basis, of = basis_of(run), (bool(_masked(run).any()), _accumulated(run).max().item(), bool(_dropout(run).any()))
    return [MemoryBreakdown(run, basis, [(np.asarray(True), _compiled(run, *of, i))]) for i in range(run.pipeline_parallel_size)]


def _busiest(
    run: Scenario, basis: list[Numeric], where: np.ndarray, masked: bool, accumulated: int, dropout: bool
) -> list[tuple[np.ndarray, Compiled]]:
    """The busiest pipeline stage, wherever on a grid it is which."""
    found = [_compiled(run, masked, accumulated, dropout, i) for i in candidate_stages(run)]
    if len(found) == 1:
        return [(where, found[0])]
    peaks = np.array(np.broadcast_arrays(*(MemoryBreakdown(run, basis, [(where, c)]).device for c in found)))
    busiest = peaks.argmax(axis=0)
    return [(where & (busiest == i), found[i]) for i in np.unique(busiest)]


def _compiled(run: Scenario, masked: bool, accumulated: int, dropout: bool, stage: int) -> Compiled:
    of = run.pipeline_parallel_size
    held = in_flight(stage, of, accumulated) if run.pipeline_schedule == "1f1b" else 1
    return compile_run(run, masked, accumulated > 1, dropout, stage, held)


def _accumulated(run: Scenario) -> np.ndarray:
    """Micro batches of a step, as far as they decide which tensors there are."""
    return np.minimum(np.asarray(run.gradient_accumulation_steps, dtype=int), max(run.pipeline_parallel_size, 2))


def _dropout(run: Scenario) -> np.ndarray:
    """Whether adapters have dropout, which keeps a mask."""
    return np.asarray(run.lora_dropout) > 0


def _masked(run: Scenario) -> np.ndarray:
    """Whether the length reaches a layer's sliding window, so that PyTorch's SDPA is handed a mask."""
    if run.attention == "flash-attn" or (run.attention == "flash" and run.model.model_type.startswith(FLASH_PACKAGE)):
        return np.asarray(False)
    windows = [b.attention.sliding_window for b in run.model.distinct_layers if b.attention is not None and b.attention.sliding_window]
    return np.asarray(run.length) >= min(windows) if windows else np.asarray(False)
