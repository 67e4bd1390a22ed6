import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import Scenario, ScenarioError
from memcore.scenario import CATALOG_CHOICES, CHOICES, FIELDS, LARGEST, choices, explanations

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture(scope="module")
def run():
    return Scenario(model=LLAMA)


def test_the_defaults_are_a_stock_qlora_run(run):
    assert run.to_dict() == {
        "model": LLAMA,
        "method": "qlora",
        "quantization": "nf4-double-quant",
        "precision": "bf16",
        "autocast": True,
        "adapter_precision": "fp32",
        "optimizer": "adamw_torch",
        "lora_rank": 16,
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
        "modules_to_save": [],
        "micro_batch_size": 4,
        "sequence_length": 4096,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": "full",
        "attention": "flash",
        "loss": "full-logits",
        "kernels": "torch",
        "prepare_kbit": "none",
        "software": "transformers-5",
        "data_parallel_size": 1,
        "sharding": "none",
        "offload": "none",
        "activation_offload": False,
        "tensor_parallel_size": 1,
        "sequence_parallel": False,
        "pipeline_parallel_size": 1,
        "pipeline_schedule": "1f1b",
        "context_parallel_size": 1,
        "objective": "sft",
        "towers": "frozen",
        "image_tokens": 0,
        "gpus_per_node": 8,
    }


def test_a_model_is_an_architecture_or_its_id(run):
    assert run.model is memcore.model(LLAMA)
    assert Scenario(model=memcore.model(LLAMA)) == run
    with pytest.raises(memcore.ScenarioError, match="model .*did you mean meta-llama/Llama-3.1-8B.*config.json"):
        Scenario(model="meta-llama/Llama-3.1-8BB")


def test_every_field_is_explained():
    assert tuple(explanations()) == FIELDS
    assert all(text.rstrip().endswith(".") for text in explanations().values())


@pytest.mark.parametrize(("method", "quantization"), [("qlora", "nf4-double-quant"), ("lora", "none"), ("full", "none")])
def test_the_quantization_left_out_follows_the_method(run, method, quantization):
    assert Scenario(model=LLAMA, method=method).quantization == quantization
    assert run.replace(method=method).quantization == quantization


def test_a_changed_method_brings_its_own_quantization_unless_given(run):
    assert run.replace(quantization="nf4", lora_rank=8).replace(method="qlora").quantization == "nf4"
    assert run.replace(method="lora").replace(method="qlora", quantization="int8").quantization == "int8"


