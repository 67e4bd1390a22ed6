"""One training step: embedding, layers, head and loss, backward, as the largest sets of tensors alive at once.

`compile_step` runs each different part of the model once on a tape and puts the parts together for the real number of
layers: every event of a part becomes a matrix (terms x BASIS) that says what is alive then, whatever batch, length and
rank. `estimate` evaluates them; nothing here knows the sizes of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from .architecture import Attention, Block, Embedding, Linear, ModelArchitecture, Norm, Tower
from .layers import Flow, Layers
from .losses import head_and_loss
from .tape import (
    ACTIVATIONS,
    GRADIENTS,
    IMAGE_TOKENS,
    INDEX,
    ONE,
    SCORES,
    SEQUENCE,
    SEVERAL_TOKENS,
    SORT_ROWS,
    TERMS,
    TOKENS,
    WORKING,
    Tape,
    Tensor,
)
from .units import BYTE, FLOAT32, HALF

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
class Part:
    """Which part of the step a GPU runs: all of it, or one pipeline stage."""

    first: bool = True
    """It holds the embedding."""
    last: bool = True
    """It holds the head and computes the loss."""
    in_flight: int = 1
    """Micro batches whose activations it holds at once."""


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Program:
    """The events of a whole step that can be a peak, by phase; parameter gradients of each phase are among the terms."""

    phases: dict[str, np.ndarray]  # events x TERMS x BASIS
    layer_gradients: np.ndarray  # BASIS: parameter gradients of all layers, bytes
    head_gradients: np.ndarray  # BASIS: and of final norm and head


def _stack(events: list[np.ndarray]) -> np.ndarray:
    return pareto(np.array(events)) if events else np.zeros((0, len(TERMS), ONE.size))


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
    size = TOKENS * (model.hidden_size / flow.sequence_parallel)
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
    forward = [live - tables for live in tape.events]
    cached = after.copy()
    tape.leave_autocast()
    kept = tape.live - tables
    kept[out.storage.term] -= out.storage.size
    tape.events.clear()
    backward: list[np.ndarray] = []
    if out.requires_grad:
        tail = Tensor(None, out.elements, out.width, True, out.node)
        grad = tape.new(out.elements, out.width)
        del out
        tape.note()
        grads = [grad]
        del grad
        tape.backward(tail, grads.pop())
        backward = [live - tables for live in tape.events]
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
    size = TOKENS * (model.hidden_size / flow.sequence_parallel)
    embeds = tape.new(size, model_width(flow)) if embeds_alive else None
    x = tape.leaf(size, width, requires_grad=True, storage=tape.new(size, width).storage)
    leaf = x.leaf
    hidden = layers.norm(model.final_norm, x) if model.final_norm is not None else x
    del x, embeds
    hidden = layers.gathered(hidden)
    loss, outputs = head_and_loss(layers, hidden)
    del hidden
    forward = list(tape.events)
    tape.leave_autocast()
    kept = tape.live.copy()
    tape.events.clear()
    grads = [tape.new(ONE, FLOAT32)]
    tape.backward(loss, grads.pop())
    leaf.grad = None
    gradients = np.zeros_like(tape.live)
    gradients[GRADIENTS] = tape.live[GRADIENTS]
    del outputs
    return Segment(_stack(forward), kept, kept, _stack(tape.events), gradients, width, False)


@lru_cache(maxsize=2048)
def compile_step(model: ModelArchitecture, flow: Flow, accumulates: bool = False, part: Part = WHOLE) -> Program:
    """All events of a step of `model` under `flow` that can be the peak."""
    zero = np.zeros((len(TERMS), ONE.size))
    size = TOKENS * (model.hidden_size / flow.sequence_parallel)
    trains_embedding = part.first and (flow.trains_base or "embed_tokens" in flow.saved_modules)
    # reentrant checkpointing needs an input that requires a gradient; PEFT asks for one on quantized models too
    asks = flow.checkpointing == "full-reentrant" or (flow.checkpointing != "none" and flow.quantization != "none")
    input_grad = trains_embedding or asks or not part.first
    width = model_width(flow)

    first = layer_segment(model, model.layers[0], flow, width, input_grad, accumulates)
    segments = [first] + [layer_segment(model, block, flow, first.out_width, True, accumulates) for block in model.layers[1:]]
    embeds_alive = not first.keeps_input
    outside, mask, kept_mask = _outside_layers(model, flow, part, size * width, input_grad, trains_embedding)
    embeds = zero.copy()
    if embeds_alive:
        embeds[WORKING] += size * width
    head = head_segment(model, flow, segments[-1].out_width, embeds_alive, accumulates) if part.last else None
    head_gradients = head.gradients if head else zero

    kept_before, cached_before, grads_after = _prefix(segments)
    held = _held_by_fsdp(segments, flow, size)
    if part.in_flight > 1:  # what the other micro batches of a pipeline stage keep
        outside = outside + (part.in_flight - 1) * (kept_before[-1] + (head.kept if head else zero) + embeds)

    phases: dict[str, list[np.ndarray]] = {name: [] for name in PHASES}
    places = _occurrences(segments)
    for position, segment in places:
        phases["forward"].append(segment.forward + outside + mask + cached_before[position] + (embeds if position else zero))
    if head:
        phases["loss"].append(head.forward + outside + kept_mask + cached_before[-1])
        phases["backward_loss"].append(head.backward + outside + kept_mask + kept_before[-1])
    halfway = len(segments) / 2
    for position, segment in places:
        if len(segment.backward):
            base = (
                outside + kept_mask + kept_before[position] + head_gradients + grads_after[position] + held * (len(segments) - 1 - position)
            )
            phases["backward_first_layer" if position < halfway else "backward_last_layer"].append(
                _own_gradients_whole(segment.backward, flow) + base
            )
    total = head_gradients + grads_after[0] + segments[0].gradients
    if input_grad and part.first:
        phases["backward_embedding"].append(_embedding_backward(model, flow, total, size * width, trains_embedding))
    return Program(
        {name: pareto(np.concatenate(parts)) for name, parts in phases.items() if sum(len(p) for p in parts)},
        (grads_after[0] + segments[0].gradients)[GRADIENTS],
        head_gradients[GRADIENTS],
    )


def tower_activations(model: ModelArchitecture, flow: Flow) -> np.ndarray:
    """What the layers of trained vision encoders keep for their backward pass, for every patch of the images. TERMS x BASIS.

    Left out: patch embedding and projector, and all that audio encoders keep. Measured for one layer of each kind (tests/test_towers.py).
    """
    kept = np.zeros((len(TERMS), ONE.size))
    for tower in model.towers:
        if not tower.reads_images:
            continue
        encoder = _encoder(tower)
        trained = replace(
            flow,
            trains_base=True,
            adapters=False,
            quantization="none",
            masked=False,
            attention="flash",
            fused_kernels=False,
            sequence_parallel=1,
        )
        segment = layer_segment(encoder, encoder.layers[0], trained, flow.outer_width, True, False)
        a_patch = segment.kept @ TOKENS
        if flow.checkpointing == "none":
            a_patch[ACTIVATIONS] += tower.kept_beside * (HALF if flow.autocast else flow.outer_width)
        kept += np.outer(a_patch, IMAGE_TOKENS) * (tower.num_layers * tower.patches_per_token)
    return kept


@lru_cache(maxsize=64)
def _encoder(tower: Tower) -> ModelArchitecture:
    """One layer of a vision tower as a model of its own."""
    h, i, heads = tower.hidden_size, tower.intermediate_size, tower.num_attention_heads
    inner = heads * tower.head_dim
    shape = Attention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=tower.head_dim,
        value_head_dim=tower.head_dim,
        rotary_dim=tower.head_dim * tower.rotary,
    )
    projections = {"qkv": 3 * inner} if tower.fused_qkv else {"q": inner, "k": inner, "v": inner}
    linears = [Linear(role, role, h, size, bias=True) for role, size in projections.items()] + [Linear("o", "o", inner, h, bias=True)]
    linears += [Linear(role, role, h, i, bias=True) for role in (("gate", "up") if tower.gated else ("up",))]
    linears.append(Linear("down", "down", i, h, bias=True))
    sizes = dict.fromkeys(("input", "post_attention", "pre_mlp", "post_mlp") if tower.sandwich_norms else ("input", "pre_mlp"), h)
    sizes |= dict.fromkeys(("q", "k"), tower.qk_norm) if tower.qk_norm else {}
    norms = [Norm(f"{role}_norm", role, size, kind=tower.norm, bias=tower.norm == "layer") for role, size in sizes.items()]
    block = Block(
        modules=(*norms, *linears),
        attention=shape,
        activation=tower.activation,
        # where q, k and v are one matrix, the images of a batch are attended to one by one and concatenated
        rotary=("cat" if tower.fused_qkv else "half") if tower.rotary else "",
    )
    return ModelArchitecture(
        name=tower.name, model_type="encoder", vocab_size=1, hidden_size=h, layers=(block,), embed_tokens=Embedding("patches", 1, h),
        lm_head=Linear("head", "other", h, 1), final_norm=None, tie_word_embeddings=False,
    )  # fmt: skip


def _outside_layers(
    model: ModelArchitecture, flow: Flow, part: Part, embedded: np.ndarray, input_grad: bool, trains_embedding: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is made before the layers: alive until their backward pass; the mask in the forward pass, and where checkpointed layers hold it."""
    outside = np.zeros((len(TERMS), ONE.size))
    mask = outside.copy()
    width = model_width(flow)
    rotary = max((b.attention.rotary_dim for b in model.distinct_layers if b.attention is not None), default=0)
    tables = 2 if model.model_type.startswith("gemma3") else 1  # local and global positions
    outside[ACTIVATIONS] += (SEQUENCE * (2 * width) + ONE * FLOAT32) * (
        rotary * tables
    )  # cos and sin; two float32 frequency buffers of half a head
    if flow.masked or flow.attention == "sdpa":
        mask[INDEX["attention_scores"]] += SCORES * BYTE  # handed to every layer
    if flow.attention == "eager":
        mask[INDEX["attention_scores"]] += SCORES * width  # added to the scores, in their dtype
    changed = model.embedding_dropout > 0 or model.model_type.startswith("granite") or any(isinstance(m, Embedding) for m in model.extra)
    if part.first and input_grad and not trains_embedding and changed:
        outside[WORKING] += embedded  # the embedding's output before it is scaled or positions are added: a leaf the graph holds
    if part.first and input_grad and model.embedding_dropout:
        outside[ACTIVATIONS] += embedded / width * BYTE
    return outside, mask, mask if flow.checkpointing != "none" else mask * 0


