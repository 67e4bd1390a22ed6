"""A step is put together from its parts: the same pass through the layers answers every depth, and the phases come in order."""

from dataclasses import replace

import numpy as np
import pytest
from measured_steps import model
from random_runs import readable_models
from test_layers import MODES, flow_of, kept_by_a_layer, letters, value

import memcore
from memcore import catalog
from memcore.estimate import basis_of, evaluate
from memcore.step import PHASES, compile_step, head_segment, layer_segment, model_width, pareto
from memcore.tape import GRADIENTS, SIZE, TERMS

LLAMA = model("llama-3.1-8b")


def totals(model=LLAMA, mode="full", **fields):
    fields = {"micro_batch_size": 1, "sequence_length": 4096, "gradient_checkpointing": "none"} | MODES[mode] | fields
    return memcore.estimate(memcore.Scenario(model=model, **fields)).totals


def cut(model, layers):
    return replace(model, layers=model.layers[:layers])


class TestPhases:
    def test_they_come_in_the_order_of_a_step(self):
        assert PHASES == (
            "forward", "loss", "backward_loss", "backward_last_layer", "backward_first_layer", "backward_embedding", "optimizer_step",
        )  # fmt: skip
        assert list(totals()) == list(PHASES)

    def test_full_fine_tuning_without_checkpointing_peaks_at_the_loss_when_there_are_many_tokens(self):
        many, few = (
            memcore.estimate(
                memcore.Scenario(
                    model=LLAMA, method="full", autocast=False, micro_batch_size=1, sequence_length=s, gradient_checkpointing="none"
                )
            )
            for s in (16384, 128)
        )
        assert many.peak_phase == "backward_loss"
        assert few.peak_phase in ("backward_embedding", "optimizer_step")  # every gradient exists, hardly an activation

    def test_gradients_grow_from_the_head_to_the_embedding(self):
        run = memcore.Scenario(model=LLAMA, method="full", autocast=False)
        phases = memcore.estimate(run).phases
        order = [
            phases[name]["gradients"]
            for name in ("forward", "backward_loss", "backward_last_layer", "backward_first_layer", "optimizer_step")
        ]
        assert order == sorted(order) and order[0] == 0 and order[-1] == 2 * LLAMA.parameters

    def test_activations_are_gone_at_the_optimizer_step(self):
        phases = memcore.estimate(memcore.Scenario(model=LLAMA, method="lora", gradient_checkpointing="none")).phases
        assert phases["backward_loss"]["activations"] > 0
        assert phases["optimizer_step"]["activations"] == 0

    def test_logits_live_around_the_loss_only(self):
        phases = memcore.estimate(memcore.Scenario(model=LLAMA, method="lora")).phases
        assert phases["loss"]["logits"] > 0 and phases["backward_loss"]["logits"] > 0
        assert phases["forward"]["logits"] == phases["backward_first_layer"]["logits"] == phases["optimizer_step"]["logits"] == 0


class TestDepth:
    @pytest.mark.parametrize("mode", ["full", "lora-amp", "lora16", "qlora-prep-amp"])
    @pytest.mark.parametrize("checkpointing", ["none", "full"])
    def test_each_layer_adds_what_it_keeps_and_what_it_stores(self, mode, checkpointing):
        # measured: 3 and 5 layers extrapolate to the full depth to the byte, 76 of 76 times
        fields = {"gradient_checkpointing": checkpointing, "micro_batch_size": 1, "sequence_length": 4096}
        three, four, five = (totals(cut(LLAMA, n), mode, **fields)["backward_loss"] for n in (3, 4, 5))
        assert five - four == four - three > 0

    def test_the_difference_is_what_a_layer_keeps(self):
        fields = {"micro_batch_size": 1, "sequence_length": 4096, "gradient_checkpointing": "none"}
        run = memcore.Scenario(model=LLAMA, **MODES["full"] | fields, optimizer="sgd")
        four, five = (totals(cut(LLAMA, n), "full", optimizer="sgd")["backward_loss"] for n in (4, 5))
        assert five - four == kept_by_a_layer(run) + 2 * LLAMA.layers[0].parameters


@pytest.mark.parametrize(
    ("mode", "checkpointing", "form"),
    [
        # live at one layer's backward pass, bytes a token, of which 24 for ids, labels and rows; measured for large T
        ("full", "none", "18h + 12i + A + 24"),
        ("full", "full", "20h + 12i + A + 24"),
        ("full", "full-reentrant", "22h + 12i + A + 24"),
        ("lora-amp", "full-reentrant", "32h + 14i + 14r + 6q + 4kv + 4a + 24"),
        ("lora32", "full-reentrant", "46h + 12i + 28r + 8q + 4kv + 4a + 24"),
        pytest.param("lora16", "full-reentrant", "18h + 12i + A + 10r + 24", marks=pytest.mark.xfail(strict=True, reason="2r more")),
        pytest.param("lora16", "full", "18h + 12i + A + 10r + 24", marks=pytest.mark.xfail(strict=True, reason="2r more")),
        ("lora-amp", "full", "32h + 14i + 14r + 6q + 4kv + 4a + 24"),
    ],
)
def test_the_first_layers_backward_pass_grows_as_measured(mode, checkpointing, form):
    # without a gradient for the input (non-reentrant, LoRA) the second layer is the first to go backward in full: a checkpoint, 2h, more
    run = memcore.Scenario(model=LLAMA, **MODES[mode], micro_batch_size=64, sequence_length=1024)
    small, large = (
        totals(LLAMA, mode, micro_batch_size=b, sequence_length=1024, gradient_checkpointing=checkpointing, loss="fused-linear")[
            "backward_first_layer"
        ]
        for b in (64, 128)
    )
    assert (large - small) / (64 * 1024) == value(form, letters(run))


