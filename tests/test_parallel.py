"""More than one GPU: what is divided, what is not, and by whom."""

from dataclasses import replace

import numpy as np
import pytest

import memcore
from memcore import catalog, parallel
from memcore.estimate import estimate, stages
from memcore.layers import Flow
from memcore.program import _flow
from memcore.step import layer_segment
from memcore.tape import BASIS
from memcore.units import GB

LLAMA_70B = "meta-llama/Llama-3.1-70B"
FULL = memcore.Scenario(
    model="meta-llama/Llama-3.1-8B", method="full", precision="bf16-master", autocast=False, micro_batch_size=1, sequence_length=2048
)


def kept_per_token(model, flow: Flow) -> float:
    """Bytes a layer keeps for each token of the batch, what does not grow with tokens left out."""
    kept = layer_segment(model, model.layers[-1], flow, 2, True, False).kept.sum(axis=0)
    return kept[BASIS.index("tokens")]


class TestOnAGptLayerOfKorthikantiEtAl:
    """Korthikanti et al. 2022 (arXiv:2205.05198), section 4: a GPT layer keeps sbh(34 + 5as/h) bytes, sbh(10 + 24/t + 5as/ht)
    under tensor parallelism and sbh(34/t + 5as/ht) with sequence parallelism; the scores are left out here, as by
    FlashAttention. Statistics of the norms (16 bytes a token) and of attention (4 a head) are not in the paper's figures."""

    config = dict(model_type="gpt2", n_embd=2048, n_layer=2, n_head=16, n_positions=1024, vocab_size=50304, activation_function="gelu",
                  attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1)  # fmt: skip
    h, a = 2048, 16

    @pytest.fixture
    def model(self):
        return memcore.model_from_config(self.config)

    def flow(self, model, **fields):
        run = memcore.Scenario(model=model, method="full", autocast=False, gradient_checkpointing="none", **fields)
        names = dict(run.__dict__)
        return _flow(names, False, False, catalog.shardings()["none"])

    def test_a_whole_layer(self, model):
        assert kept_per_token(model, self.flow(model)) == 34 * self.h + 16 + 4 * self.a

    @pytest.mark.parametrize("t", [2, 4, 8])
    def test_tensor_parallel(self, model, t):
        shard = parallel.tensor_parallel(model, t)
        assert kept_per_token(shard, self.flow(model, tensor_parallel_size=t)) == (10 + 24 / t) * self.h + 16 + 4 * self.a / t

    @pytest.mark.parametrize("t", [2, 4, 8])
    def test_sequence_parallel(self, model, t):
        shard = parallel.tensor_parallel(model, t)
        flow = self.flow(model, tensor_parallel_size=t, sequence_parallel=True)
        assert kept_per_token(shard, flow) == 34 / t * self.h + 16 / t + 4 * self.a / t


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallel_shards_hold_the_model_once_and_copy_only_the_norms(t):
    model = memcore.model(LLAMA_70B)
    shard = parallel.tensor_parallel(model, t)
    norms = (2 * 80 + 1) * 8192  # two a layer and the last one
    assert t * shard.parameters == model.parameters + (t - 1) * norms


def test_key_value_heads_are_copied_where_there_are_fewer_than_gpus():
    shard = parallel.tensor_parallel(memcore.model(LLAMA_70B), 16)  # 8 key-value heads
    assert shard.layers[0].attention.num_key_value_heads == 1
    assert shard.layers[0].attention.num_attention_heads == 4


@pytest.mark.parametrize(("layers", "stages_"), [(80, 8), (61, 8), (32, 5), (7, 7)])
def test_every_layer_is_in_one_stage(layers, stages_):
    spans = [parallel.stage_span(layers, i, stages_) for i in range(stages_)]
    assert spans[0][0] == 0 and spans[-1][1] == layers
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
    sizes = [b - a for a, b in spans]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == min(sizes) and sizes[-1] == min(sizes)  # they also hold embedding and head


@pytest.mark.parametrize(("stage", "micro_batches", "held"), [(0, 16, 4), (3, 16, 1), (0, 2, 2), (1, 16, 3)])
def test_a_stage_holds_as_many_micro_batches_as_stages_follow(stage, micro_batches, held):
    assert parallel.in_flight(stage, 4, micro_batches) == held  # 1F1B, Narayanan et al. 2021 (arXiv:2104.04473), section 2.2


class TestPipeline:
    run = FULL.replace(pipeline_parallel_size=4, gradient_accumulation_steps=8)

    def test_stages_hold_the_parameters_of_the_model_once(self):
        states = sum(b.phases["optimizer_step"]["weights"] for b in stages(self.run))
        assert states == estimate(FULL).phases["optimizer_step"]["weights"]

    def test_only_the_last_stage_has_logits_and_only_the_first_an_embedding_gradient(self):
        found = stages(self.run)
        assert ["loss" in b.phases for b in found] == [False, False, False, True]
        assert ["backward_embedding" in b.phases for b in found] == [True, False, False, False]

    def test_the_estimate_is_the_busiest_stage(self):
        assert estimate(self.run).allocated == max(b.allocated for b in stages(self.run))

    def test_the_first_stage_keeps_four_micro_batches_one_by_one_a_single_one(self):
        four, one = (
            stages(self.run.replace(pipeline_schedule=s))[0].phases["backward_last_layer"]["checkpoints"] for s in ("1f1b", "one-by-one")
        )
        assert four == 4 * one > 0

    def test_a_grid_and_its_runs_agree(self):
        grid = estimate(self.run.replace(micro_batch_size=np.array([1, 8]), sequence_length=np.array([[512], [8192]])))
        for i, length in enumerate((512, 8192)):
            for j, batch in enumerate((1, 8)):
                one = estimate(self.run.replace(micro_batch_size=batch, sequence_length=length))
                assert grid.allocated[i, j] == one.allocated and grid.device[i, j] == one.device


