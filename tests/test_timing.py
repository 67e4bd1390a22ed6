"""Relative speed: the textbook's FLOPs, and published pairs of runs."""

import numpy as np
import pytest

import memcore
from memcore import timing
from memcore.timing import REFERENCE, describe_ratio, duration, flops_per_token, seconds_per_token, time_ratio

MISTRAL = memcore.Scenario(
    model="mistralai/Mistral-7B-v0.1", method="full", gradient_checkpointing="full", micro_batch_size=4, sequence_length=4096
)
LORA = MISTRAL.replace(method="lora", lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
PRODUCTS = 7_241_732_096 - 32_000 * 4_096 - 65 * 4_096
"""Mistral-7B's published total less its embedding (a lookup) and norms: the weights of its matrix products."""


@pytest.mark.parametrize(
    ("changes", "per_parameter"),
    [
        # Kaplan et al. 2020, section 2.1: 2 forward and 4 backward; frozen weights need only half of the latter
        ({"method": "full", "gradient_checkpointing": "none"}, 6),
        ({"method": "lora", "gradient_checkpointing": "none", "lora_rank": 1, "lora_target_modules": ("v_proj",)}, 4),
    ],
)
def test_flops_per_parameter_and_token(changes, per_parameter):
    flops = flops_per_token(MISTRAL.replace(sequence_length=1, **changes))
    assert flops == pytest.approx(per_parameter * PRODUCTS, rel=1e-3)


def test_recomputing_the_layers_adds_two_flops_per_parameter():
    head = 32_000 * 4_096  # is not recomputed
    extra = flops_per_token(MISTRAL.replace(sequence_length=1)) - flops_per_token(
        MISTRAL.replace(sequence_length=1, gradient_checkpointing="none")
    )
    assert extra == pytest.approx(2 * (PRODUCTS - head), rel=1e-3)


def test_attention_grows_with_the_length_up_to_the_window():
    short, window, longer = (flops_per_token(MISTRAL.replace(sequence_length=s)) for s in (1, 4096, 8192))
    # 12 L h s of PaLM's appendix B with 4 more for recomputing, halved by the causal mask: 8 x 32 layers x 4096 x s
    assert window - short == pytest.approx(8 * 32 * 4096 * 4095, rel=1e-6)
    assert longer == window  # Mistral's sliding window is 4096


def test_only_the_experts_that_work_on_a_token_count():
    mixtral = memcore.model("mistralai/Mixtral-8x7B-v0.1")
    per_token = flops_per_token(MISTRAL.replace(model=mixtral, sequence_length=1, gradient_checkpointing="none")) / 6
    assert per_token == pytest.approx(12.9e9, rel=0.02)  # its model card: 46.7 B parameters, 12.9 B used per token


MEASURED = {
    # what data/measured_speeds.csv compares, as Scenarios
    "lora": (MISTRAL, LORA),
    "qlora": (LORA, LORA.replace(method="qlora")),
    "fused_linear_loss": (LORA, LORA.replace(loss="fused-linear")),
    "more_gpus": (MISTRAL, MISTRAL.replace(micro_batch_size=2, data_parallel_size=2, sharding="fsdp")),
    "smaller_micro_batch": (MISTRAL.replace(micro_batch_size=8), MISTRAL),
}


@pytest.mark.parametrize("row", timing.measured_speeds(), ids=lambda row: row.what[:40])
def test_the_arithmetic_comes_near_published_pairs(row):
    device = memcore.devices()[row.device]
    assert time_ratio(*MEASURED[row.remedy], device) == pytest.approx(row.ratio, rel=0.2)


@pytest.mark.parametrize("row", timing.measured_speeds(), ids=lambda row: row.what[:40])
def test_published_speeds_say_where_they_are_from(row):
    assert row.address.startswith("https://") and row.source and row.checked


def test_the_published_speed_itself_is_in_reach():
    # fms-acceleration, Mistral-7B with LoRA on one A100: 3,319 tokens per second
    assert 1 / seconds_per_token(LORA, memcore.devices()[REFERENCE]) == pytest.approx(3319, rel=0.1)


def test_dequantization_weighs_more_the_fewer_tokens_it_is_done_for():
    many = time_ratio(LORA, LORA.replace(method="qlora"))
    few = time_ratio(
        LORA.replace(micro_batch_size=1, sequence_length=512), LORA.replace(method="qlora", micro_batch_size=1, sequence_length=512)
    )
    assert 1 < many < 1.05 < few


def test_checkpointing_costs_a_third_of_full_fine_tuning_at_most():
    # Korthikanti et al. 2022, section 5: full recomputation costs 30-40 %; FLOPs alone say 8/6
    assert 1.2 < time_ratio(MISTRAL.replace(gradient_checkpointing="none"), MISTRAL) <= 1.36


def test_eager_attention_is_slower():
    assert time_ratio(MISTRAL, MISTRAL.replace(attention="eager")) > 1.2


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({"context_parallel_size": 2}, 0.5),
        ({"pipeline_parallel_size": 2, "pipeline_schedule": "one-by-one"}, 1.0),  # device_map="auto": one GPU works, one waits
        # Narayanan et al. 2021, section 2.2: the bubble is (stages - 1) / micro batches of the step
        ({"pipeline_parallel_size": 2, "gradient_accumulation_steps": 8}, 9 / 16),
        ({"data_parallel_size": 8, "sharding": "fsdp"}, 1 / 8),
    ],
)
def test_gpus_share_the_work(changes, ratio):
    assert time_ratio(MISTRAL, MISTRAL.replace(**changes)) == pytest.approx(ratio, rel=0.08)


