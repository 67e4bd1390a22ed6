"""One training step: embedding, layers, head and loss, backward, as the largest sets of tensors alive at once.

`compile_step` runs each different part of the model once on a tape and puts the parts together for the real number of
layers: every event of a part becomes a matrix (terms x BASIS) that says what is alive then, whatever batch, length and
rank. `estimate` evaluates them; nothing here knows the sizes of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import operations as op
from .architecture import Block, Embedding, ModelArchitecture
from .layers import Flow, Layers
from .losses import head_and_loss
from .tape import ACTIVATIONS, GRADIENTS, INDEX, ONE, SCORES, SEQUENCE, SORT_ROWS, TERMS, TOKENS, WORKING, Event, Tape, Tensor

PHASES = (
    "forward",
    "loss",
    "backward_loss",
    "backward_last_layer",
    "backward_first_layer",
    "backward_embedding",
    "optimizer_step",
)
"""The phases of a step, in order; the peak is the largest."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one part of the model holds, relative to the moment its input does not exist yet. All TERMS x BASIS."""

    forward: np.ndarray  # events x TERMS x BASIS
    cached: np.ndarray  # alive after its forward pass, until autocast is left
    kept: np.ndarray  # alive after its forward pass, until its backward pass
    backward: np.ndarray  # events x TERMS x BASIS, the gradient of its output included
    gradients: np.ndarray  # parameter gradients it leaves behind
    out_width: int
    keeps_input: bool


@dataclass(frozen=True, slots=True)
class Program:
    """The events of a whole step that can be a peak, by phase; parameter gradients of each phase are among the terms."""

    phases: dict[str, np.ndarray]  # events x TERMS x BASIS
    gradients: np.ndarray  # BASIS: all parameter gradients, bytes
    layer_kept: np.ndarray  # BASIS: what autograd keeps for one layer in the middle


def _stack(events: list[Event]) -> np.ndarray:
    return pareto(np.array([e.live for e in events])) if events else np.zeros((0, len(TERMS), ONE.size))


def pareto(events: np.ndarray) -> np.ndarray:
    """Without the events that another one exceeds for every batch, length and rank (all coefficients are sizes)."""
    totals = events.sum(axis=1)
    order = np.argsort(totals.sum(axis=1), kind="stable")[::-1]  # an event that exceeds another comes before it
    kept: list[int] = []
    largest = np.empty_like(totals)
    for i in order:
        if not (largest[: len(kept)] >= totals[i]).all(axis=1).any():
            largest[len(kept)] = totals[i]
            kept.append(i)
    return events[kept]


@lru_cache(maxsize=4096)
def layer_segment(model: ModelArchitecture, block: Block, flow: Flow, width: int, input_grad: bool, accumulates: bool) -> Segment:
    """One decoder layer, forward and backward."""
    tape = Tape(autocast=flow.autocast, accumulates=accumulates)
    layers = Layers(model, flow, tape)
    layers.rotary_tables(model_width(flow))
    tables = tape.live.copy()
    tape.phase = "forward"
    size = TOKENS * model.hidden_size
    x = tape.leaf(size, width, requires_grad=input_grad, storage=tape.new(size, width).storage)
    held = x.storage

    def run(x):
        return layers.forward(block, x)

    if flow.checkpointing == "none":
        out = run(x)
    else:
        out = tape.checkpoint(run, x, reentrant=flow.checkpointing == "full-reentrant")
    leaf, out_width = x.leaf, out.width
    keeps_input = held.saves > 0 or held.term == INDEX["checkpoints"]
    del x, held
    after = tape.live - tables
    after[out.storage.term] -= out.storage.size
    forward = [Event(e.phase, e.live - tables) for e in tape.events]
    cached = after.copy()
    tape.leave_autocast()
    kept = tape.live - tables
    kept[out.storage.term] -= out.storage.size
    tape.events.clear()
    backward: list[Event] = []
    if out.requires_grad:
        tape.phase = "backward"
        tail = Tensor(None, out.elements, out.width, True, out.node)
        grad = tape.new(out.elements, out.width)
        del out
        tape.note()
        grads = [grad]
        del grad
        tape.backward(tail, grads.pop())
        backward = [Event(e.phase, e.live - tables) for e in tape.events]
        if leaf is not None:
            leaf.grad = None
    gradients = np.zeros_like(tape.live)
    gradients[GRADIENTS] = tape.live[GRADIENTS]
    return Segment(_stack(forward), cached, kept, _stack(backward), gradients, out_width, keeps_input)


