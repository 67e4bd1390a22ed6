"""Each caution shows where it applies, with a number, and nowhere else."""

import re

import pytest

import memcore
from memcore.cautions import CAUTIONS, cautions

DEVICES = memcore.devices()
RTX_4090, T4, H100, MAC = (DEVICES[name] for name in ("NVIDIA GeForce RTX 4090", "Tesla T4", "NVIDIA H100 80GB HBM3", "Apple M3 Max 36GB"))
RTX_3060 = next(d for d in DEVICES.values() if d.label.startswith("RTX 3060 12"))

LLAMA = {"model": "meta-llama/Llama-3.1-8B"}
SMALL = {"model": "Qwen/Qwen3-0.6B", "micro_batch_size": 1, "sequence_length": 1024}

# key: (a run and device to which it applies, ones to which it does not)
CASES = {
    "download_size": ((LLAMA | {"method": "full"}, RTX_4090), (SMALL, RTX_4090)),
    "shared_memory": ((LLAMA | {"micro_batch_size": 3, "sequence_length": 3500}, MAC), (SMALL, MAC)),
    "card_memory": ((LLAMA | {"method": "full"}, RTX_4090), (LLAMA | {"method": "full"}, MAC)),
    "longest_sample": ((LLAMA | {"micro_batch_size": 2, "sequence_length": 3000}, RTX_4090), (SMALL, RTX_4090)),
    "short_sequence": ((SMALL | {"sequence_length": 256}, None), (SMALL, None)),
    "lora_saves_little": (
        ({"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "method": "lora", "sequence_length": 16384}, None),
        (LLAMA | {"method": "lora", "sequence_length": 512}, None),
    ),
    "saved_modules": (
        (LLAMA | {"modules_to_save": ("embed_tokens", "lm_head")}, None),
        (LLAMA | {"method": "full", "modules_to_save": ("lm_head",)}, None),
    ),
    "eight_bit_optimizer_of_adapters": (
        (LLAMA | {"optimizer": "adamw_bnb_8bit"}, None),
        (LLAMA | {"method": "full", "optimizer": "adamw_bnb_8bit"}, None),
    ),
    "reentrant_checkpointing": (
        (SMALL | {"gradient_checkpointing": "full-reentrant"}, None),
        (SMALL | {"method": "full", "gradient_checkpointing": "full-reentrant"}, None),
    ),
    "qlora_above_lora": ((LLAMA | {"prepare_kbit": "all-fp32", "sequence_length": 16384}, None), (SMALL, None)),
    "kbit_preparation": ((LLAMA | {"prepare_kbit": "all-fp32"}, None), (LLAMA, None)),
    "kbit_preparation_without_bits": (
        (SMALL | {"method": "lora", "prepare_kbit": "all-fp32"}, None),
        (SMALL | {"prepare_kbit": "all-fp32"}, None),
    ),
    "little_to_quantize": (({"model": "google/gemma-3-270m"}, None), (LLAMA, None)),
    "experts_not_quantized": (
        ({"model": "mistralai/Mixtral-8x7B-v0.1"}, None),
        ({"model": "mistralai/Mixtral-8x7B-v0.1", "method": "lora"}, None),
    ),
    "all_experts_resident": (({"model": "mistralai/Mixtral-8x7B-v0.1", "method": "full"}, None), (LLAMA, None)),
    "vocabulary": ((LLAMA, None), (LLAMA | {"loss": "fused-linear"}, None)),
    "eager_attention": ((LLAMA | {"attention": "eager", "sequence_length": 8192, "loss": "fused-linear"}, None), (LLAMA, None)),
    "no_checkpointing": ((LLAMA | {"gradient_checkpointing": "none"}, None), (LLAMA, None)),
    "padded_batch": (
        (LLAMA | {"attention": "sdpa", "gradient_checkpointing": "none", "sequence_length": 8192, "micro_batch_size": 1}, None),
        (LLAMA, None),
    ),
    "float32_weights": ((LLAMA | {"method": "full", "precision": "fp32"}, None), (LLAMA | {"method": "full"}, None)),
    "foreach_temporaries": (
        (LLAMA | {"method": "full", "micro_batch_size": 1}, None),
        (LLAMA | {"method": "full", "micro_batch_size": 1, "optimizer": "adamw_torch_fused"}, None),
    ),
    "gpus_that_do_not_help": (
        (LLAMA | {"method": "full", "data_parallel_size": 8}, None),
        (LLAMA | {"method": "full", "data_parallel_size": 8, "sharding": "fsdp"}, None),
    ),
    "host_memory": (
        (LLAMA | {"data_parallel_size": 2, "sharding": "fsdp-offload"}, None),
        (LLAMA | {"data_parallel_size": 2, "sharding": "fsdp"}, None),
    ),
    "every_rank_loads": ((LLAMA | {"data_parallel_size": 8}, None), (LLAMA, None)),
    "merging": (({"model": "Qwen/Qwen2.5-32B", "micro_batch_size": 1, "sequence_length": 512}, RTX_4090), (LLAMA, RTX_4090)),
    "preference_pairs": ((LLAMA | {"method": "full", "objective": "dpo"}, None), (LLAMA | {"objective": "reward"}, None)),
    "images": (({"model": "meta-llama/Llama-3.2-11B-Vision-Instruct"}, None), (LLAMA, None)),
    "no_bf16": ((SMALL, T4), (SMALL | {"precision": "fp16"}, T4)),
    "no_cuda": ((SMALL, MAC), (SMALL | {"quantization": "mlx-4bit"}, MAC)),
    "positions": (({"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "sequence_length": 4096}, None), (LLAMA, None)),
}


def said(settings, device):
    return {caution.key: caution for caution in cautions(memcore.Scenario(**settings), device)}


@pytest.mark.parametrize("key", [key for key, _, _ in CAUTIONS if key != "windows"])
def test_it_shows_where_it_applies_with_a_number(key):
    (settings, device), _ = CASES[key]
    caution = said(settings, device)[key]
    assert re.search(r"\d", caution.text)
    assert "None" not in caution.text and "nan" not in caution.text
    assert caution.text.endswith(".") and len(caution.text) < 320


@pytest.mark.parametrize("key", [key for key, _, _ in CAUTIONS if key != "windows"])
def test_it_does_not_show_where_it_does_not(key):
    _, (settings, device) = CASES[key]
    assert key not in said(settings, device)


def test_windows_counts_where_little_is_spare_on_a_card_that_drives_a_screen():
    run = memcore.Scenario(**SMALL)
    longest = memcore.largest(run, "sequence_length", RTX_3060.usable_bytes)
    assert "windows" in said(SMALL | {"sequence_length": longest}, RTX_3060)
    assert "windows" not in said(SMALL, RTX_3060)
    longest = memcore.largest(run, "sequence_length", H100.usable_bytes)
    assert "windows" not in said(SMALL | {"sequence_length": longest}, H100)


@pytest.mark.parametrize(("key", "source", "function"), CAUTIONS, ids=[key for key, _, _ in CAUTIONS])
def test_it_says_where_it_is_from(key, source, function):
    assert re.fullmatch(r"https://\S+", source)


def test_the_logits_of_a_large_vocabulary_are_counted_as_published():
    # unslothai/unsloth#824: 16,384 tokens x 128,256 entries x 4 bytes, "a 7.83 GB request"
    text = said(LLAMA | {"micro_batch_size": 1, "sequence_length": 16384}, None)["vocabulary"].text
    assert "128,256" in text and "7.83 GiB" in text


def test_a_lean_run_that_fits_easily_is_left_in_peace():
    run = {"model": "Qwen/Qwen2.5-7B", "method": "lora", "micro_batch_size": 1, "sequence_length": 2048, "loss": "fused-linear"}
    assert not cautions(memcore.Scenario(**run), H100)