def test_tensor_parallelism_pays_for_what_it_sends():
    assert 0.5 < time_ratio(MISTRAL, MISTRAL.replace(tensor_parallel_size=2)) < 1


def test_the_hosts_optimizer_step_is_slow():
    run = MISTRAL.replace(sharding="zero2")
    assert time_ratio(run, run.replace(offload="optimizer")) > 1.2
    assert time_ratio(MISTRAL, MISTRAL.replace(activation_offload=True)) == pytest.approx(1)  # hidden behind the layers


def test_a_device_without_published_speed_is_compared_on_the_reference():
    device = next(d for d in memcore.devices().values() if not d.bf16_dense_tflops)
    assert seconds_per_token(LORA, device) == seconds_per_token(LORA) == seconds_per_token(LORA, memcore.devices()[REFERENCE])


def test_arrays_give_what_their_numbers_give():
    lengths = np.array([128, 4096, 20000])
    together = seconds_per_token(LORA.replace(sequence_length=lengths, micro_batch_size=np.array([[1], [8]])))
    assert together[1, 2] == pytest.approx(seconds_per_token(LORA.replace(sequence_length=20000, micro_batch_size=8)))
    assert together.shape == (2, 3)


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.334, "about 1.3× slower"), (0.5, "about 2× faster"), (1.01, "about as fast"), (14.2, "about 14× slower")]
)
def test_a_ratio_in_words(ratio, words):
    assert describe_ratio(ratio) == words


class TestHoursAndCost:
    def test_follow_from_speed_utilisation_and_price(self):
        plan = duration(LORA, tokens=3_319 * 3600, price_per_gpu_hour=2.0)
        assert plan.hours == pytest.approx(1, rel=0.1)  # an hour at the published speed
        assert plan.cost == plan.gpu_hours * 2
        assert duration(LORA, 1e6, utilisation=0.25).hours == pytest.approx(2 * duration(LORA, 1e6, utilisation=0.5).hours)

    def test_count_every_gpu(self):
        plan = duration(LORA.replace(data_parallel_size=4, tensor_parallel_size=2), 1e9)
        assert plan.gpu_hours == 8 * plan.hours

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [((1e6, None, 0.0), "utilisation"), ((1e6, None, 1.5), "utilisation"), ((-1,), "tokens"), ((float("inf"),), "tokens")],
    )
    def test_refuse_nonsense_by_name(self, arguments, name):
        with pytest.raises(ValueError, match=name):
            duration(LORA, *arguments)
