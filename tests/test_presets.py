"""The set-ups that open with one click."""

import pytest

import memcore
from memcore.presets import presets

PRESETS = list(presets().values())


def test_there_are_eight_of_every_class():
    assert len(PRESETS) == 8
    assert {preset.run.method for preset in PRESETS} == {"full", "lora", "qlora"}
    assert any(preset.device.unified for preset in PRESETS)
    assert any(preset.run.data_parallel_size == 8 for preset in PRESETS)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
class TestAPreset:
    def test_names_rows_of_the_catalog(self, preset):
        assert preset.device is memcore.devices()[preset.device.name]
        assert preset.run.model is memcore.model(preset.settings["model"])

    def test_fits_on_its_device(self, preset):
        assert memcore.estimate(preset.run).device <= preset.device.usable_bytes

    def test_says_only_what_differs_from_the_defaults(self, preset):
        defaults = memcore.Scenario(model=preset.run.model)
        needless = {name for name, value in preset.settings.items() if name not in ("model", "method") and value == getattr(defaults, name)}
        assert not needless - {"lora_rank", "micro_batch_size", "sequence_length", "optimizer"}  # those that make the set-up plain

    def test_says_where_it_is_from(self, preset):
        assert preset.source.startswith("https://") and preset.checked and preset.notes


def test_an_unknown_preset_is_named():
    with pytest.raises(memcore.UnknownName, match="colab-t4"):
        presets()["colab-t5"]
