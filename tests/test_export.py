"""The CSV: it carries the scenario, reads back to the same numbers, and a spreadsheet runs none of its cells."""

import csv
import io
from dataclasses import replace

import pandas as pd
import pytest

from memcore import catalog, estimate, export, summary
from memcore.configs import custom_model
from memcore.scenario import FIELDS, Scenario


@pytest.fixture
def run():
    return Scenario(model="meta-llama/Llama-3.1-8B", method="lora", lora_target_modules=("q_proj", "v_proj"))


@pytest.fixture
def device():
    return catalog.devices()["NVIDIA GeForce RTX 4090"]


@pytest.fixture
def table(run, device):
    return export.with_scenario(summary.terms(estimate(run)), run, device)


def cells(data):
    return list(csv.DictReader(io.StringIO(data.decode())))


def test_the_terms_add_up_to_what_the_run_needs(run, table):
    rows = cells(export.to_csv(table))
    assert sum(float(row["bytes"]) for row in rows) == pytest.approx(float(estimate(run).device), rel=1e-12)
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    assert all(float(row["gib"]) * 2**30 == pytest.approx(float(row["bytes"])) for row in rows)


def test_every_row_carries_the_whole_scenario_and_the_device(run, device, table):
    for row in cells(export.to_csv(table)):
        assert {field: row[field] for field in FIELDS} == {
            name: " ".join(value) if isinstance(value, list) else str(value) for name, value in run.to_dict().items()
        }
        assert row["device"] == device.name and float(row["device_usable_bytes"]) == device.usable_bytes


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x","y")', "\t=1", "\r=1", " =1", "=cmd|' /C calc'!A0"]
)
def test_no_cell_is_run_as_a_formula(text):
    data = export.to_csv(pd.DataFrame({text: [text, 1]}))
    for row in csv.reader(io.StringIO(data.decode())):
        assert not row[0].startswith(export.RUNS_IN_A_SPREADSHEET)


def test_negative_numbers_stay_numbers():
    assert b"\r\n-1.5\r\n" in export.to_csv(pd.DataFrame({"spare": [-1.5]}))


def test_signs_that_an_old_spreadsheet_garbles_are_written_in_ascii(table):
    assert export.to_csv(table).isascii()


def test_other_letters_come_with_the_mark_a_spreadsheet_needs():
    data = export.to_csv(pd.DataFrame({"model": ["模型"]}))
    assert data.startswith(b"\xef\xbb\xbf") and pd.read_csv(io.BytesIO(data))["model"][0] == "模型"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("meta-llama/Llama-3.1-8B", "memcore-Llama-3.1-8B-qlora.csv"),
        ("../../etc/pa ss\x00wd", "memcore-pa-ss-wd-qlora.csv"),
        ("模型", "memcore-model-qlora.csv"),
    ],
)
def test_the_file_is_named_after_the_run(name, file):
    assert export.file_name(Scenario(model=replace(custom_model(1e9), name=name))) == file


@pytest.mark.parametrize("text", ["\u200b=1+1", "\ufeff=1+1", "\x00=1+1", "\n=1+1"])
def test_what_cannot_be_seen_does_not_hide_a_formula(text):
    assert b"'=1+1" in export.to_csv(pd.DataFrame({"a": [text]}))
