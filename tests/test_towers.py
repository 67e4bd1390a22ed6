"""Multimodal models: what their encoders weigh, what images add."""

import pytest

import memcore
from memcore.configs import model_from_config
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


def seen(model, **fields):
    """Bytes the model's trained towers keep for each image token."""
    run = memcore.Scenario(model=model, method="lora", autocast=False, micro_batch_size=1, sequence_length=64, gradient_checkpointing="none")
    run = run.replace(image_tokens=1000, **fields)
    trained, frozen = (estimate(run.replace(towers=towers)).phases["forward"] for towers in ("trained", "frozen"))
    return sum(trained[term] - frozen[term] for term in ("activations", "checkpoints")) / 1000


def vision(kind, **sizes):
    return model_from_config({"model_type": kind, "text_config": {}, "vision_config": sizes})


KEPT_A_PATCH = [
    # The storages autograd saves, parameters apart, in a step of transformers 5.24's tower with two layers less those with
    # one, divided by its patches (144 to 257); torch 2.13, bfloat16 throughout, sdpa, random weights, 2026-11-30. Run on a
    # CPU, whose LayerNorm keeps 16-bit statistics: 8 bytes less than on a GPU.
    ("paligemma", {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16}, 35720 + 8),
    ("llava", {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}, 41032 + 8),
    ("qwen2_vl", {"embed_dim": 1280, "num_heads": 16}, 58952 + 8),
    ("qwen2_5_vl", {"hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}, 65832),
    ("qwen3_vl", {"hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}, 42632 + 8),
    ("mistral3", {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}, 57416),
    ("internvl", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "attention_bias": True}, 36936 + 8),
    # without the 12,800 bytes of its norms' float32 weights, which are one a layer and not one a patch
    ("gemma4", {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "head_dim": 64}, (10682624 - 12800) / 144),
]


@pytest.mark.parametrize(("model_type", "sizes", "measured"), KEPT_A_PATCH, ids=[row[0] for row in KEPT_A_PATCH])
def test_a_layer_of_a_trained_encoder_keeps_what_pytorch_does(model_type, sizes, measured):
    model = vision(model_type, **sizes)
    patches = model.towers[0].num_layers * model.towers[0].patches_per_token
    assert seen(model) / patches == pytest.approx(measured, rel=0.003)  # Gemma 4's norms keep a mean a row beside its root


def test_a_checkpointed_encoder_keeps_one_vector_a_layer_and_patch():
    model = vision("qwen2_5_vl", hidden_size=1280, intermediate_size=3420, num_heads=16)
    assert seen(model, gradient_checkpointing="full") == 32 * 4 * 2 * 1280


@pytest.mark.parametrize(
    ("model_type", "sizes", "patches"),
    [
        # what each model's card or paper says: patches of an image at its configured size, tokens it becomes
        ("gemma3", {"image_size": 896, "patch_size": 14}, 4096 / 256),
        ("paligemma", {"image_size": 224, "patch_size": 14}, 256 / 256),
        ("qwen2_5_vl", {}, 2 * 2 / 1),
        ("idefics3", {"image_size": 364, "patch_size": 14}, 676 / 169),
        ("internvl", {"image_size": [448, 448], "patch_size": [14, 14]}, 1024 / 256),
        ("aria", {"image_size": 980, "patch_size": 14}, 4900 / 256),
        ("llama4", {"image_size": 336, "patch_size": 14}, 576 / 144),
        ("gemma4", {}, 3 * 3 / 1),
    ],
)
def test_patches_that_become_one_token(model_type, sizes, patches):
    tower = vision(model_type, **sizes).towers[0]
    assert tower.patches_per_token == patches
    if tower.tokens_per_image and sizes:
        side, patch = (size[0] if isinstance(size, list) else size for size in (sizes["image_size"], sizes["patch_size"]))
        assert tower.tokens_per_image == (side // patch) ** 2 / patches


def test_a_trained_audio_encoder_is_not_charged_for_images():
    both = model_from_config({"model_type": "gemma4", "text_config": {}, "vision_config": {}, "audio_config": {}})
    assert [tower.name for tower in both.towers] == ["vision", "audio"]
    assert seen(both) == seen(vision("gemma4"))
    assert any("audio encoder" in sentence for sentence in both.uncertain)


def test_an_encoder_whose_layers_are_not_known_is_said_to_be_uncertain():
    model = model_from_config({"model_type": "gemma3n", "text_config": {}, "vision_config": {}, "audio_config": {}})
    assert seen(model) == 0
    assert any("vision encoder" in sentence and "not counted" in sentence for sentence in model.uncertain)
    assert not any("encoder" in sentence for sentence in RUN.model.uncertain)


def test_where_there_is_no_encoder_the_choice_changes_nothing():
    text = memcore.Scenario(model="Qwen/Qwen3-4B")
    assert estimate(text.replace(towers="trained")).phases == estimate(text).phases == estimate(text.replace(towers="left-out")).phases
