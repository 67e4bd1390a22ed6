"""The catalog says what is published, and says it in one shape."""

import json
import re
from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from memcore import catalog, files
from memcore.scenario import Scenario
from memcore.units import GB, GiB, MiB

TABLES = [catalog.devices, catalog.optimizers, catalog.precisions, catalog.quantizations, catalog.software]
TRUTH = Path(__file__).parent / "truth"
RECORDS = list(catalog.model_records().values())
COUNTED = [json.loads(line) for line in (TRUTH / "models.jsonl").read_text(encoding="utf-8").splitlines()]
ROWS = [pytest.param(row, id=f"{table.__name__}: {row.name}") for table in TABLES for row in table().values()]


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_label_a_source_and_a_date(row):
    assert row.label and row.source
    assert date(2026, 1, 1) <= row.checked
    assert row.source.startswith("https://") or "driver log" in row.source or "rule" in row.source


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.__name__)
def test_names_and_labels_are_unique(table):
    rows = list(table().values())
    assert len({row.name for row in rows}) == len({row.label for row in rows}) == len(rows)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.__name__)
def test_a_table_is_read_once(table):
    assert table() is table()


def test_nothing_in_the_data_points_into_a_private_place():
    for path in files.data_folder().rglob("*.*"):
        if path.suffix in (".csv", ".toml", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?:^|[\s\"'(])/(?:home|work|root|Users)/", text), path.name


class TestDevices:
    def test_there_are_at_least_eighty_with_a_driver_figure_seen_in_a_log(self):
        assert sum(device.confidence == "seen-in-log" for device in catalog.devices().values()) >= 80

    @pytest.mark.parametrize(
        ("name", "memory_mib"),
        [
            # nvidia-smi, several logs each; the round numbers 24576, 81920 and 196608 are what test fixtures invent
            ("NVIDIA GeForce RTX 4090", 24564),
            ("NVIDIA H100 80GB HBM3", 81559),
            ("NVIDIA H200", 143771),
            ("NVIDIA B200", 183359),
            ("NVIDIA A100-SXM4-80GB", 81920),
            ("NVIDIA L40S", 46068),  # 48 GB less the sixteenth that ECC takes
            ("Tesla T4", 15360),  # 16 GB less the same
            ("AMD Instinct MI300X", 196592),
        ],
    )
    def test_memory_is_what_the_driver_reports(self, name, memory_mib):
        assert catalog.devices()[name].memory_bytes == memory_mib * MiB

    def test_a_run_may_take_less_than_the_driver_reports(self):
        for device in catalog.devices().values():
            assert 0.4 * device.memory_bytes < device.usable_bytes <= device.memory_bytes, device.name

    @pytest.mark.parametrize(
        ("ram", "usable_mib"),
        # recommendedMaxWorkingSetSize on macOS 15 and older, from llama.cpp and other logs: 2/3 of RAM up to 32 GB, 3/4 from 36
        [(8, 5461), (16, 10922), (32, 21845), (36, 27648), (48, 36864), (64, 49152), (96, 73728), (128, 98304)],
    )
    def test_a_mac_gives_two_thirds_or_three_quarters_of_its_memory(self, ram, usable_mib):
        macs = [device for device in catalog.devices().values() if device.kind == "apple" and device.memory_bytes == ram * GiB]
        assert macs
        assert {mac.usable_bytes for mac in macs} == {usable_mib * MiB}
        assert all(mac.unified for mac in macs)

    def test_one_driver_name_with_several_memories_is_several_devices(self):
        names = [device.name for device in catalog.devices().values() if device.driver_name == "NVIDIA GeForce RTX 3080"]
        assert sorted(names) == ["NVIDIA GeForce RTX 3080 10GB", "NVIDIA GeForce RTX 3080 12GB"]


class TestCustomDevice:
    def test_thirty_six_gb_of_unified_memory_give_twenty_seven(self):
        # published: a unified-memory machine gives about three quarters of its RAM
        assert catalog.custom_device(36, "GB", unified=True).usable_bytes == 27 * GB
        assert catalog.custom_device(36, "GiB", unified=True).usable_bytes == 27 * GiB

    def test_a_card_gives_its_memory_less_what_the_driver_keeps(self):
        # max(650 MiB, 1 %) covers the reserve in all of 35 logs
        assert catalog.custom_device(24, "GiB").usable_bytes == 24 * GiB - 650 * MiB
        assert catalog.custom_device(100, "GiB").usable_bytes == pytest.approx(99 * GiB)

    def test_gb_and_gib_differ(self):
        assert catalog.custom_device(24, "GB").memory_bytes == 24 * GB
        assert catalog.custom_device(24, "GiB").memory_bytes == 24 * GiB

    @pytest.mark.parametrize(
        "amount",
        [0, -3, 0.5, 1e99, float("nan"), float("inf"), 10**400, True, None, "x"],
        ids=lambda amount: str(amount)[:12],
    )
    def test_nonsense_is_refused_by_name_with_a_way_out(self, amount):
        with pytest.raises(ValueError, match=r"^device memory \(.{1,40}\) .* (24 GB|check the unit|give at least .*)$"):
            catalog.custom_device(amount, "GB")

    def test_an_unknown_unit_is_refused(self):
        with pytest.raises(ValueError, match="must be GB or GiB"):
            catalog.custom_device(24, "Gb")


class TestPrecisions:
    @pytest.mark.parametrize(
        ("precision", "optimizer", "total"),
        [
            # bytes per trained parameter at the step: weight + gradient + master copy + moments
            ("bf16", "sgd_momentum", 6),
            ("bf16", "adamw_torch", 8),
            ("bf16-fp32-states", "adamw_torch", 12),
            ("bf16-master", "adamw_torch", 16),  # ZeRO paper, section 3.1
            ("fp16-master", "adamw_torch", 16),
            ("fp32", "adamw_torch", 16),
            ("bf16-master-fp32-grads", "adamw_torch", 18),  # NVIDIA/Megatron-LM#654
        ],
    )
    def test_the_recipes_from_six_to_eighteen_bytes_are_rows(self, precision, optimizer, total):
        p, o = catalog.precisions()[precision], catalog.optimizers()[optimizer]
        assert p.weight_bytes + p.gradient_bytes + p.master_bytes + o.moments * p.moment_bytes == total


class TestQuantizations:
    @pytest.mark.parametrize(
        ("name", "bytes_per_weight"),
        [
            ("nf4-double-quant", 1 / 2 + 1 / 64 + 4 / (64 * 256)),  # QLoRA, section 3: 4.127 bits
            ("nf4", 1 / 2 + 4 / 64),  # QLoRA, section 3: 4.5 bits
            ("int8", 1),
            ("gptq-int4", 1 / 2 + 2.5 / 128),
            ("gptq-int4-no-groups", 1 / 2),
            ("mlx-4bit", 4.5 / 8),  # mlx quantize: 32 bits of scale and bias for each 64 weights
            ("mlx-8bit", 8.5 / 8),
        ],
    )
    def test_a_weight_takes_its_bits_and_a_share_of_its_scales(self, name, bytes_per_weight):
        assert catalog.quantizations()[name].bytes_per_weight == bytes_per_weight


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("table", "name", "meant"),
        [
            (catalog.devices, "RTX 4090", "NVIDIA GeForce RTX 4090"),
            (catalog.devices, "nvidia geforce rtx 409", "NVIDIA GeForce RTX 4090"),
            (catalog.optimizers, "adam_torch", "adamw_torch"),
            (catalog.quantizations, "nf4-double", "nf4-double-quant"),
            (catalog.software, "transformers-4.46", "transformers-4.45"),
        ],
    )
    def test_the_closest_names_are_given(self, table, name, meant):
        with pytest.raises(catalog.UnknownName) as error:
            table()[name]
        assert meant in error.value.closest
        assert repr(name) in str(error.value) and meant in str(error.value)

    def test_a_very_long_name_is_not_repeated_whole(self):
        with pytest.raises(catalog.UnknownName) as error:
            catalog.devices()["x" * 10_000]
        assert len(str(error.value)) < 300

    def test_a_model_is_found_by_any_part_of_its_name(self):
        with pytest.raises(catalog.UnknownName) as error:
            catalog.model("meta-llama/Llama-3.1-8b")
        assert error.value.closest[0] == "meta-llama/Llama-3.1-8B"
        assert "meta-llama/Llama-3.1-8B" in catalog.models()
        assert catalog.models().get("no/such-model") is None