@pytest.mark.parametrize("field", [*CHOICES, *CATALOG_CHOICES])
def test_every_choice_is_accepted_and_any_other_refused(run, field):
    for value in choices(field):
        method = "lora" if (field, value) == ("quantization", "none") else "qlora"
        sharding = {"sharding": "fsdp"} if field == "offload" else {}
        assert getattr(run.replace(**{"method": method, field: value} | sharding), field) == value
    for value in ("nonsense", 3, None, [], choices(field)[:1]):
        with pytest.raises(ScenarioError, match=f"^{field} .*{choices(field)[-1]}"):
            run.replace(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        # what is wrong, and what to write instead
        ("sequence_length", -5, r"sequence_length \(-5\) must be a whole number from 1 to 134217728"),
        ("sequence_length", 0, r"\(0\) must be a whole number from 1"),
        ("sequence_length", 2.5, r"\(2.5\)"),
        ("sequence_length", float("nan"), r"\(nan\)"),
        ("sequence_length", float("inf"), r"\(inf\)"),
        ("sequence_length", 2**27 + 1, r"\(134217729\)"),
        ("micro_batch_size", 1e99, r"\(1e\+99\) must be a whole number from 1 to 1048576"),
        ("micro_batch_size", True, r"\(True\)"),
        ("micro_batch_size", np.array([True]), r"must be a whole number"),
        ("micro_batch_size", "4", r"\('4'\)"),
        ("micro_batch_size", None, r"\(None\)"),
        ("micro_batch_size", np.array([]), r"must be a whole number"),
        ("micro_batch_size", [[1], [2, 3]], r"must be a whole number"),
        ("micro_batch_size", np.array([4, -2]), r"\(-2.0\)"),
        ("micro_batch_size", np.array([4, np.nan]), r"must be a whole number"),
        ("micro_batch_size", 1j, r"must be a whole number"),
        ("lora_rank", 65537, r"from 1 to 65536"),
        ("lora_dropout", 1, r"lora_dropout \(1\) must be a number from 0 up to, not including, 1"),
        ("lora_dropout", -0.1, r"\(-0.1\)"),
        ("lora_dropout", False, r"\(False\)"),
        ("lora_dropout", np.array([0.1, 1.5]), r"\(1.5\)"),
        ("autocast", "True", r"autocast \('True'\) must be True or False"),
        ("autocast", 1, r"autocast \(1\)"),
        ("quantization", "none", r"quantization \('none'\) leaves qlora nothing to do; choose 'nf4-double-quant', or method 'lora'"),
        ("method", "dora", r"must be one of full, lora, qlora; did you mean"),
        ("optimizer", "adamw", r"did you mean adamw_torch"),
        ("lora_target_modules", "q_proj", r"must be 'all-linear' or a tuple of module names"),
        ("lora_target_modules", (), r"at least one name"),
        ("lora_target_modules", (3,), r"tuple of module names"),
        ("lora_target_modules", np.array(["q_proj", "v_proj"]), r"tuple of module names"),
        ("lora_target_modules", ("q_prj",), r"\('q_prj'\): meta-llama/Llama-3.1-8B has q_proj, k_proj, .*down_proj; did you mean q_proj"),
        ("modules_to_save", ("head",), r"has embed_tokens, lm_head; did you mean lm_head"),
        ("modules_to_save", "lm_head", r"tuple of module names"),
        ("modules_to_save", None, r"tuple of module names"),
        ("model", None, r"model \(None\) must be a ModelArchitecture or the id"),
        ("model", 7_000_000_000, r"must be a ModelArchitecture"),
        ("seq_length", 8, r"no field 'seq_length'; did you mean sequence_length"),
    ],
)
def test_nonsense_is_refused_naming_field_value_and_remedy(run, field, value, message):
    with pytest.raises(ScenarioError, match=message):
        run.replace(**{field: value})


def test_integers_too_long_to_print_are_refused_like_any_other(run):
    for value in (10**9000, [10**9000]):
        with pytest.raises(ScenarioError, match="micro_batch_size .a very large number. must be"):
            run.replace(micro_batch_size=value)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_only_qlora_quantizes(method):
    with pytest.raises(ScenarioError, match=rf"\('nf4'\) is for method 'qlora' only; choose 'none', or 'qlora' instead of '{method}'"):
        Scenario(model=LLAMA, method=method, quantization="nf4")


def test_a_full_run_does_not_mind_adapter_fields_of_another_family(run):
    assert run.replace(method="full", lora_target_modules=("query_key_value",)).method == "full"


@pytest.mark.parametrize("field", LARGEST)
def test_whole_numbers_come_in_many_forms(run, field):
    for value in (1, 1.0, np.int64(1), np.float32(1), np.array(1)):
        assert type(getattr(run.replace(**{field: value}), field)) is int
    assert getattr(run.replace(**{field: LARGEST[field]}), field) == LARGEST[field]


def test_module_names_are_a_tuple_without_repeats(run):
    assert run.replace(lora_target_modules=["q_proj", "v_proj", "q_proj"]).lora_target_modules == ("q_proj", "v_proj")


