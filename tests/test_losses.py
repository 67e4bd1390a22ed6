"""The head and the loss: what they keep, and how many bytes a token and vocabulary entry has at once."""

import numpy as np
import pytest
from measured_steps import model
from test_layers import MODES, flow_of

import memcore
from memcore import catalog
from memcore.estimate import basis_of, evaluate
from memcore.step import head_segment, layer_segment, model_width
from memcore.tape import INDEX

BATCH, LENGTH = 2, 384
T = BATCH * LENGTH
LABELS = 8 * T  # shifted labels, 64 bits
LLAMA, GEMMA2 = model("llama-3.1-8b"), model("gemma-2-2b")
H, V = LLAMA.hidden_size, LLAMA.vocab_size


def kept_by_head_and_loss(model, mode, **fields):
    """Bytes kept from the final norm on, without autocast's copy of the head."""
    fields = {"micro_batch_size": BATCH, "sequence_length": LENGTH, "gradient_checkpointing": "none"} | fields
    run = memcore.Scenario(model=model, **MODES[mode] | fields)
    flow = flow_of(run)
    width = layer_segment(model, model.layers[0], flow, model_width(flow), False, False).out_width
    terms = evaluate(head_segment(model, flow, width, False, False).kept, basis_of(run))
    return float(terms.sum() - terms[INDEX["weight_casts"]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # final norm 6h + 4 (full), 8h + 4 (fp32 weights under autocast), 4h + 4 (frozen); head input 2h where the head trains;
        # log-softmax 4V, labels, the loss
        ("full", T * (6 * H + 4 + 2 * H + 4 * V) + LABELS + 4),
        ("full-amp", T * (8 * H + 4 + 2 * H + 4 * V) + LABELS + 4),
        ("lora32", T * (4 * H + 4 + 4 * V) + LABELS + 4),
        ("lora-amp", T * (4 * H + 4 + 4 * V) + LABELS + 4),
        ("lora16", T * (4 * H + 4 + 4 * V) + LABELS + 4),
        ("qlora-amp", T * (4 * H + 4 + 4 * V) + LABELS + 4),
    ],
)
def test_what_is_kept_outside_the_layers_as_measured(mode, expected):
    assert kept_by_head_and_loss(LLAMA, mode) == expected


def test_soft_capping_keeps_one_more_tensor_of_16_bits():
    # Gemma 2's norm keeps 8h + 4 where it trains, and (1 + w) in float32
    h, v = GEMMA2.hidden_size, GEMMA2.vocab_size
    assert kept_by_head_and_loss(GEMMA2, "full") == T * (8 * h + 4 + 2 * h + 4 * v + 2 * v) + LABELS + 4 + 4 * h


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # instead of 4V and the head's input: the gradient of the hidden states, and of the head where it trains
        ("lora16", T * (4 * H + 4 + 2 * H) + 4),
        ("full", T * (6 * H + 4 + 2 * H) + 2 * V * H + 4),
    ],
)
def test_a_fused_linear_loss_keeps_gradients_instead_of_logits(mode, expected):
    assert kept_by_head_and_loss(LLAMA, mode, loss="fused-linear") == expected


@pytest.mark.parametrize(
    ("software", "loss", "width"),
    [
        # measured on published runs, bytes per token and vocabulary entry at the loss
        ("transformers-4.48", "full-logits", 14),  # 16-bit logits alive beside the float32 ones
        ("transformers-4.45", "full-logits", 12),
        ("transformers-5", "full-logits", 12),
        ("peft-benchmark", "full-logits", 14),  # the loop holds the outputs
        ("transformers-4.48", "triton", 10),
        ("transformers-4.45", "triton", 8),
        ("lit-gpt", "chunked", 8),
        ("transformers-5", "fused-linear", 0),
        ("torchtune", "full-logits", 14),  # its recipe holds them too
    ],
)
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_bytes_per_token_and_vocabulary_entry(method, software, loss, width):
    run = memcore.Scenario(model=LLAMA, method=method, software=software, loss=loss, micro_batch_size=1, sequence_length=65536)
    largest = max(memcore.estimate(run).phases[phase]["logits"] for phase in ("loss", "backward_loss"))
    assert largest / (65536 * V) == pytest.approx(width, abs=0.005)


@pytest.mark.parametrize(
    "name", [n for n, row in catalog.software().items() if row.basis == "measured" and row.default_loss == "full-logits"]
)
def test_the_catalogs_figure_is_what_the_loss_holds(name):
    run = memcore.Scenario(model=LLAMA, method="lora", software=name, micro_batch_size=1, sequence_length=65536)
    phases = memcore.estimate(run).phases
    largest = max(phases[phase]["logits"] for phase in ("loss", "backward_loss"))
    assert largest / (65536 * V) == pytest.approx(catalog.software()[name].logits_bytes, abs=0.01)


@pytest.mark.parametrize(("loss", "less"), [("triton", "full-logits"), ("fused-linear", "triton"), ("chunked", "full-logits")])
def test_losses_in_the_order_of_what_they_hold(loss, less):
    runs = [memcore.Scenario(model=LLAMA, method="lora", loss=kind, micro_batch_size=4, sequence_length=4096) for kind in (loss, less)]
    small, large = (max(memcore.estimate(r).phases[p]["logits"] for p in ("loss", "backward_loss")) for r in runs)
    assert small < large


def test_a_tied_head_trains_with_the_embedding():
    tied = memcore.model("Qwen/Qwen3-0.6B")
    run = memcore.Scenario(model=tied, method="full", autocast=False, micro_batch_size=1, sequence_length=8192)
    b = memcore.estimate(run)
    gradients = {phase: terms["gradients"] + terms["working"] for phase, terms in b.phases.items()}
    table = 2 * tied.embed_tokens.parameters
    # the head's gradient is a view, so the sum with the embedding's is a third: two more than the final one at once
    assert gradients["backward_embedding"] >= 2 * tied.parameters + 2 * table


@pytest.mark.parametrize("loss", ["full-logits", "triton", "fused-linear", "chunked"])
@pytest.mark.parametrize("mode", list(MODES))
def test_every_loss_in_every_mode_grows_with_the_tokens(mode, loss):
    small, large = (kept_by_head_and_loss(LLAMA, mode, loss=loss, sequence_length=s) for s in (LENGTH, 2 * LENGTH))
    assert np.isfinite(large) and large > small


@pytest.mark.parametrize("loss", ["full-logits", "triton", "fused-linear", "chunked"])
@pytest.mark.parametrize(("mode", "width"), [("full", 2), ("full-amp", 4), ("lora16", 0), ("qlora-amp", 0)])
def test_every_loss_leaves_the_gradients_of_head_and_norm_where_they_train(mode, width, loss):
    run = memcore.Scenario(model=LLAMA, **MODES[mode], loss=loss, micro_batch_size=BATCH, sequence_length=LENGTH)
    flow = flow_of(run)
    gradients = evaluate(head_segment(LLAMA, flow, model_width(flow), False, False).gradients, basis_of(run))
    assert gradients.sum() == width * (V * H + H)  # a leaf's gradient has its dtype