class TestModels:
    """data/models: shapes as in config.json, totals as published."""

    @pytest.mark.parametrize("record", [r for r in RECORDS if r.published_parameters], ids=lambda r: r.id)
    def test_counted_parameters_equal_the_published_total(self, record):
        # the difference is what the published total counts and transformers does not load, itemised in published_note
        assert catalog.models()[record.id].parameters + record.published_difference == record.published_parameters

    @pytest.mark.parametrize("truth", COUNTED, ids=lambda t: t["id"])
    def test_counted_parameters_equal_pytorch(self, truth):
        # transformers 5.24, the class the config names built on the meta device
        model = catalog.models()[truth["id"]]
        assert (model.parameters, model.text_parameters) == (truth["parameters"], truth["text_parameters"])

    @pytest.mark.parametrize("truth", COUNTED, ids=lambda t: t["id"])
    def test_a_record_says_what_config_json_says(self, truth):
        assert catalog.model_records()[truth["id"]].config == truth["config"]

    @pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.id)
    def test_every_record_says_where_it_is_from(self, record):
        assert record.source.startswith("https://") and record.checked >= date(2026, 1, 1)
        assert record.basis in ("read", "table", "recalled")
        assert record.release[:2] == "20" and record.release[4] == "-" and record.license and record.context_length >= 512
        assert bool(record.published_parameters) == bool(record.published_source)
        assert bool(record.published_difference) == bool(record.published_note)

    def test_there_are_more_than_two_hundred(self):
        assert len(catalog.models()) == len(set(catalog.models())) > 200

    def test_the_models_of_every_measured_run_are_there(self):
        assert {run.scenario["model"] for run in catalog.measured_runs().values()} <= set(catalog.models())

    def test_going_over_the_ids_builds_no_model(self):
        fresh = catalog.Models(catalog.model_records())
        assert list(fresh) and not fresh._built

    def test_well_known_families_come_first_and_each_part_newest_first(self):
        order = [(not record.well_known, [-int(part) for part in record.release.split("-")]) for record in RECORDS]
        assert order == sorted(order)

    def test_a_label_is_found_by_id_and_says_the_size(self):
        # 8,030,261,248 parameters on the Hub
        assert catalog.model_records()["meta-llama/Llama-3.1-8B"].label == "meta-llama/Llama-3.1-8B · 8.03 B · 2024-07 · llama3.1 · gated"
        labels = [record.label for record in RECORDS]
        assert len(set(labels)) == len(labels)
        assert all(record.id in record.label for record in RECORDS)