class TestArrays:
    def test_they_broadcast(self, run):
        grid = run.replace(sequence_length=np.array([512, 1024, 2048]), micro_batch_size=np.array([[1], [2]]))
        assert grid.tokens.tolist() == [[512, 1024, 2048], [1024, 2048, 4096]]
        assert grid.replace(gradient_accumulation_steps=8, data_parallel_size=2).global_batch_size.tolist() == [[16], [32]]

    def test_they_are_float64_so_that_squares_do_not_overflow(self, run):
        lengths = run.replace(sequence_length=np.array([131072], dtype=np.int32)).sequence_length
        assert (lengths**2).tolist() == [131072**2]

    def test_they_are_the_scenarios_own_and_cannot_be_changed(self, run):
        mine = np.array([1, 2])
        batches = run.replace(micro_batch_size=mine).micro_batch_size
        mine[0] = 9
        assert batches.tolist() == [1, 2]
        with pytest.raises(ValueError, match="read-only"):
            batches[0] = 9

    def test_shapes_that_do_not_fit_together_are_named(self, run):
        with pytest.raises(ScenarioError, match=r"micro_batch_size \(3,\), sequence_length \(2,\) do not broadcast"):
            run.replace(sequence_length=[1, 2], micro_batch_size=[1, 2, 3])

    def test_they_compare_by_value(self, run):
        a, b = (run.replace(sequence_length=np.array([1, n])) for n in (2, 3))
        assert a == a.replace() and a != b and a != run


def test_equal_runs_hash_alike(run):
    assert hash(run) == hash(run.replace()) and {run: 1}[Scenario(model=LLAMA)] == 1
    assert run != run.replace(lora_rank=8) and run != "a run"


def test_a_run_is_frozen(run):
    with pytest.raises(AttributeError):
        run.lora_rank = 8


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "precision": st.sampled_from(["bf16", "fp32"]),
            "lora_rank": st.integers(1, 65536),
            "lora_dropout": st.floats(0, 0.99),
            "sequence_length": st.integers(1, 2**27) | st.lists(st.integers(1, 2**27), min_size=1, max_size=3),
            "lora_target_modules": st.just("all-linear") | st.lists(st.sampled_from(["q_proj", "v_proj"]), min_size=1),
            "modules_to_save": st.lists(st.sampled_from(["embed_tokens", "lm_head"])),
            "autocast": st.booleans(),
        },
    )
)
def test_a_run_survives_json(fields):
    run = Scenario(model=LLAMA, **fields)
    assert Scenario.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_a_model_outside_the_catalog_is_passed_beside_the_fields(run):
    fields = run.to_dict() | {"model": "my/own"}
    assert Scenario.from_dict(fields, model=run.model) == run


def measured_runs():
    path = Path(__file__).parents[1] / "data" / "measured_runs.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


@pytest.mark.parametrize("name", ["quantization", "precision", "optimizer", "software", *CHOICES])
def test_the_measured_runs_use_only_known_values(name):
    assert {row[name] for row in measured_runs() if row.get(name)} <= set(choices(name))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor_parallel_size": 3}, r"tensor_parallel_size \(3\) does not divide the 32 attention heads"),
        ({"tensor_parallel_size": 0}, r"tensor_parallel_size \(0\) must be one whole number from 1"),
        ({"tensor_parallel_size": True}, r"tensor_parallel_size \(True\) must be one whole number"),
        ({"pipeline_parallel_size": 33}, r"pipeline_parallel_size \(33\) exceeds the 32 layers"),
        ({"sequence_parallel": True}, r"sequence_parallel \(True\) divides tokens among the GPUs of tensor_parallel_size \(1\)"),
        ({"offload": "optimizer"}, r"offload \('optimizer'\) is for sharded runs"),
        ({"offload": "weights", "sharding": "zero2"}, r"offload \('weights'\) needs weights that are sharded"),
        ({"activation_offload": True, "gradient_checkpointing": "none"}, r"activation_offload \(True\) moves the inputs of checkpointed layers"),
    ],
)
def test_ways_of_dividing_that_cannot_be_are_refused_with_the_remedy(run, fields, message):
    with pytest.raises(ScenarioError, match=message):
        run.replace(**fields)


def test_what_others_call_a_value_is_named_by_ours():
    with pytest.raises(memcore.ScenarioError, match="did you mean fsdp"):
        Scenario(model=LLAMA, sharding="zero3")