class TestPareto:
    def test_an_event_that_another_exceeds_everywhere_is_left_out(self):
        small, large, other = (np.zeros((len(TERMS), SIZE)) for _ in range(3))
        small[0, :2], large[0, :2], other[0, 1] = (1, 1), (2, 1), 5
        kept = pareto(np.array([small, large, other]))
        assert len(kept) == 2
        assert not any(np.array_equal(event, small) for event in kept)

    def test_equal_events_are_kept_once(self):
        event = np.ones((len(TERMS), SIZE))
        assert len(pareto(np.array([event, event, event]))) == 1

    @pytest.mark.parametrize("method", ["full", "lora", "qlora"])
    def test_few_moments_of_a_step_can_be_its_peak(self, method):
        run = memcore.Scenario(model=LLAMA, method=method)
        program = compile_step(LLAMA, flow_of(run), False)
        assert sum(len(events) for events in program.phases.values()) < 150


WITHOUT = {
    # model type: what the step has no gradient for, though the ledger counts it
    "afmoe": "the attention gate",
    "bloom": "the norm after the embedding",
    "deepseek_v32": "the indexer",
    "deepseek_v4": "compressed attention",
    "falcon_h1": "the mixer beside attention",
    "gemma3n_text": "per-layer embeddings and their projections",
    "gemma4": "per-layer embeddings and their projections",
    "glm_moe_dsa": "the indexer",
    "gpt2": "learned positions",
    "gpt_neo": "learned positions",
    "gpt_oss": "biases of the experts and the router, sinks",
    "granitemoehybrid": "the mixer's matrices are stand-ins",
    "jamba": "the mixer's matrices are stand-ins",
    "lfm2": "the mixer's matrices are stand-ins",
    "lfm2_moe": "the mixer's matrices are stand-ins",
    "mllama": "cross attention",
    "nemotron_h": "the mixer's matrices are stand-ins",
    "opt": "learned positions",
    "qwen2_moe": "the shared expert's gate",
    "qwen3_5": "the mixer's matrices are stand-ins",
    "qwen3_5_moe": "the mixer's matrices are stand-ins",
    "qwen3_next": "the mixer's matrices are stand-ins",
}


def gradients_made(model):
    """Bytes of parameter gradients that one backward pass leaves, in 16 bits; the embedding's where it has its own."""
    run = memcore.Scenario(
        model=model, method="full", autocast=False, gradient_checkpointing="none", micro_batch_size=1, sequence_length=512
    )
    flow = flow_of(run)
    width = layer_segment(model, model.layers[0], flow, model_width(flow), True, False).out_width
    parts = [layer_segment(model, block, flow, width, True, False).gradients for block in model.layers]
    total = sum(part[GRADIENTS] for part in parts) + head_segment(model, flow, width, False, False).gradients[GRADIENTS]
    return float(evaluate(total, basis_of(run))) + (0 if model.tie_word_embeddings else 2 * model.embed_tokens.parameters)


def one_of_each_type():
    """The model with the most kinds of layers of each type."""
    return {m.model_type: m.name for m in sorted(readable_models(), key=lambda m: len({b.mixers for b in m.layers}))}


@pytest.mark.parametrize("name", sorted(one_of_each_type().values()))
def test_the_backward_pass_leaves_a_gradient_for_every_parameter(name, request):
    model = memcore.model(name)
    if model.model_type in WITHOUT:
        request.applymarker(pytest.mark.xfail(strict=True, reason=WITHOUT[model.model_type]))
    assert gradients_made(model) == 2 * model.text_parameters


def test_under_fsdp_each_layers_input_and_a_gradient_stay_to_the_end_of_the_backward_pass():
    """FMS-203 and FMS-205: Mistral 7B with LoRA and reentrant checkpointing on two GPUs, 16,384 and 65,536 tokens each; allocated bytes."""
    few, many = (catalog.measured_runs()[name] for name in ("FMS-203", "FMS-205"))
    runs = [memcore.Scenario(**row.scenario) for row in (few, many)]
    tokens = float(runs[1].tokens - runs[0].tokens)
    measured = (many.measured_bytes - few.measured_bytes) / tokens
    model = runs[0].model
    hidden_states = 2 * model.hidden_size * len(model.layers)  # what the checkpoints alone are, 16 bits
    assert measured == pytest.approx(3 * hidden_states, rel=0.002)
    small, large = (memcore.estimate(run).allocated for run in runs)
    assert (large - small) / tokens == pytest.approx(measured, rel=0.02)
