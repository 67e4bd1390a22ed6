"""Every published number of the rule of thumb and the ledger, with its origin."""

import numpy as np
import pytest

import memcore
from memcore.rules import available_memory, fits_by_rule, largest_by_rule, parameter_ledger, rule_of_thumb
from memcore.units import GB

BILLION = 10**9


@pytest.mark.parametrize(
    ("method", "billions", "gigabytes"),
    [
        # the rule of thumb's table: 2P + 3
        ("lora", 0.5, 4),
        ("lora", 1.5, 6),
        ("lora", 3, 9),
        ("lora", 7, 17),
        ("lora", 8, 19),
        ("lora", 14, 31),
        # 12P + 4
        ("full", 0.5, 10),
        ("full", 1.5, 22),
        ("full", 3, 40),
        ("full", 7, 88),
        ("full", 14, 172),
        # points without a formula
        ("qlora", 8, 9),
        ("qlora", 27, 22),
        ("qlora", 32, 26),
    ],
)
def test_the_rule_of_thumb_as_published(method, billions, gigabytes):
    assert round(rule_of_thumb(method, billions * BILLION) / GB) == gigabytes


def test_a_master_copy_costs_four_more_bytes_per_parameter():
    assert rule_of_thumb("full", 7 * BILLION, master_copy=True) == 116 * GB  # 16P + 4
    assert rule_of_thumb("lora", 7 * BILLION, master_copy=True) == rule_of_thumb("lora", 7 * BILLION)  # its base is frozen


class TestTheLedgerOfA7B:
    """16 bytes per parameter of mixed-precision Adam: ZeRO (Rajbhandari et al. 2019), section 3.1."""

    ledger = parameter_ledger(7 * BILLION, "bf16-master")

    @pytest.mark.parametrize(
        ("line", "gigabytes"),
        [
            ("weights", 14),
            ("gradients", 14),
            ("master_weights", 28),
            ("first_moment", 28),
            ("second_moment", 28),
            ("moments", 56),
            ("optimizer", 84),
            ("bookkeeping", 98),
            ("total", 112),
        ],
    )
    def test_line(self, line, gigabytes):
        assert getattr(self.ledger, line) == gigabytes * GB

    def test_three_quarters_are_the_optimizers(self):
        assert self.ledger.optimizer / self.ledger.total == 0.75

    def test_the_lines_sum_to_the_total(self):
        assert sum(self.ledger.to_dict().values()) == self.ledger.total

    def test_without_the_master_copy_it_is_twelve_bytes(self):
        assert parameter_ledger(7 * BILLION, "bf16-fp32-states").total == 12 * 7 * BILLION

    def test_it_is_six_to_eight_times_the_16_bit_weights(self):
        assert parameter_ledger(BILLION, "bf16-fp32-states").total / (2 * BILLION) == 6
        assert parameter_ledger(BILLION, "bf16-master").total / (2 * BILLION) == 8

    def test_lora_removes_14_of_16_bytes_for_all_but_the_adapters(self):
        adapters = 4_194_304
        lora = parameter_ledger(7 * BILLION, "bf16-master", "lora", adapters)
        assert lora.total == 2 * 7 * BILLION + 16 * adapters
        assert parameter_ledger(7 * BILLION, "bf16-master", "lora").bookkeeping == 0

    def test_the_base_of_qlora_is_half_a_byte_per_parameter(self):
        assert parameter_ledger(7 * BILLION, "bf16-master", "qlora").weights == 3.5 * GB  # QLoRA: four bits


def test_lora_on_llama_7b_trains_six_hundredths_of_a_percent():
    # LoRA paper's setting on Llama-7B, rank 8 on q and v: 32 layers, two 4096 x 4096 matrices each
    pytest.importorskip("memcore.estimate")
    run = memcore.Scenario(model="huggyllama/llama-7b", method="lora", lora_rank=8, lora_target_modules=("q_proj", "v_proj"))
    breakdown = memcore.estimate(run)
    assert breakdown.trainable_parameters == 4_194_304
    assert round(100 * breakdown.trainable_parameters / run.model.parameters, 2) == 0.06


class TestQloraOfA65BOnA48GBCard:
    """QLoRA's abstract: "reduces memory usage enough to finetune a 65B parameter model on a single 48GB GPU"."""

    def test_the_rule_of_thumb_does_not_see_it(self):
        assert round(rule_of_thumb("qlora", 65 * BILLION) / GB) == 50
        assert not fits_by_rule("qlora", 65 * BILLION, 48 * GB)

    def test_the_estimate_does(self):
        pytest.importorskip("memcore.estimate")
        run = memcore.Scenario(model="huggyllama/llama-65b", method="qlora", micro_batch_size=1, sequence_length=512)
        assert memcore.estimate(run).device <= memcore.devices()["NVIDIA RTX A6000"].usable_bytes


class TestAvailableMemory:
    def test_a_unified_machine_gives_three_quarters(self):
        assert available_memory(36 * GB, unified=True) == 27 * GB

    def test_a_card_gives_its_own(self):
        assert available_memory(24 * GB, unified=False) == 24 * GB

    @pytest.mark.parametrize(
        ("method", "billions", "gigabytes", "fits"),
        [
            # on the 27 GB of a 36 GB unified machine
            ("full", 0.5, 27, True),
            ("full", 1.5, 27, True),
            ("full", 3, 27, False),
            ("full", 7, 27, False),
            ("full", 14, 27, False),
            ("lora", 7, 27, True),
            ("lora", 14, 27, False),
            ("qlora", 27, 27, True),
            ("qlora", 32, 27, True),
            # on a 16 GB card
            ("lora", 8, 16, False),
            ("qlora", 8, 16, True),
        ],
    )
    def test_what_fits_by_the_rule(self, method, billions, gigabytes, fits):
        assert fits_by_rule(method, billions * BILLION, gigabytes * GB) is fits

    @pytest.mark.parametrize("method", ["full", "lora", "qlora"])
    def test_the_largest_fits_and_a_little_more_does_not(self, method):
        largest = largest_by_rule(method, 27 * GB)
        assert fits_by_rule(method, 0.999999 * largest, 27 * GB)
        assert not fits_by_rule(method, 1.000001 * largest, 27 * GB)

    def test_nothing_fits_below_the_constant_part(self):
        assert largest_by_rule("lora", 2 * GB) == 0


def test_arrays_give_what_their_scalars_give():
    sizes = [BILLION // 2, 7 * BILLION, 65 * BILLION]
    for method in ("full", "lora", "qlora"):
        assert rule_of_thumb(method, np.array(sizes)).tolist() == [rule_of_thumb(method, p) for p in sizes]
        assert largest_by_rule(method, np.array(sizes)).tolist() == [largest_by_rule(method, p) for p in sizes]
        assert parameter_ledger(np.array(sizes), method=method).total.tolist() == [parameter_ledger(p, method=method).total for p in sizes]


@pytest.mark.parametrize("parameters", [0, -7, float("nan"), float("inf"), "7B", None, True])
def test_a_size_that_is_none_is_refused(parameters):
    with pytest.raises(ValueError, match="parameters .* must be a finite number"):
        rule_of_thumb("full", parameters)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="method .'dora'. must be one of full, lora, qlora"):
        rule_of_thumb("dora", BILLION)
    with pytest.raises(ValueError, match="recipe .'fp8'. must be one of .*bf16-master"):
        parameter_ledger(BILLION, "fp8")