def model_width(flow: Flow) -> int:
    """Bytes of a hidden state as it leaves the embedding, which cos and sin share."""
    return flow.outer_width


@lru_cache(maxsize=1024)
def head_segment(model: ModelArchitecture, flow: Flow, width: int, embeds_alive: bool, accumulates: bool) -> Segment:
    """Final norm, head and loss, forward and backward."""
    tape = Tape(autocast=flow.autocast, accumulates=accumulates)
    layers = Layers(model, flow, tape)
    tape.phase = "loss"
    size = TOKENS * model.hidden_size
    embeds = tape.new(size, model_width(flow)) if embeds_alive else None
    x = tape.leaf(size, width, requires_grad=True, storage=tape.new(size, width).storage)
    leaf = x.leaf
    hidden = layers.norm(model.final_norm, x) if model.final_norm is not None else x
    del x, embeds
    loss, outputs = head_and_loss(layers, hidden)
    del hidden
    forward = list(tape.events)
    tape.leave_autocast()
    kept = tape.live.copy()
    tape.events.clear()
    tape.phase = "backward_loss"
    grads = [tape.new(ONE, op.FLOAT32)]
    tape.backward(loss, grads.pop())
    leaf.grad = None
    gradients = np.zeros_like(tape.live)
    gradients[GRADIENTS] = tape.live[GRADIENTS]
    del outputs
    return Segment(_stack(forward), kept, kept, _stack(tape.events), gradients, width, False)


@lru_cache(maxsize=2048)
def compile_step(model: ModelArchitecture, flow: Flow, accumulates: bool = False) -> Program:
    """All events of a step of `model` under `flow` that can be the peak."""
    zero = np.zeros((len(TERMS), ONE.size))
    size = TOKENS * model.hidden_size
    trains_embedding = flow.trains_base or "embed_tokens" in flow.saved_modules
    # reentrant checkpointing needs an input that requires a gradient; PEFT asks for one on quantized models too
    input_grad = trains_embedding or flow.checkpointing == "full-reentrant" or (flow.checkpointing != "none" and flow.quantization != "none")
    width = model_width(flow)

    first = layer_segment(model, model.layers[0], flow, width, input_grad, accumulates)
    inner_width = first.out_width
    segments = [first] + [layer_segment(model, block, flow, inner_width, True, accumulates) for block in model.layers[1:]]
    embeds_alive = len(model.layers) > 0 and not first.keeps_input
    last_width = segments[-1].out_width
    head = head_segment(model, flow, last_width, embeds_alive, accumulates)

    outside = zero.copy()  # made before the layers and alive until their backward pass: cos and sin
    rotary = max((b.attention.rotary_dim for b in model.distinct_layers if b.attention is not None), default=0)
    tables = 2 if model.model_type.startswith("gemma3") else 1  # local and global positions
    outside[WORKING] += (SEQUENCE * (2 * width) + ONE * op.FLOAT32) * (rotary * tables)  # cos and sin; two float32 frequency buffers of half a head
    changed = model.embedding_dropout > 0 or model.model_type.startswith("granite") or any(isinstance(m, Embedding) for m in model.extra)
    if input_grad and changed and not trains_embedding:
        outside[WORKING] += size * width  # the embedding's output before it is scaled or positions are added: a leaf the graph holds
    if input_grad and model.embedding_dropout:
        outside[ACTIVATIONS] += size * op.BYTE
    mask = zero.copy()  # handed to every layer; checkpointed layers hold it until they run again
    if flow.masked or flow.attention == "sdpa":
        mask[INDEX["attention_scores"]] += SCORES * op.BYTE
    if flow.attention == "eager":
        mask[INDEX["attention_scores"]] += SCORES * width  # added to the scores, in their dtype
    kept_mask = mask if flow.checkpointing != "none" else zero
    embeds = zero.copy()
    if embeds_alive:
        embeds[WORKING] += size * width

    kept_before, cached_before, grads_after = _prefix(segments)
    held = _held_by_fsdp(segments, flow, size)
    kept_all = kept_before[-1]
    cached_all = cached_before[-1]

    def shifted(events, base):
        return events + base if len(events) else events

    phases: dict[str, list[np.ndarray]] = {name: [] for name in PHASES}
    first_last = _occurrences(segments)
    for position, segment in first_last:
        base = outside + mask + cached_before[position] + (embeds if position else zero)
        phases["forward"].append(shifted(segment.forward, base))
    phases["loss"].append(shifted(head.forward, outside + kept_mask + cached_all))
    phases["backward_loss"].append(shifted(head.backward, outside + kept_mask + kept_all))
    for position, segment in first_last:
        base = outside + kept_mask + kept_before[position] + head.gradients + grads_after[position] + held * (len(segments) - 1 - position)
        name = "backward_first_layer" if position < len(segments) - 1 and position == min(p for p, s in first_last if s is segment) and position <= len(segments) // 2 else "backward_last_layer"
        phases[name].append(shifted(_own_gradients_whole(segment.backward, flow), base))
    total = head.gradients + grads_after[0] + segments[0].gradients
    if input_grad:
        phases["backward_embedding"].append(_embedding_backward(model, flow, total, size * width, trains_embedding, accumulates))
    gradients = total[GRADIENTS].copy()
    return Program(
        {name: pareto(np.concatenate(parts)) for name, parts in phases.items() if parts and sum(len(p) for p in parts)},
        gradients,
        segments[-1].kept.sum(axis=0),
    )


