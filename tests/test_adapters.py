"""Which modules an adapter reaches, on mixtures of experts too."""

import pytest

import memcore
from memcore import adapters
from memcore.estimate import estimate


def trained(model, **fields):
    run = memcore.Scenario(model=model, method="lora", micro_batch_size=1, sequence_length=128, **fields)
    return estimate(run).trainable_parameters


def test_all_linear_on_stacked_experts_trains_what_peft_measured():
    """Mixtral-8x7B at rank 16, peft 0.21 on transformers 5: 359,665,664 parameters (counted by PyTorch)."""
    assert trained("mistralai/Mixtral-8x7B-v0.1") == 359_665_664


def test_all_linear_on_separate_experts_trains_every_expert_matrix():
    """The same on transformers 4, where each expert is three linear modules: 242,225,152 by hand."""
    assert trained("mistralai/Mixtral-8x7B-v0.1", software="transformers-4.48") == 242_225_152


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "Qwen/Qwen1.5-MoE-A2.7B"])
def test_experts_that_peft_does_not_know_are_left_alone(model):
    architecture = memcore.model(model)
    experts = next(m for block in architecture.layers for m in block.modules if hasattr(m, "num_experts"))
    assert adapters.expert_ranks(architecture, experts, None) == (0, 0)


def test_naming_the_old_projections_adapts_the_stacked_experts():
    everything = trained("Qwen/Qwen3-30B-A3B", lora_target_modules=("gate_proj", "up_proj", "down_proj"))
    attention = trained("Qwen/Qwen3-30B-A3B", lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    router = 48 * 16 * (2048 + 128)
    assert everything + attention + router == trained("Qwen/Qwen3-30B-A3B")


def test_bitsandbytes_leaves_stacked_experts_in_16_bits():
    """bitsandbytes issues 1849 and 1965: with transformers 5 most of a mixture's weights stay 16-bit."""
    model = memcore.model("mistralai/Mixtral-8x7B-v0.1")
    weights = {
        s: estimate(memcore.Scenario(model=model, method="qlora", software=s)).phases["optimizer_step"]["weights"]
        for s in ("transformers-5", "transformers-4.48")
    }
    experts = sum(m.parameters for block in model.layers for m in block.modules if hasattr(m, "num_experts"))
    assert weights["transformers-5"] > 2 * experts > 3 * weights["transformers-4.48"]


class TestNamedExperts:
    """Naming every projection is all-linear, whether the library stacks the experts or not."""

    @pytest.mark.parametrize("software", ["transformers-5", "transformers-4.48"])
    @pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V2-Lite"])
    def test_every_name_is_all_linear(self, name, software):
        run = memcore.Scenario(model=name, method="lora", software=software)
        named = run.replace(lora_target_modules=run.model.lora_targets)
        assert memcore.estimate(named).trainable_parameters == memcore.estimate(run).trainable_parameters

    @pytest.mark.parametrize("software", ["transformers-5", "transformers-4.48"])
    @pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1", "openai/gpt-oss-20b"])
    def test_every_name_on_offer_trains_something(self, name, software):
        run = memcore.Scenario(model=name, method="lora", software=software)
        for target in run.model.lora_targets:
            assert memcore.estimate(run.replace(lora_target_modules=(target,))).trainable_parameters > 0, target

    def test_mixtrals_experts_have_their_own_names(self):
        # one adapter per expert matrix, 8 experts of 3 matrices in 32 layers: r (h + i) each; transformers before 5
        run = memcore.Scenario(model="mistralai/Mixtral-8x7B-v0.1", method="lora", lora_rank=8, software="transformers-4.48")
        assert memcore.estimate(run.replace(lora_target_modules=("w1", "w2", "w3"))).trainable_parameters == 32 * 8 * 3 * 8 * (4096 + 14336)
        with pytest.raises(memcore.ScenarioError, match="w1"):
            run.replace(lora_target_modules=("gate_proj",))
