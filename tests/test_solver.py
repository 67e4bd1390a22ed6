"""The answer fits and one more does not; whatever a search through everything finds, the solver finds too."""

import random

import numpy as np
import pytest
from random_runs import random_run, readable_models

import memcore
from memcore import solver
from memcore.scenario import LARGEST, ScenarioError
from memcore.units import GB, GiB

MODELS = list(readable_models())
LLAMA = "meta-llama/Llama-3.1-8B"
SCANNED = 3000
"""Sizes a brute-force scan goes through one by one."""


def device(run, **changes):
    return memcore.estimate(run.replace(**changes)).device


@pytest.mark.parametrize("field", solver.FIELDS)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_the_answer_fits_and_one_more_does_not(field, method):
    run = memcore.Scenario(model="Qwen/Qwen3-4B", method=method, micro_batch_size=2, sequence_length=1024)
    budget = device(run) * 1.5
    answer = memcore.largest(run, field, budget)
    assert isinstance(answer, int)
    if field == "lora_rank" and method == "full":
        assert answer == LARGEST["lora_rank"]  # no adapters: any rank fits
    else:
        assert device(run, **{field: answer}) <= budget < device(run, **{field: answer + 1})


@pytest.mark.parametrize("seed", range(4))
def test_a_search_through_every_size_finds_the_same(seed):
    rng = random.Random(seed)
    for _ in range(12):
        run = random_run(rng, MODELS)
        for field in solver.FIELDS:
            budget = device(run, **{field: rng.randint(1, SCANNED)}) * rng.uniform(0.98, 1.02)
            fits = np.broadcast_to(device(run, **{field: np.arange(1, SCANNED + 1)}) <= budget, SCANNED)
            answer = memcore.largest(run, field, budget)
            if answer < SCANNED:
                assert answer == max(np.flatnonzero(fits) + 1, default=0), (run.to_dict(), field, budget)
            else:
                after = min(answer + 1, LARGEST[field])  # a sliding window's other kernel may need less: not every smaller size must fit
                assert device(run, **{field: answer}) <= budget < device(run, **{field: after}) or after == answer, (run.to_dict(), field, budget)


@pytest.mark.slow
def test_the_solver_holds_on_a_thousand_random_runs():
    rng = random.Random(1)
    for _ in range(1000):
        run, field = random_run(rng, MODELS), rng.choice(solver.FIELDS)
        budget = device(run) * 2 ** rng.uniform(-3, 3)
        answer = memcore.largest(run, field, budget)
        around = [n for n in (answer, answer + 1, 2 * answer + 2, 16 * answer + 16) if 1 <= n <= LARGEST[field]]
        assert [bool(device(run, **{field: n}) <= budget) for n in around] == [n == answer for n in around], (run.to_dict(), field, budget)


def test_where_not_even_one_fits_the_answer_is_0():
    run = memcore.Scenario(model=LLAMA, method="full")
    assert [memcore.largest(run, field, 8 * GiB) for field in solver.FIELDS] == [0, 0, 0]


def test_where_everything_fits_the_answer_is_the_largest_size_there_is():
    assert memcore.largest(memcore.Scenario(model=LLAMA), "micro_batch_size", 1e30) == LARGEST["micro_batch_size"]


def test_other_fields_and_the_budget_may_be_arrays():
    lengths, budgets = np.array([512, 1024, 8192]), np.array([16, 24, 80])[:, None] * GB
    run = memcore.Scenario(model=LLAMA, sequence_length=lengths)
    answers = memcore.largest(run, "micro_batch_size", budgets)
    one_by_one = [
        [memcore.largest(run.replace(sequence_length=int(s)), "micro_batch_size", float(b)) for s in lengths] for b in budgets[:, 0]
    ]
    assert answers.tolist() == one_by_one


def test_a_field_that_cannot_be_asked_for_is_named():
    with pytest.raises(ScenarioError, match=r"field \('lora_dropout'\) must be one of micro_batch_size"):
        memcore.largest(memcore.Scenario(model=LLAMA), "lora_dropout", 24 * GB)


# ---- models


def brute_force(run, budget):
    """The largest model of the catalog that fits, by estimating all of them."""
    fitting = []
    for model in MODELS:
        try:
            candidate = run.replace(model=model)
        except ScenarioError:
            continue
        if memcore.estimate(candidate).device <= budget:
            fitting.append(model)
    return max(fitting, key=lambda model: model.parameters, default=None)


@pytest.mark.parametrize("seed", range(5))
def test_a_search_through_the_catalog_finds_the_same_model(seed):
    rng = random.Random(seed)
    structure = random_run(rng, MODELS)
    for _ in range(40):  # 200 scenarios in all; those of one structure share what was compiled
        run = structure.replace(
            micro_batch_size=rng.choice([1, 2, 4, 16]), sequence_length=int(2 ** rng.uniform(4, 14)), lora_rank=rng.choice([4, 16, 64])
        )
        budget = 10 ** rng.uniform(9, 12)
        assert memcore.largest_model(run, budget).model == brute_force(run, budget), (run.to_dict(), budget)


