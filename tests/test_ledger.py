"""What a run holds for its parameters, whatever it computes: weights, adapters, gradients, optimizer states, and who shares them."""

import numpy as np
import pytest

import memcore
from memcore import catalog, ledger
from memcore.architecture import Linear

LLAMA = memcore.model("meta-llama/Llama-2-7b-hf")
P = LLAMA.parameters
LINEAR = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
OUTSIDE = P - LINEAR  # embedding, head and norms
ADAPTERS = 39_976_960  # PEFT prints it for rank 16 on every linear module of Llama 2 7B


def terms(phase="optimizer_step", **fields):
    fields = {"model": LLAMA, "method": "full", "autocast": False, "micro_batch_size": 1, "sequence_length": 512} | fields
    return memcore.estimate(memcore.Scenario(**fields)).phases[phase]


class TestTheTableOfTerms:
    def test_every_term_is_named_explained_and_sourced(self):
        for term in ledger.TERMS:
            assert term.label and term.meaning.endswith(".") and term.formula and term.source

    def test_a_breakdown_has_the_terms_of_the_table_and_no_other(self):
        assert list(terms()) == list(ledger.LEDGER)


class TestWeights:
    @pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp16", 2), ("fp32", 4), ("bf16-master", 2)])
    def test_full_precision_weights(self, precision, width):
        assert terms(precision=precision)["weights"] == width * P

    @pytest.mark.parametrize(
        ("quantization", "bytes_each", "per_row", "per_matrix"),
        [
            # per weight with its scales; QLoRA section 3: 0.5 + 1/64 + 4/(64 * 256) = 0.51587, without double quantization 0.5 + 4/64
            ("nf4-double-quant", 0.5 + 1 / 64 + 4 / (64 * 256), 0, 1024 + 64 + 4),
            ("nf4", 0.5625, 0, 64),
            ("fp4", 0.5625, 0, 64),
            ("int8", 1, 4, 0),  # LLM.int8(): a float32 scale per row
            ("gptq-int4", 0.5 + 2.5 / 128, 0, 0),  # a 16-bit scale and a 4-bit zero point per 128
            ("gptq-int4-no-groups", 0.5, 2.5, 0),
            ("awq-int4", 0.5 + 2.5 / 128, 0, 0),
        ],
    )
    def test_quantized_linear_layers(self, quantization, bytes_each, per_row, per_matrix):
        rows, matrices = 32 * (5 * 4096 + 2 * 11008), 32 * 7
        weights = terms(method="qlora", quantization=quantization)["weights"]
        assert weights == pytest.approx(LINEAR * bytes_each + rows * per_row + matrices * per_matrix + 2 * OUTSIDE, rel=1e-12)

    @pytest.mark.parametrize(("quantization", "bytes_each"), [("mlx-4bit", 0.5625), ("mlx-8bit", 1.0625)])
    def test_mlx_quantizes_embedding_and_head_too(self, quantization, bytes_each):
        norms = (2 * 32 + 1) * 4096
        assert terms(method="qlora", quantization=quantization)["weights"] == pytest.approx((P - norms) * bytes_each + 2 * norms, rel=1e-12)

    @pytest.mark.parametrize(("prepare", "more"), [("none", 0), ("norms-fp32", 2 * 65 * 4096), ("all-fp32", 2 * OUTSIDE)])
    def test_k_bit_preparation_upcasts_what_is_not_quantized(self, prepare, more):
        assert terms(method="qlora", prepare_kbit=prepare)["weights"] - terms(method="qlora")["weights"] == more

    def test_a_tied_head_is_stored_once(self):
        tied = memcore.model("Qwen/Qwen3-4B")
        assert tied.tie_word_embeddings
        assert terms(model=tied)["weights"] == 2 * tied.parameters

    def test_conv1d_is_not_quantized(self):
        # GPT-2's projections are transformers' Conv1D, which bitsandbytes leaves alone
        gpt2 = memcore.model_from_config(
            {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
        )
        assert {m.kind for b in gpt2.layers for m in b.modules if isinstance(m, Linear)} == {"conv1d"}
        assert terms(model=gpt2, method="qlora")["weights"] == 2 * gpt2.parameters


class TestAdapters:
    @pytest.mark.parametrize("method", ["lora", "qlora"])
    @pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
    def test_adapters_gradients_and_moments_have_the_adapters_width(self, method, precision, width):
        at_step = terms(method=method, adapter_precision=precision, optimizer="adamw_torch")
        assert (at_step["adapters"], at_step["gradients"], at_step["optimizer_states"]) == (
            width * ADAPTERS,
            width * ADAPTERS,
            2 * width * ADAPTERS,
        )

    def test_twelve_bytes_per_adapter_parameter_between_steps(self):
        # measured on published runs: float32 weight and two moments; gradients are freed
        forward = terms("forward", method="lora")
        assert forward["adapters"] + forward["optimizer_states"] == 12 * ADAPTERS
        assert forward["gradients"] == 0

    @pytest.mark.parametrize("saved", [("lm_head",), ("embed_tokens",), ("embed_tokens", "lm_head")])
    def test_a_module_to_save_is_a_trained_copy_beside_the_original(self, saved):
        # measured on Qwen's scripts: 8 bytes per saved parameter (2 + 2 + 4), the original stays
        size = len(saved) * 32000 * 4096
        with_it, without = (terms(method="lora", modules_to_save=m, optimizer="adamw_torch") for m in (saved, ()))
        more = {name: with_it[name] - without[name] for name in with_it}
        assert (more["weights"], more["adapters"], more["gradients"], more["optimizer_states"]) == (0, 2 * size, 2 * size, 4 * size)


class TestOptimizerStates:
    @pytest.mark.parametrize(
        ("optimizer", "precision", "bytes_each"),
        [
            ("adamw_torch", "bf16", 4),
            ("adamw_torch", "fp32", 8),
            ("adamw_torch", "bf16-fp32-states", 8),
            ("sgd", "bf16", 0),
            ("sgd_momentum", "bf16", 2),
            ("sgd_momentum", "fp32", 4),
            ("lion_32bit", "bf16", 4),
            ("adamw_bnb_8bit", "bf16", 2 * (1 + 4 / 256)),  # a byte an element, a float32 scale per 256
            ("lion_8bit", "bf16", 1 + 4 / 256),
            ("rmsprop_bnb_8bit", "bf16", 1 + 4 / 256),
            ("paged_adamw_32bit", "bf16", 0),  # in managed memory, outside torch's allocator
            ("paged_adamw_8bit", "bf16", 0),
            ("adafactor", "bf16", 0),  # row and column means only
        ],
    )
    def test_bytes_per_parameter(self, optimizer, precision, bytes_each):
        states = terms(optimizer=optimizer, precision=precision)["optimizer_states"]
        assert states / P == pytest.approx(bytes_each, rel=1e-3, abs=4e-3)

    def test_fused_adamw_keeps_a_step_counter_per_tensor(self):
        # torch.optim.Adam: float32 `step` on the device where fused; 291 tensors in Llama 2 7B
        assert terms(optimizer="adamw_torch_fused")["optimizer_states"] - terms(optimizer="adamw_torch")["optimizer_states"] == 4 * 291

    def test_small_tensors_keep_eight_bit_moments_in_float32(self):
        # bitsandbytes: fewer than 4,096 elements, 8 bytes each for two moments
        small = memcore.model("Qwen/Qwen3-0.6B")
        norms = 28 * (2 * 1024 + 2 * 128) + 1024
        states = terms(model=small, optimizer="adamw_bnb_8bit")["optimizer_states"]
        assert states == pytest.approx((small.parameters - norms) * 2 * (1 + 4 / 256) + 8 * norms, rel=1e-9)

    def test_paged_optimizers_keep_small_tensors_on_the_gpu(self):
        # bitsandbytes: from 100,000 elements; norms (65 of 4,096) stay
        assert terms(optimizer="paged_adamw_32bit")["optimizer_states"] == 8 * 65 * 4096

    def test_small_adapters_are_not_paged(self):
        # bitsandbytes Optimizer2State.get_state_buffer: p.numel() < 1e5 stays on the device
        sides = {m.name: (m.in_features, m.out_features) for b in LLAMA.layers[:1] for m in b.modules if isinstance(m, Linear)}
        resident = 32 * sum(16 * side for pair in sides.values() for side in pair if 16 * side < 100_000)
        assert terms(method="lora", optimizer="paged_adamw_32bit")["optimizer_states"] == 8 * resident

    def test_small_adapters_keep_eight_bit_moments_in_float32(self):
        model = memcore.model("meta-llama/Llama-3.2-1B")
        fields = {"model": model, "method": "lora", "lora_rank": 1, "lora_target_modules": ("q_proj",)}
        assert terms(**fields, optimizer="adamw_bnb_8bit")["optimizer_states"] == 8 * 16 * (2048 + 2048)

    def test_adafactor_keeps_rows_and_columns_in_float32(self):
        matrices = 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008)) + 2 * (32000 + 4096)
        assert terms(optimizer="adafactor")["optimizer_states"] == 4 * (matrices + 65 * 4096)

    def test_galore_keeps_the_layers_moments_on_a_projection(self):
        # Zhao et al. 2024, table 1: 2 n r moments and an m r projection for a matrix of m x n, m <= n; r = 128 in its examples
        matrices = 32 * 128 * (4 * (2 * 4096 + 4096) + 3 * (2 * 11008 + 4096))
        assert terms(optimizer="galore_adamw")["optimizer_states"] == 2 * matrices + 4 * OUTSIDE

    @pytest.mark.parametrize("rank", [1, 64])
    def test_galore_projects_no_adapters(self, rank):
        states = [terms(method="lora", lora_rank=rank, optimizer=name)["optimizer_states"] for name in ("galore_adamw", "adamw_torch")]
        assert states[0] == pytest.approx(states[1], rel=1e-3)

    def test_muon_keeps_one_moment_for_the_layers_matrices(self):
        assert terms(optimizer="muon")["optimizer_states"] == 2 * LINEAR + 4 * OUTSIDE

    @pytest.mark.parametrize("method", ["full", "lora", "qlora"])
    @pytest.mark.parametrize("optimizer", catalog.optimizers())
    def test_no_optimizer_keeps_less_than_nothing(self, method, optimizer):
        assert terms(method=method, optimizer=optimizer)["optimizer_states"] >= 0