class TestMeasuredRuns:
    """data/measured_runs.csv: what was measured, where, and with which settings."""

    @pytest.mark.parametrize("run", catalog.measured_runs().values(), ids=lambda run: run.id)
    def test_a_run_names_its_source_its_meter_and_only_known_settings(self, run):
        assert run.source and run.address.startswith("https://github.com/") and run.checked >= date(2026, 1, 1)
        assert run.meter in ("allocated", "active", "reserved", "nvidia-smi")
        assert 10**9 < run.measured_bytes < 96 * GB
        assert set(run.scenario) <= {field.name for field in fields(Scenario)}
        assert catalog.software()[run.scenario["software"]] and catalog.quantizations()[run.scenario["quantization"]]
        assert catalog.precisions()[run.scenario["precision"]] and catalog.optimizers()[run.scenario["optimizer"]]

    def test_settings_have_the_types_of_a_scenario(self):
        # fsdp_qlora benchmarks, March 2024: Llama-2-7B, QLoRA, batch 1 at 2048 on two RTX 3090
        scenario = catalog.measured_runs()["FSDPQ-002"].scenario
        assert scenario["sequence_length"] == 2048 and scenario["lora_dropout"] == 0.1 and scenario["autocast"] is False
        assert scenario["lora_target_modules"] == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        assert "modules_to_save" not in scenario
