"""Multimodal models: what their encoders weigh, what images add."""

import pytest

import memcore
from memcore.estimate import estimate

RUN = memcore.Scenario(model="Qwen/Qwen2.5-VL-7B-Instruct", method="lora", micro_batch_size=1, sequence_length=1024)
TOWER = sum(t.parameters for t in RUN.model.towers)


def terms(phase="backward_loss", **fields):
    return estimate(RUN.replace(**fields)).phases[phase]


def test_a_frozen_encoder_costs_its_weights_and_nothing_else():
    with_it, without = terms(), terms(towers="left-out")
    assert with_it["weights"] - without["weights"] == 2 * TOWER
    assert {k: v for k, v in with_it.items() if k != "weights"} == {k: v for k, v in without.items() if k != "weights"}


def test_a_trained_encoder_has_gradients_and_states():
    """bf16 throughout with AdamW: 2 bytes of gradients and 2 + 2 of moments a parameter."""
    trained, frozen = terms("optimizer_step", towers="trained"), terms("optimizer_step")
    assert trained["gradients"] - frozen["gradients"] == 2 * TOWER
    assert trained["optimizer_states"] - frozen["optimizer_states"] == 4 * TOWER


def test_image_tokens_count_like_text():
    """Qwen2-VL-7B users see 75 GiB at "1024" tokens: an image of 12.8 million pixels is 16,384 tokens more (modelscope/ms-swift issue 2010)."""
    assert terms(image_tokens=16384) == terms(sequence_length=1024 + 16384)


def test_k_bit_loading_quantizes_the_encoders_linear_layers_too():
    run = RUN.replace(method="qlora")
    saved = estimate(run).phases["optimizer_step"]["weights"] - estimate(run.replace(towers="left-out")).phases["optimizer_step"]["weights"]
    linear = sum(t.linear_parameters for t in RUN.model.towers)
    assert saved == pytest.approx(linear * (0.5 + 1 / 64 + 4 / (64 * 256)) + 2 * (TOWER - linear))


def test_a_trained_encoder_keeps_activations_for_its_patches():
    images = dict(image_tokens=1024, gradient_checkpointing="none", autocast=False)
    kept = terms("forward", towers="trained", **images)["activations"] - terms("forward", **images)["activations"]
    h, i = RUN.model.towers[0].hidden_size, RUN.model.towers[0].intermediate_size
    layer = (
        2 * (2 * h) + 16 + 2 * (2 * h) + 3 * 2 * h + 2 * h + 4 * (h // 64) + 2 * (2 * i)
    )  # norms in and out, q k v, output, MLP: 16 bits
    assert kept == pytest.approx(4 * 1024 * RUN.model.towers[0].num_layers * layer, rel=0.01)


def test_where_there_is_no_encoder_the_choice_changes_nothing():
    text = memcore.Scenario(model="Qwen/Qwen3-4B")
    assert estimate(text.replace(towers="trained")).phases == estimate(text).phases == estimate(text.replace(towers="left-out")).phases
