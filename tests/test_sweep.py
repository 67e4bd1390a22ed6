"""A table of runs says what each run alone says."""

import subprocess
import sys

import numpy as np
import pytest

import memcore
from memcore.scenario import ScenarioError

RUN = memcore.Scenario(model="Qwen/Qwen3-4B", method="lora")


def test_every_combination_is_a_row_and_the_last_field_changes_fastest():
    table = memcore.sweep(RUN, sequence_length=[512, 1024], micro_batch_size=[1, 2, 3])
    assert list(zip(table["sequence_length"], table["micro_batch_size"], strict=True)) == [(s, b) for s in (512, 1024) for b in (1, 2, 3)]


def test_each_row_is_the_estimate_of_its_run():
    table = memcore.sweep(RUN, micro_batch_size=[1, 4], method=["full", "qlora"], sequence_length=np.array([100, 5000]), lora_rank=[8])
    assert len(table) == 8
    for row in table.to_dict("records"):
        fields = {name: row[name] for name in ("micro_batch_size", "method", "sequence_length", "lora_rank")}
        one = memcore.estimate(RUN.replace(**fields))
        assert row["device"] == one.device
        assert row["allocated"] == one.allocated
        assert (row["device_low"], row["device_high"]) == one.device_band
        assert row["peak_phase"] == one.peak_phase
        assert row["trainable_parameters"] == one.trainable_parameters


def test_models_and_modules_can_be_swept_over():
    table = memcore.sweep(RUN, model=["Qwen/Qwen3-0.6B", RUN.model], lora_target_modules=[("q_proj", "v_proj"), "all-linear"])
    assert table["model"].tolist() == ["Qwen/Qwen3-0.6B"] * 2 + ["Qwen/Qwen3-4B"] * 2
    assert table["lora_target_modules"].tolist() == ["q_proj v_proj", "all-linear"] * 2
    assert table["device"].is_monotonic_increasing


def test_no_grid_is_one_row():
    assert memcore.sweep(RUN)["device"].tolist() == [memcore.estimate(RUN).device]


def test_whole_numbers_stay_whole():
    table = memcore.sweep(RUN, sequence_length=np.geomspace(128, 131072, 11).round())
    assert table["sequence_length"].dtype.kind == "i"


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ({"batch": [1]}, "no field 'batch'"),
        ({"sequence_length": []}, "sequence_length"),
        ({"sequence_length": [0]}, "sequence_length"),
        ({"method": ["lora", "dora"]}, "dora"),
    ],
)
def test_a_grid_that_makes_no_sense_is_named(grids, message):
    with pytest.raises(ScenarioError, match=message):
        memcore.sweep(RUN, **grids)


def test_importing_memcore_brings_no_pandas():
    # `import memcore` pulls in neither streamlit nor plotly nor huggingface_hub; pandas costs as much as they do
    code = "import sys, memcore; print({'pandas', 'streamlit', 'plotly', 'huggingface_hub'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"
