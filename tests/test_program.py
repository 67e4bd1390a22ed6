"""A run's choices are compiled once; its sizes are put in as often as they change."""

import time

import numpy as np
import pytest
from measured_steps import model
from random_runs import readable_models

import memcore
from memcore import catalog, ledger
from memcore.program import compile_run
from memcore.tape import BASIS

LLAMA = model("llama-3.1-8b")


def compiled(**fields):
    run = memcore.Scenario(**{"model": LLAMA, "method": "lora"} | fields)
    return compile_run(run, masked=False, accumulates=False, dropout=run.lora_dropout > 0)


@pytest.mark.parametrize(
    "change",
    [{"micro_batch_size": 3}, {"sequence_length": 100}, {"lora_rank": 7}, {"data_parallel_size": 8}, {"gradient_accumulation_steps": 1}],
)
def test_a_change_of_size_compiles_nothing(change):
    assert compiled(**change) is compiled()


@pytest.mark.parametrize(
    "change", [{"method": "full"}, {"loss": "triton"}, {"lora_dropout": 0.1}, {"optimizer": "sgd"}, {"kernels": "fused"}]
)
def test_a_change_of_kind_does(change):
    assert compiled(**change) is not compiled()


def test_a_moment_is_a_table_of_all_terms_by_sizes():
    c = compiled()
    assert c.events.shape[1:] == (len(ledger.TERMS), len(BASIS))
    assert np.array_equal(c.totals, c.events.sum(axis=1))
    assert len(c.starts) == len(c.phases)


def test_what_is_in_every_phase_is_in_every_phase():
    phases = memcore.estimate(memcore.Scenario(model=LLAMA, method="lora")).phases
    for term in ("weights", "adapters", "optimizer_states", "inputs"):
        assert len({terms[term] for terms in phases.values()}) == 1, term


def test_token_ids_and_labels_are_two_64_bit_integers_a_token():
    run = memcore.Scenario(model=LLAMA, micro_batch_size=3, sequence_length=1000)
    assert memcore.estimate(run).phases["forward"]["inputs"] == 16 * 3000


class TestFSDP:
    """Measured on published FSDP runs: embedding and head stay whole, and the layers at work."""

    ROOT = 2 * 2 * 128256 * 4096
    LAYER = 2 * LLAMA.layers[0].parameters

    def gathered(self, method, **fields):
        run = memcore.Scenario(model=LLAMA, method=method, autocast=False, sharding="fsdp", data_parallel_size=4, **fields)
        return {phase: terms["gathered"] for phase, terms in memcore.estimate(run).phases.items()}

    def test_one_layer_at_the_first_layers_backward_pass_and_two_at_the_last(self):
        sizes = self.gathered("lora")
        assert sizes["backward_first_layer"] == pytest.approx(self.ROOT + self.LAYER, rel=1e-6)
        assert sizes["backward_last_layer"] == pytest.approx(self.ROOT + 2 * self.LAYER, rel=1e-6)

    def test_one_in_full_fine_tuning(self):
        sizes = self.gathered("full")
        assert sizes["backward_last_layer"] == pytest.approx(self.ROOT + self.LAYER, rel=1e-6)

    def test_quantized_layers_are_gathered_packed(self):
        linear = 4 * 4096 * 4096 - 2 * 4096 * 3072 + 3 * 4096 * 14336
        sizes = self.gathered("qlora")
        assert sizes["backward_first_layer"] == pytest.approx(self.ROOT + 0.5 * linear + 2 * 2 * 4096, rel=1e-6)

    @pytest.mark.parametrize(
        ("name", "software"),
        [
            ("openai/gpt-oss-20b", "transformers-5"),  # two kinds of layer
            ("mistralai/Mixtral-8x7B-v0.1", "transformers-5"),
            ("mistralai/Mixtral-8x7B-v0.1", "transformers-4.48"),  # many modules in a layer
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", "transformers-5"),  # layers of different sizes: the largest
        ],
    )
    def test_a_layer_is_a_layer_however_many_modules_it_has(self, name, software):
        m = memcore.model(name)
        run = memcore.Scenario(model=m, method="full", software=software, autocast=False, sharding="fsdp", data_parallel_size=4)
        phases = memcore.estimate(run).phases
        layer = 2 * max(block.parameters for block in m.layers)
        assert phases["forward"]["gathered"] - phases["loss"]["gathered"] == layer

    @pytest.mark.parametrize("sharding", ["none", "zero1", "zero2"])
    def test_nothing_is_gathered_where_weights_are_whole(self, sharding):
        run = memcore.Scenario(model=LLAMA, method="lora", sharding=sharding, data_parallel_size=4)
        assert all(terms["gathered"] == 0 for terms in memcore.estimate(run).phases.values())

    def test_the_buckets_of_zero_are_the_catalogs(self):
        row = catalog.shardings()["zero2"]
        run = memcore.Scenario(model=LLAMA, method="lora", sharding="zero2", data_parallel_size=4)
        assert memcore.estimate(run).phases["forward"]["buckets"] == 2 * row.bucket_elements * row.buckets


def test_an_estimate_of_a_new_size_takes_a_millisecond():
    run = memcore.Scenario(model=LLAMA)
    memcore.estimate(run)
    start = time.perf_counter()
    needs = [memcore.estimate(run.replace(sequence_length=s)).device for s in range(512, 612)]
    assert (time.perf_counter() - start) / len(needs) < 0.005  # five on a busy machine


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_the_catalogs_models_are_told_apart_by_their_shapes(method):
    # the compiled form is kept by model: two models must never share it
    seen = {}
    for m in list(readable_models())[::7]:
        c = compile_run(memcore.Scenario(model=m, method=method), False, False, False)
        assert seen.setdefault(id(c), m) == m


def test_mlx_unpacks_nothing():
    """MLX multiplies packed weights (mx.quantized_matmul); bitsandbytes makes a 16-bit matrix first, the head's not among them."""
    run = memcore.Scenario(model=LLAMA, method="qlora", loss="fused-linear", micro_batch_size=1, sequence_length=128)
    most = {
        q: max(terms["dequantized"] for terms in memcore.estimate(run.replace(quantization=q)).phases.values()) for q in ("mlx-4bit", "nf4")
    }
    assert most == {"mlx-4bit": 0, "nf4": 2 * 4096 * 14336}


def test_after_the_backward_pass_every_parameter_has_one_gradient():
    phases = memcore.estimate(memcore.Scenario(model=LLAMA, method="full")).phases
    assert phases["backward_embedding"]["gradients"] == phases["optimizer_step"]["gradients"] == 2 * 8_030_261_248  # published total