def _held_by_fsdp(segments: list[Segment], flow: Flow, size: np.ndarray) -> np.ndarray:
    """Under FSDP with frozen weights and reentrant checkpointing each layer's input and its gradient stay to the end of the backward pass.

    Measured on 87 published runs (exact slopes in eight combinations); why is inferred, that it is so is not.
    """
    held = np.zeros_like(segments[0].kept)
    if flow.sharded_weights and flow.adapters and flow.checkpointing == "full-reentrant":
        held[INDEX["checkpoints"]] = 2 * size * segments[-1].out_width
    return held


def _own_gradients_whole(events: np.ndarray, flow: Flow) -> np.ndarray:
    """A layer's own gradients are whole until they are reduced: they are working tensors, not part of the shard."""
    if not flow.sharded_gradients or not len(events):
        return events
    moved = events.copy()
    moved[:, WORKING] += moved[:, GRADIENTS]
    moved[:, GRADIENTS] = 0
    return moved


def _prefix(segments: list[Segment]):
    """What the layers before each position keep, and the gradients of those after it."""
    zero = np.zeros_like(segments[0].kept)
    kept, cached, after = [zero], [zero], [zero]
    for segment in segments:
        kept.append(kept[-1] + segment.kept)
        cached.append(cached[-1] + segment.cached)
    for segment in reversed(segments[1:]):
        after.append(after[-1] + segment.gradients)
    return kept, cached, after[::-1]


def _occurrences(segments: list[Segment]) -> list[tuple[int, Segment]]:
    """The first and the last position of each different layer: what lies between is between them."""
    places: dict[int, list[int]] = {}
    for i, segment in enumerate(segments):
        places.setdefault(id(segment), []).append(i)
    return [(i, segments[i]) for positions in places.values() for i in sorted({positions[0], positions[-1]})]


def _embedding_backward(model: ModelArchitecture, flow: Flow, base: np.ndarray, hidden: np.ndarray, trains: bool, accumulates: bool) -> np.ndarray:
    """The embedding's gradient beside all others. Where the head is tied, the head's gradient waits for it.

    Two gradients of one weight are summed in place unless the first is a view, as a matrix product's transposed gradient
    is: then the sum is a third tensor of that size.
    """
    live = base.copy()
    live[WORKING] += hidden
    if not trains:
        return live[None]
    table = ONE * (model.embed_tokens.parameters * flow.outer_width)
    live[GRADIENTS] += table
    summed = live.copy()
    live[WORKING] += SORT_ROWS * (model.hidden_size * op.FLOAT32)
    head_gradient_is_a_view = flow.loss in ("full-logits", "triton") and not (flow.autocast and flow.outer_width == op.FLOAT32)
    if not (model.tie_word_embeddings and head_gradient_is_a_view):
        return live[None]
    summed[WORKING] += table - hidden
    return np.array([live, summed])