def test_what_the_largest_model_needs_is_its_estimate():
    run = memcore.Scenario(model=LLAMA, method="lora", micro_batch_size=1)
    answer = memcore.largest_model(run, 40 * GB)
    assert answer.needs == device(run, model=answer.model) <= 40 * GB
    assert answer.smallest is None


def test_where_no_model_fits_the_smallest_need_is_told():
    run = memcore.Scenario(model=LLAMA, method="full", sequence_length=8192, micro_batch_size=16)
    answer = memcore.largest_model(run, 4 * GB)
    assert answer.model is None
    assert answer.needs == min(device(run, model=model) for model in MODELS) == device(run, model=answer.smallest)


def test_named_target_modules_pass_over_models_without_them():
    run = memcore.Scenario(
        model="EleutherAI/pythia-1.4b", lora_target_modules=("query_key_value",), micro_batch_size=1, sequence_length=512
    )
    answer = memcore.largest_model(run, 500 * GB)
    assert "query_key_value" in answer.model.lora_targets
    assert answer.model.parameters < memcore.largest_model(run.replace(lora_target_modules="all-linear"), 500 * GB).model.parameters


def test_the_continuous_size_grows_with_the_budget():
    run = memcore.Scenario(model=LLAMA, method="qlora", micro_batch_size=1, sequence_length=1024)
    sizes = [solver.continuous_size(run, gigabytes * GB) for gigabytes in (0.1, 4, 8, 16, 24, 48, 80, 10**6)]
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    assert 10e9 < sizes[3] < 40e9  # 16 GB: above half a byte, below two bytes per parameter with room to spare


def test_a_model_of_the_continuous_size_just_fits():
    run = memcore.Scenario(model=LLAMA, method="lora", micro_batch_size=1, sequence_length=1024)
    size = solver.continuous_size(run, 24 * GB)
    assert device(run, model=solver._custom_model(size)) == pytest.approx(24 * GB, rel=0.05)


def test_no_run_needs_less_than_the_lower_bound():
    rng = random.Random(7)
    for _ in range(300):
        run = random_run(rng, MODELS)
        assert solver.at_least(run) <= device(run), run.to_dict()
    for _ in range(100):  # with little besides the weights on the device
        run = random_run(rng, MODELS, method="full", data_parallel_size=1, pipeline_parallel_size=1, offload="optimizer", sharding="zero2")
        assert solver.at_least(run) <= device(run), run.to_dict()


# ---- devices


def test_the_smallest_device_fits_and_every_smaller_one_does_not():
    run = memcore.Scenario(model=LLAMA)
    answer = solver.smallest_device(run)
    needs = device(run)
    assert needs <= answer.usable_bytes
    assert all(d.usable_bytes < needs or d.usable_bytes >= answer.usable_bytes for d in memcore.devices().values())
    assert solver.smallest_device(run, kinds=("apple",)).kind == "apple"
    assert solver.smallest_device(run.replace(micro_batch_size=2**20)) is None


def test_one_gpu_is_enough_where_the_run_fits_on_one():
    assert solver.fewest_gpus(memcore.Scenario(model="Qwen/Qwen3-0.6B", micro_batch_size=1), memcore.devices()["NVIDIA H200"]) == 1


def test_no_number_of_gpus_helps_where_activations_alone_do_not_fit():
    run = memcore.Scenario(model=LLAMA, micro_batch_size=64, sequence_length=8192)
    assert solver.fewest_gpus(run, memcore.devices()["Tesla T4"]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "full", "gradient_checkpointing": "none"},
        {"loss": "fused-linear", "data_parallel_size": 8, "sharding": "fsdp", "lora_rank": 64},
        {"lora_target_modules": ("q_proj", "v_proj")},
        {"tensor_parallel_size": 2, "data_parallel_size": 4},
        {"objective": "reward"},
    ],
)
def test_the_bounds_of_all_models_at_once_are_those_of_each(changes):
    run = memcore.Scenario(model="meta-llama/Llama-3.1-8B", **changes)
    models, bounds = solver.bounded(run)
    assert len(models) > 100 and list(models) == sorted(models, key=lambda model: -model.parameters)
    for model, bound in zip(models, bounds, strict=True):
        assert bound == pytest.approx(solver.at_least(run.replace(model=model)), rel=1e-12)


@pytest.mark.parametrize("budget", [float("nan"), -1, None, "24", True])
def test_a_budget_is_a_number_of_bytes(budget):
    run = memcore.Scenario(model=LLAMA)
    with pytest.raises(memcore.ScenarioError, match="budget .* must be a number of bytes"):
        memcore.largest(run, "micro_batch_size", budget)
    with pytest.raises(memcore.ScenarioError, match="budget"):
        memcore.largest_model(run, budget)