class TestTheOptimizerStep:
    def test_foreach_adamw_holds_a_second_copy_of_a_moment(self):
        # measured from 1.1B to 8B: 6 bytes per parameter between steps, 10 at the step
        at_step = terms(optimizer="adamw_torch")
        held = sum(at_step[t] for t in ("weights", "gradients", "optimizer_states", "optimizer_temporaries"))
        assert held == 10 * P
        assert sum(terms("forward", optimizer="adamw_torch")[t] for t in ("weights", "optimizer_states")) == 6 * P

    @pytest.mark.parametrize("optimizer", ["adamw_torch_fused", "sgd", "adamw_bnb_8bit", "paged_adamw_8bit"])
    def test_the_others_allocate_nothing(self, optimizer):
        assert terms(optimizer=optimizer)["optimizer_temporaries"] == 0

    def test_there_are_no_activations_then(self):
        at_step = terms()
        assert all(at_step[name] == 0 for name in ("activations", "checkpoints", "recomputed", "working", "logits", "attention_scores"))


class TestGradients:
    @pytest.mark.parametrize(("precision", "bytes_each"), [("bf16", 2), ("fp32", 4), ("bf16-master", 2), ("bf16-master-fp32-grads", 4)])
    def test_bytes_per_parameter(self, precision, bytes_each):
        assert terms(precision=precision)["gradients"] == bytes_each * P

    def test_they_are_not_there_in_the_forward_pass_of_a_single_micro_batch(self):
        assert terms("forward")["gradients"] == 0

    @pytest.mark.parametrize("method", ["full", "lora", "qlora"])
    def test_accumulating_keeps_them_in_every_phase(self, method):
        run = memcore.Scenario(model=LLAMA, method=method, gradient_accumulation_steps=4)
        phases = memcore.estimate(run).phases
        at_step = phases["optimizer_step"]["gradients"]
        assert at_step > 0
        assert all(terms["gradients"] >= at_step for terms in phases.values())

    def test_a_master_copy_is_four_bytes_per_trained_parameter(self):
        assert terms(precision="bf16-master")["master_weights"] == 4 * P
        assert terms(precision="bf16-master", method="lora", adapter_precision="bf16")["master_weights"] == 4 * ADAPTERS
        assert terms(precision="bf16-master", method="lora", adapter_precision="fp32")["master_weights"] == 0