def _held_by_fsdp(segments: list[Segment], flow: Flow, size: np.ndarray) -> np.ndarray:
    """Under FSDP with frozen weights and reentrant checkpointing each layer's input and its gradient stay to the end of the backward pass.

    From the 41 published runs of that kind (data/measured_runs.csv): in all nine groups of Mistral 7B and Llama 3 8B runs that
    differ in tokens alone, allocated memory grows by 2.9 to 3.05 hidden states a layer and token, of which checkpointing
    explains one (tests/test_step.py). Which tensors the other two are is inferred.
    """
    held = np.zeros_like(segments[0].kept)
    if flow.sharded_weights and flow.adapters and flow.checkpointing == "full-reentrant":
        held[INDEX["checkpoints"]] = SEVERAL_TOKENS * (size @ TOKENS * 2 * segments[-1].out_width)
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


def _embedding_backward(model: ModelArchitecture, flow: Flow, base: np.ndarray, hidden: np.ndarray, trains: bool) -> np.ndarray:
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
    live[WORKING] += SORT_ROWS * (model.hidden_size * FLOAT32)
    head_gradient_is_a_view = flow.loss in ("full-logits", "triton") and not (flow.autocast and flow.outer_width == FLOAT32)
    if not (model.tie_word_embeddings and head_gradient_is_a_view):
        return live[None]
    summed[WORKING] += table - hidden
    return np.array([live, summed])
