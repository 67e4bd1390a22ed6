"""What must hold for any run of any model: nothing here knows a number, only which of two is larger."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_runs import readable_models

import memcore
from memcore import catalog, ledger
from memcore.architecture import Linear
from memcore.estimate import estimate
from memcore.scenario import choices

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a whole model; `note` says which

MODELS = list(readable_models())
DENSE = [m for m in MODELS if all(isinstance(x, Linear) or not hasattr(x, "num_experts") for b in m.distinct_layers for x in b.modules)]
MEASURED = [m for m in MODELS if not m.uncertain]
QUANTIZATIONS = [name for name, row in catalog.quantizations().items() if row.family != "none"]
KEPT = ("activations", "checkpoints", "attention_scores")
"""Terms of what autograd keeps between forward and backward pass."""

some = settings(max_examples=25, deadline=None, derandomize=True)
few = settings(max_examples=15, deadline=None, derandomize=True)


@st.composite
def runs(draw, models=tuple(MODELS), **fixed):
    """A run with every field drawn from what it can be; models of the whole catalog."""
    method = fixed.get("method") or draw(st.sampled_from(choices("method")))
    model = fixed.get("model") or draw(st.sampled_from(models))
    fields = {name: draw(st.sampled_from(choices(name))) for name in CHOSEN if name not in fixed}
    fields |= {
        "model": model,
        "method": method,
        "quantization": draw(st.sampled_from(QUANTIZATIONS)) if method == "qlora" else "none",
        "autocast": draw(st.booleans()),
        "lora_rank": draw(st.integers(1, 256)),
        "lora_dropout": draw(st.sampled_from([0.0, 0.05])),
        "lora_target_modules": draw(
            st.one_of(st.just("all-linear"), st.lists(st.sampled_from(model.lora_targets), min_size=1, unique=True))
        ),
        "modules_to_save": draw(st.sampled_from([(), ("lm_head",), ("embed_tokens", "lm_head")])),
        "micro_batch_size": draw(st.integers(1, 32)),
        "sequence_length": draw(st.integers(16, 16384)),
        "gradient_accumulation_steps": draw(st.sampled_from([1, 4])),
    }
    run = memcore.Scenario(**fields | fixed)
    note(run.to_dict())
    return run


CHOSEN = (
    "precision",
    "adapter_precision",
    "optimizer",
    "gradient_checkpointing",
    "attention",
    "loss",
    "kernels",
    "prepare_kbit",
    "software",
)


def kept(breakdown):
    """Bytes that autograd holds when the forward pass is over."""
    return sum(breakdown.phases["backward_loss"][term] for term in KEPT)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_every_model_of_the_catalog_is_estimated_by_every_method(model, method):
    b = estimate(memcore.Scenario(model=model, method=method, micro_batch_size=1, sequence_length=2048))
    assert np.isfinite(b.allocated) and b.allocated > 0
    assert b.allocated < b.reserved < b.device
    static = 0.5 * model.text_parameters if method == "qlora" else 2 * model.text_parameters
    assert static < b.allocated
    assert 0 < b.trainable_parameters <= model.parameters
    assert b.trainable_parameters == model.parameters - sum(t.parameters for t in model.towers) or method != "full"


class TestTheSum:
    @given(runs())
    @some
    def test_the_terms_of_a_phase_sum_to_the_phase_and_the_largest_phase_is_the_peak(self, run):
        b = estimate(run)
        for phase, terms in b.phases.items():
            assert sum(terms.values()) == pytest.approx(b.totals[phase], rel=1e-12), phase
        assert max(b.totals.values()) == b.allocated == b.totals[b.peak_phase]

    @given(runs())
    @some
    def test_no_total_is_negative_and_none_is_not_a_number(self, run):
        assert all(np.isfinite(total) and total > 0 for total in estimate(run).totals.values())

    @given(runs())
    @some
    def test_no_term_is_negative(self, run):
        for phase, terms in estimate(run).phases.items():
            assert all(size >= 0 for size in terms.values()), phase

    @given(runs())
    @some
    def test_the_allocator_and_the_driver_only_add(self, run):
        b = estimate(run)
        assert b.allocated <= b.reserved <= b.device

    @given(runs(), st.sampled_from([1, 8]))
    @some
    def test_the_band_holds_the_typical_value(self, run, gpus):
        b = estimate(run.replace(data_parallel_size=gpus))
        low, high = b.device_band
        assert b.allocated <= low <= b.device <= high


class TestMore:
    """More of anything never needs less."""

    @given(runs(), st.sampled_from(["micro_batch_size", "sequence_length", "lora_rank"]), st.integers(1, 100))
    @some
    def test_a_larger_run_never_needs_less(self, run, field, more):
        larger = run.replace(**{field: getattr(run, field) + more})
        assert estimate(larger).allocated >= estimate(run).allocated
        assert estimate(larger).device >= estimate(run).device

    @given(runs(), st.integers(1, 3))
    @some
    def test_a_model_with_more_layers_never_needs_less(self, run, more):
        deeper = replace(run.model, layers=run.model.layers + run.model.layers[-1:] * more)
        assert estimate(run.replace(model=deeper)).allocated > estimate(run).allocated

    @given(runs(method="lora", modules_to_save=()))
    @some
    def test_another_target_never_needs_less(self, run):
        names = run.model.lora_targets
        few, more = names[:1], names[:2]
        assert (
            estimate(run.replace(lora_target_modules=more)).trainable_parameters
            >= estimate(run.replace(lora_target_modules=few)).trainable_parameters
        )
        assert estimate(run.replace(lora_target_modules=more)).allocated >= estimate(run.replace(lora_target_modules=few)).allocated

    @given(runs(models=tuple(DENSE), method="lora", modules_to_save=(), lora_target_modules="all-linear"))
    @some
    def test_adapters_of_full_width_are_no_fewer_than_the_matrices_they_stand_for(self, run):
        # rank min(in, out) is the rank of the matrix itself: r (in + out) >= in * out
        linears = [m for b in run.model.layers for m in b.modules if isinstance(m, Linear) and m.kind != "router"]
        wide = run.replace(lora_rank=max(min(m.in_features, m.out_features) for m in linears))
        assert estimate(wide).trainable_parameters >= sum({id(m): m.weight_parameters for m in linears}.values())

    @given(runs(modules_to_save=()))
    @some
    def test_a_saved_module_never_needs_less(self, run):
        run = run.replace(method="lora") if run.method == "full" else run
        assert estimate(run.replace(modules_to_save=("lm_head",))).allocated >= estimate(run).allocated


class TestLess:
    """What saves memory never costs any of what it saves."""

    @given(runs(), st.sampled_from(["full", "full-reentrant"]))
    @some
    def test_checkpointing_never_raises_the_saved_activations(self, run, kind):
        with_it, without = (estimate(run.replace(gradient_checkpointing=c)) for c in (kind, "none"))
        assert kept(with_it) <= kept(without)

    @given(runs(sequence_length=2048))
    @some
    def test_a_fused_loss_never_raises_the_logits(self, run):
        fused, full = (estimate(run.replace(loss=loss)) for loss in ("fused-linear", "full-logits"))
        if run.method != "full" and not run.modules_to_save:  # where the head trains its gradient is made in the forward pass
            assert fused.phases["loss"]["logits"] <= full.phases["loss"]["logits"]

    @given(runs(models=tuple(MEASURED), method="full", gradient_accumulation_steps=1, precision="bf16", prepare_kbit="none"))
    @some
    def test_accumulating_never_needs_less(self, run):
        assert estimate(run.replace(gradient_accumulation_steps=4)).allocated >= estimate(run).allocated

    def test_accumulating_never_needs_less_with_float32_gradients(self):
        run = memcore.Scenario(model="meta-llama/Llama-3.2-1B", method="full", precision="bf16-master-fp32-grads", prepare_kbit="all-fp32")
        run = run.replace(gradient_checkpointing="none", micro_batch_size=1, sequence_length=64, optimizer="sgd")
        assert estimate(run.replace(gradient_accumulation_steps=4)).allocated >= estimate(run).allocated

    @given(runs(method="lora"))
    @some
    def test_qlora_never_stores_more_than_lora(self, run):
        quantized = run.replace(method="qlora", quantization="nf4-double-quant")
        assert estimate(quantized).phases["optimizer_step"]["weights"] <= estimate(run).phases["optimizer_step"]["weights"]

    @given(runs())
    @some
    def test_storing_the_scores_never_needs_less_than_not_storing_them(self, run):
        eager, flash = (estimate(run.replace(attention=a, gradient_checkpointing="none")) for a in ("eager", "flash"))
        assert eager.phases["backward_loss"]["attention_scores"] >= flash.phases["backward_loss"]["attention_scores"]


class TestManyGPUs:
    @given(runs(), st.sampled_from(["zero1", "zero2", "fsdp"]), st.integers(1, 64), st.integers(1, 64))
    @some
    def test_another_gpu_never_raises_a_shard(self, run, sharding, gpus, more):
        few, many = (estimate(run.replace(sharding=sharding, data_parallel_size=n)) for n in (gpus, gpus + more))
        for term in ("weights", "adapters", "gradients", "master_weights", "optimizer_states"):
            assert many.phases["optimizer_step"][term] <= few.phases["optimizer_step"][term]
        assert many.allocated <= few.allocated

    @given(runs(), st.sampled_from(["zero1", "zero2", "fsdp"]))
    @some
    def test_the_shards_of_all_gpus_are_the_whole(self, run, sharding):
        row = catalog.shardings()[sharding]
        one, four = (estimate(run.replace(sharding=sharding, data_parallel_size=n)).phases["optimizer_step"] for n in (1, 4))
        divided = ("master_weights", "optimizer_states") + ("gradients",) * row.shards_gradients + ("adapters",) * row.shards_weights
        for term in divided:
            assert 4 * four[term] == pytest.approx(one[term], rel=1e-12)

    @given(runs())
    @some
    def test_gpus_that_share_nothing_need_what_one_needs(self, run):
        assert estimate(run.replace(data_parallel_size=8)).allocated == estimate(run).allocated

    @given(runs(), st.sampled_from(["zero1", "zero2"]))
    @some
    def test_one_gpu_with_sharding_needs_what_it_needs_without_and_its_buckets(self, run, sharding):
        alone, sharded = (estimate(run.replace(sharding=s)) for s in ("none", sharding))
        buckets = sharded.phases["optimizer_step"]["buckets"]
        assert sharded.phases["optimizer_step"].keys() == alone.phases["optimizer_step"].keys()
        assert sharded.totals["optimizer_step"] - buckets == pytest.approx(alone.totals["optimizer_step"], rel=1e-12)


class TestArraysAndNumbers:
    @given(runs(), st.lists(st.integers(1, 64), min_size=2, max_size=4), st.lists(st.integers(16, 40_000), min_size=1, max_size=3))
    @some
    def test_a_grid_gives_what_each_of_its_runs_gives_to_the_last_bit(self, run, batches, lengths):
        grid = estimate(run.replace(micro_batch_size=np.array(batches), sequence_length=np.array(lengths)[:, None]))
        for i, s in enumerate(lengths):
            for j, b in enumerate(batches):
                one = estimate(run.replace(micro_batch_size=b, sequence_length=s))
                assert (grid.allocated[i, j], grid.reserved[i, j], grid.device[i, j]) == (one.allocated, one.reserved, one.device)
                assert grid.peak_phase[i, j] == one.peak_phase
                assert {name: np.broadcast_to(v, grid.allocated.shape)[i, j] for name, v in grid.totals.items()} == one.totals

    @given(runs(method="lora"), st.lists(st.integers(1, 256), min_size=2, max_size=3))
    @few
    def test_a_range_of_ranks_does_too(self, run, ranks):
        many = estimate(run.replace(lora_rank=np.array(ranks)))
        assert many.allocated.tolist() == [estimate(run.replace(lora_rank=r)).allocated for r in ranks]

    @given(runs(), st.lists(st.integers(1, 8), min_size=2, max_size=3))
    @few
    def test_so_do_gpus_and_accumulation(self, run, numbers):
        many = estimate(run.replace(sharding="fsdp", data_parallel_size=np.array(numbers), gradient_accumulation_steps=np.array(numbers)))
        alone = [run.replace(sharding="fsdp", data_parallel_size=n, gradient_accumulation_steps=n) for n in numbers]
        assert many.allocated.tolist() == [estimate(one).allocated for one in alone]
        assert many.device.tolist() == [estimate(one).device for one in alone]


class TestFormulas:
    @staticmethod
    def evaluated(formula):
        """A formula of the table, worked out: "2 × 16,384 tokens + 24"."""
        total = 0.0
        for part in formula.split(" + "):
            number, _, rest = part.partition(" × ")
            total += float(number.replace(",", "")) * (float(rest.split(" ")[0].replace(",", "")) if rest else 1)
        return total

    @given(runs())
    @few
    def test_a_formula_with_its_numbers_gives_the_bytes_beside_it(self, run):
        frame = estimate(run).to_frame()
        for row in frame.itertuples():
            assert self.evaluated(row.formula) == pytest.approx(row.bytes, rel=1e-3, abs=1000), row.term

    @given(runs())
    @few
    def test_every_row_has_its_meaning_and_source(self, run):
        frame = estimate(run).to_frame()
        assert frame[["label", "meaning", "source", "formula"]].map(bool).all(axis=None)
        assert set(frame["term"]) <= set(ledger.LEDGER)
        assert frame[frame["peak"]]["bytes"].sum() == pytest.approx(estimate(run).allocated, rel=1e-12)