SHARDED = {
    # ZeRO (Rajbhandari et al. 2019), section 5: which of the model states are divided by N
    "none": set(),
    "zero1": {"master_weights", "optimizer_states"},
    "zero2": {"master_weights", "optimizer_states", "gradients"},
    "fsdp": {"master_weights", "optimizer_states", "gradients", "weights"},
}


@pytest.mark.parametrize("gpus", [1, 2, 7, 64])
@pytest.mark.parametrize("sharding", SHARDED)
def test_sharded_states_are_divided_and_the_others_are_not(sharding, gpus):
    alone = terms(precision="bf16-master")
    shared = terms(precision="bf16-master", sharding=sharding, data_parallel_size=gpus)
    for term in ("weights", "gradients", "master_weights", "optimizer_states"):
        assert shared[term] == pytest.approx(alone[term] / (gpus if term in SHARDED[sharding] else 1), rel=1e-12), term


def test_offloaded_shards_are_on_the_host_instead():
    run = memcore.Scenario(
        model=LLAMA, method="full", precision="bf16-master", autocast=False, data_parallel_size=8, sharding="fsdp-offload"
    )
    b = memcore.estimate(run)
    at_step = b.phases["optimizer_step"]
    assert all(at_step[term] == 0 for term in ("weights", "gradients", "master_weights", "optimizer_states"))
    assert b.host == pytest.approx(16 * P / 8, rel=1e-6)


def test_quantization_scales_are_not_sharded():
    # measured: W = (0.5 P_lin + 2 P_rest)/N + (b - 0.5) P_lin
    n = 4
    scales = LINEAR * (1 / 64 + 4 / (64 * 256)) + 32 * 7 * 1092
    weights = terms("forward", method="qlora", sharding="fsdp", data_parallel_size=n)["weights"]
    assert weights == pytest.approx((0.5 * LINEAR + 2 * OUTSIDE) / n + scales, rel=1e-9)


def test_every_quantization_of_the_catalog_is_smaller_than_16_bits():
    full = terms(method="lora")["weights"]
    for name, row in catalog.quantizations().items():
        if row.family != "none":
            assert 0.2 * full < terms(method="qlora", quantization=name)["weights"] < 0.65 * full, name


def test_arrays_of_ranks_give_what_each_rank_gives():
    ranks = np.array([1, 8, 64])
    many = terms(method="lora", lora_rank=ranks)
    for i, rank in enumerate(ranks):
        one = terms(method="lora", lora_rank=int(rank))
        assert {k: v for k, v in one.items()} == {k: np.broadcast_to(v, 3)[i] for k, v in many.items()}
