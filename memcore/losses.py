"""The head and the loss: where the logits are, in which dtype and how often, by library version and kind of loss.

With a vocabulary of 128k the logits are the largest tensors of many runs, and what differs between library versions is
only how many copies of them exist at once. Sources: transformers 4.32 to 5.24 `loss_utils.py` and `modeling_*.py`,
liger_kernel 0.8 `fused_linear_cross_entropy.py`, torchtune 0.5 `CEWithChunkedOutputLoss`, lit-gpt October 2023.
"""

from __future__ import annotations

from . import operations as op
from .layers import Layers
from .operations import FLOAT32, HALF, LOGITS_TERM
from .tape import CHUNK, INDEX, LABELS, ONE, TOKENS, Tape, Tensor


def head_and_loss(layers: Layers, hidden: Tensor) -> tuple[Tensor, object]:
    """The loss, and whatever of the model's outputs the training loop keeps until the backward pass."""
    return {"full-logits": _full_logits, "triton": _triton, "fused-linear": _fused_linear, "chunked": _chunked}[layers.flow.loss](
        layers, hidden
    )


def head_trains(layers: Layers) -> bool:
    return layers.flow.trains_base or "lm_head" in layers.flow.saved_modules


def _logits(layers: Layers, hidden: Tensor) -> Tensor:
    """The head's output, soft-capped where the model does that, upcast where the model does that."""
    flow, tape, model = layers.flow, layers.tape, layers.model
    logits = layers.base_linear(model.lm_head, hidden, trains=head_trains(layers), width=flow.outer_width)
    logits.storage.move(LOGITS_TERM)
    if model.model_type.startswith(("granite", "cohere")):
        logits = op.scale(tape, logits, LOGITS_TERM)
    if model.final_softcap:
        logits = op.tanh_cap(tape, logits, LOGITS_TERM)
    if flow.upcasts_logits == "model":
        logits = op.cast(tape, logits, FLOAT32, LOGITS_TERM)
    return logits


def _for_loss(layers: Layers, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logits as the loss function sees them: upcast, and copied without the last position in transformers 4, the upcast alive beside."""
    flow, tape = layers.flow, layers.tape
    if flow.upcasts_logits == "loss":
        logits = op.cast(tape, logits, FLOAT32, LOGITS_TERM)
    return (op.shifted_logits(tape, logits) if flow.shifts_logits else logits), logits


def _full_logits(layers: Layers, hidden: Tensor) -> tuple[Tensor, object]:
    flow, tape = layers.flow, layers.tape
    logits = _logits(layers, hidden)
    loss = _cross_entropy(layers, logits)
    if flow.autocast and flow.upcasts_logits != "model":
        converted = op.cast(tape, logits, FLOAT32, LOGITS_TERM)  # accelerate converts the outputs, logits included
        del converted
    return loss, logits if flow.holds_outputs else None


def _cross_entropy(layers: Layers, logits: Tensor) -> Tensor:
    tape = layers.tape
    seen, _upcast = _for_loss(layers, logits)
    labels = tape.new(LABELS, 1)
    loss = op.cross_entropy(tape, seen)
    if loss.node is not None:
        loss.node.saved.append(tape._hold(labels.storage))
    return loss


def _triton(layers: Layers, hidden: Tensor) -> tuple[Tensor, object]:
    """A Triton cross-entropy on materialised logits: keeps them, and writes their gradient into them."""
    tape = layers.tape
    logits = _logits(layers, hidden)
    seen, _upcast = _for_loss(layers, logits)
    return op.inplace_cross_entropy(tape, seen), logits if layers.flow.holds_outputs else None


def _chunked(layers: Layers, hidden: Tensor) -> tuple[Tensor, object]:
    """Logits of all tokens in 16 bits, the loss in float32 for one chunk at a time (torchtune); Lit-GPT converts all to float32."""
    flow, tape = layers.flow, layers.tape
    if flow.upcasts_logits == "outputs":
        logits = _logits(layers, hidden)
        converted = op.cast(tape, logits, FLOAT32, LOGITS_TERM)
        del logits
        loss = op.chunked_cross_entropy(tape, converted, keeps_softmax=True, share=0.0)
        return loss, converted
    logits = _logits(layers, hidden)
    return op.chunked_cross_entropy(tape, logits, keeps_softmax=False, share=1 / max(flow.chunks, 1)), None


def _fused_linear(layers: Layers, hidden: Tensor) -> tuple[Tensor, object]:
    """Liger's fused linear cross-entropy: logits of one chunk at a time; the gradients are computed in the forward pass."""
    flow, tape, model = layers.flow, layers.tape, layers.model
    trains, width = head_trains(layers), flow.outer_width
    matrix = ONE * model.lm_head.weight_parameters
    labels = tape.new(LABELS, 1)
    grad_input = tape.new(hidden.elements, hidden.width)
    grad_weight = tape.new(matrix, width, LOGITS_TERM) if trains else None
    losses = tape.new(TOKENS, FLOAT32)
    chunk = CHUNK * model.vocab_size
    if not flow.autocast and hidden.width == width:
        logits = tape.new(chunk, hidden.width, LOGITS_TERM)
        tape.note()
        del logits
    else:
        copies = (2 if trains else 1) if width == FLOAT32 else 0  # autocast's copy of the head, and its transpose's
        weight = tape.new(matrix * copies, HALF, INDEX["weight_casts"])
        logits = tape.new(chunk, HALF if flow.autocast else hidden.width, LOGITS_TERM)
        piece = tape.new(CHUNK * model.hidden_size, HALF)
        tape.note()
        del weight, logits, piece
    loss = tape.new(ONE, FLOAT32)
    head = tape.leaf(matrix, width, requires_grad=trains, keeps=True)
    gradients = [grad_input, grad_weight]

    def backward(tape: Tape, grads: list) -> list:
        results = list(gradients)
        gradients.clear()
        return results

    tape.node((hidden, head), (loss,), (grad_input,) if grad_weight is None else (grad_input, grad_weight), backward)
    del losses, labels
    return loss, None