class TestZero:
    """ZeRO (Rajbhandari et al. 2019, arXiv:1910.02054), figure 1: 7.5B parameters, 64 GPUs, K = 12 bytes of optimizer state."""

    @pytest.mark.parametrize(("sharding", "expected"), [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("fsdp", 1.9)])
    def test_states_of_one_gpu(self, sharding, expected):
        model = replace(memcore.configs.custom_model(7_500_000_000))
        run = memcore.Scenario(
            model=model,
            method="full",
            precision="fp16-master",
            autocast=False,
            optimizer="adamw_torch_fused",
            sharding=sharding,
            data_parallel_size=64,
        )
        terms = estimate(run).phases["optimizer_step"]
        states = sum(terms[k] for k in ("weights", "gradients", "master_weights", "optimizer_states"))
        assert states / GB * 7.5e9 / model.parameters == pytest.approx(expected, abs=0.05)

    @pytest.mark.parametrize("sharding", ["zero1", "zero2", "fsdp"])
    def test_the_sum_over_gpus_of_what_is_divided_is_what_one_gpu_holds(self, sharding):
        table = catalog.shardings()[sharding]
        divided = ["optimizer_states", "master_weights"] + ["gradients"] * table.shards_gradients + ["weights"] * table.shards_weights
        one = estimate(FULL).phases["optimizer_step"]
        for n in (1, 2, 7, 64):
            terms = estimate(FULL.replace(sharding=sharding, data_parallel_size=n)).phases["optimizer_step"]
            for key in divided:
                assert n * terms[key] == pytest.approx(one[key], rel=1e-12), (key, n)

    def test_hybrid_sharding_divides_within_a_node(self):
        hybrid = estimate(FULL.replace(sharding="hsdp", data_parallel_size=32, gpus_per_node=8))
        assert hybrid.allocated == estimate(FULL.replace(sharding="fsdp", data_parallel_size=8)).allocated

    @pytest.mark.parametrize("method", ["full", "lora", "qlora"])
    def test_one_gpu_and_nothing_sharded_is_the_single_gpu_estimate(self, method):
        run = FULL.replace(method=method, precision="bf16")
        alone, again = (
            estimate(run),
            estimate(run.replace(sharding="none", data_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1)),
        )
        assert again.phases == alone.phases

    def test_zero_on_one_gpu_differs_by_its_buckets(self):
        """As in Qwen's published Q-LoRA runs (ZeRO-2 on one GPU): two buckets of 2e8 16-bit elements, 0.8 GB."""
        run = FULL.replace(method="lora", precision="bf16")
        assert estimate(run.replace(sharding="zero2")).totals["optimizer_step"] - estimate(run).totals["optimizer_step"] == 0.8 * GB


class TestOffload:
    def test_deepspeeds_estimator_for_zero2_with_offload_is_two_bytes_a_parameter(self):
        """DeepSpeed `estimate_zero2_model_states_mem_needs` (runtime/zero/stage_1_and_2.py): 2P on the GPU with the optimizer offloaded."""
        run = FULL.replace(sharding="zero2", offload="optimizer", data_parallel_size=8)
        terms = estimate(run).phases["optimizer_step"]
        states = sum(terms[k] for k in ("weights", "gradients", "master_weights", "optimizer_states"))
        assert states == 2 * run.model.parameters

    def test_what_leaves_the_gpu_arrives_in_host_memory(self):
        run = FULL.replace(sharding="fsdp", data_parallel_size=8)
        here, there = estimate(run).phases["optimizer_step"], estimate(run.replace(offload="weights"))
        moved = sum(here[k] - there.phases["optimizer_step"][k] for k in ("weights", "gradients", "master_weights", "optimizer_states"))
        assert there.host == pytest.approx(moved)
        assert estimate(run).host == 0

    def test_offloaded_layer_inputs_leave_two_on_the_gpu(self):
        run = FULL.replace(activation_offload=True)
        layer = 2 * run.tokens * run.model.hidden_size
        phases = estimate(run).phases
        assert phases["backward_loss"]["checkpoints"] == 2 * layer
        assert estimate(FULL).phases["backward_loss"]["checkpoints"] == 32 * layer == estimate(run).host


def test_context_parallel_divides_the_tokens():
    long = FULL.replace(sequence_length=8192)
    divided = estimate(long.replace(context_parallel_size=4)).phases["backward_loss"]
    assert divided == estimate(long.replace(sequence_length=2048)).phases["backward_loss"]


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "fsdp", "hsdp", "fsdp-offload"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_more_gpus_never_raise_a_sharded_term(sharding, method):
    run = FULL.replace(method=method, precision="bf16", sharding=sharding, data_parallel_size=np.array([1, 2, 4, 8, 64, 512]))
    for phase, terms in estimate(run).phases.items():
        for key, size in terms.items():
            first = 1 if key == "gathered" else 0  # one GPU has nothing to gather
            assert (np.diff(np.broadcast_to(size, 6)[first:]) <= 0).all(), (phase, key)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_fsdp_on_one_gpu_is_no_sharding(method):
    """torch/distributed/fsdp: a world of one is switched to NO_SHARD."""
    run = memcore.Scenario(model="meta-llama/Llama-3.1-8B", method=method)
    assert memcore.estimate(run.replace(sharding="fsdp")).allocated == memcore.estimate(run).allocated
    assert memcore.estimate(run.replace(sharding="fsdp", offload="weights")).phases["forward"]["gathered"] > 0
