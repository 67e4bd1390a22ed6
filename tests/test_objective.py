"""What is learned: text, preferences with a reference model, or a reward."""

import pytest

import memcore
from memcore.estimate import estimate

RUN = memcore.Scenario(model="meta-llama/Llama-3.1-8B", method="full", micro_batch_size=2, sequence_length=1024)


def test_a_preference_pair_is_two_sequences():
    dpo, sft = estimate(RUN.replace(objective="dpo-precomputed")), estimate(RUN.replace(micro_batch_size=4))
    assert dpo.phases == sft.phases


def test_full_dpo_holds_a_frozen_copy_of_the_weights():
    """TRL's DPOTrainer: `ref_model` is a copy of the model unless `precompute_ref_log_probs`; 2 bytes a parameter in 16 bits."""
    with_copy, without = (estimate(RUN.replace(objective=o)).phases["backward_loss"] for o in ("dpo", "dpo-precomputed"))
    assert with_copy["reference"] == 2 * RUN.model.parameters
    assert without["reference"] == 0


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_with_adapters_the_reference_is_the_model_without_them(method):
    run = RUN.replace(method=method)
    assert estimate(run.replace(objective="dpo")).allocated == estimate(run.replace(objective="dpo-precomputed")).allocated


def test_a_reward_model_has_one_output_instead_of_a_vocabulary():
    terms = estimate(RUN.replace(objective="reward"))
    head = RUN.model.vocab_size * RUN.model.hidden_size
    assert terms.trainable_parameters == RUN.model.parameters - head + RUN.model.hidden_size
    for phase in terms.phases.values():
        assert phase["logits"] <= 100 * 4 * 1024  # at most a few numbers a token, where text has 128,256


def test_an_adapted_reward_model_trains_its_head():
    run = RUN.replace(method="lora", objective="reward")
    assert estimate(run).trainable_parameters == estimate(run.replace(objective="sft")).trainable_parameters + RUN.model.hidden_size


def test_the_reference_follows_the_weights_to_the_host():
    run = memcore.Scenario(model="meta-llama/Llama-3.1-8B", method="full", sharding="fsdp", offload="weights", data_parallel_size=8)
    pairs, alone = memcore.estimate(run.replace(objective="dpo")), memcore.estimate(run.replace(objective="dpo-precomputed"))
    assert float(pairs.host - alone.host) == 2 * 8_030_261_248 / 8  # one more 16-bit copy of the model, an eighth of it here


def test_a_reward_head_has_one_row():
    """Adafactor keeps a mean per row and column: 4 x (1 + 4096) bytes more than it keeps for the adapters."""
    run = memcore.Scenario(model="meta-llama/Llama-3.1-8B", method="lora", optimizer="adafactor")
    states = [memcore.estimate(run.replace(objective=o)).phases["optimizer_step"]["optimizer_states"] for o in ("reward", "sft")]
    assert states[0] - states[1] == 4 * (1 + 4096)
