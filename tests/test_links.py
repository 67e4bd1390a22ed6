"""A link is a scenario: what is written is read back, and what cannot be read is named, never raised."""

from urllib.parse import parse_qs

import pytest

from memcore import catalog, links
from memcore.scenario import FIELDS


def read(query):
    return links.read(parse_qs(query, keep_blank_values=True))


def test_every_field_of_a_scenario_has_a_control():
    assert set(FIELDS) <= set(links.controls())


def test_nothing_is_written_for_what_is_at_its_default():
    assert links.write({key: control.default for key, control in links.controls().items()}) == ""


CHANGED = {
    "model": "Qwen/Qwen3-8B",
    "device": "NVIDIA H100 80GB HBM3",
    "method": "lora",
    "quantization": "nf4",
    "sequence_length": 3000,
    "micro_batch_size": 9,
    "gradient_checkpointing": "none",
    "lora_dropout": 0.05,
    "lora_target_modules": ("q_proj", "v_proj"),
    "modules_to_save": ("lm_head",),
    "autocast": False,
    "unit": "GB",
    "custom_memory": 36.5,
    "custom_unified": True,
    "custom_parameters": "8.03 B",
}


@pytest.mark.parametrize("key", CHANGED)
def test_what_is_written_is_read_back(key):
    values, notices = read(links.write({key: CHANGED[key]}))
    assert values == {key: CHANGED[key]} and not notices


def test_a_link_with_everything_is_read_back():
    values, notices = read(links.write(CHANGED))
    assert values == CHANGED and not notices


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("method=lora", {"method": "lora"}),
        ("method=LoRA", {"method": "lora"}),  # as the control says it
        ("model=qwen%2Fqwen3-8b", {"model": "Qwen/Qwen3-8B"}),
        ("device=RTX+4090+24+GB", {"device": "NVIDIA GeForce RTX 4090"}),  # the label
        ("device=NVIDIA+GeForce+RTX+4090", {"device": "NVIDIA GeForce RTX 4090"}),  # the name
        ("sequence_length=8K", {"sequence_length": 8192}),
        ("sequence_length=8192", {"sequence_length": 8192}),
        ("lora_target_modules=all-linear", {"lora_target_modules": ()}),
        ("lora_target_modules=q_proj&lora_target_modules=v_proj", {"lora_target_modules": ("q_proj", "v_proj")}),
        ("lora_target_modules=q_proj,v_proj", {"lora_target_modules": ("q_proj", "v_proj")}),
        ("model=Custom&custom_parameters=13B", {"model": links.CUSTOM, "custom_parameters": "13B"}),
    ],
)
def test_a_link_may_say_it_in_several_ways(query, values):
    assert read(query) == (values, [])


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("model=nonsense%2Fllama-3.1-8b-x", "close to"),
        ("sequence_length=-5", "whole number"),
        ("sequence_length=nan", "whole number"),
        ("sequence_length=0", "whole number"),
        ("micro_batch_size=1e99", "whole number"),
        ("micro_batch_size=" + "9" * 5000, "whole number"),
        ("micro_batch_size=", "whole number"),
        ("lora_dropout=inf", "finite"),
        ("lora_dropout=1", "not including"),
        ("custom_memory=nan", "finite"),
        ("autocast=perhaps", "true or false"),
        ("optimizer=adam", "must be one of"),
        ("quantization=none", "must be one of"),
        ("modules_to_save=q_proj", "lm_head"),
        ("unknown=1", "not a control"),
        ("__class__=1", "not a control"),
        ("view=Nowhere", "must be one of"),
    ],
)
def test_what_a_link_gets_wrong_is_named_and_left_out(query, part):
    values, notices = read(query)
    assert values == {} and len(notices) == 1
    assert part in notices[0] and query.split("=")[0] in notices[0] and len(notices[0]) < 500


def test_every_device_is_found_by_name_and_by_label():
    parse = links.controls()["device"].parse
    for device in catalog.devices().values():
        assert parse([device.name]) == parse([device.label]) == device.name


@pytest.mark.parametrize("value", [0, 576, 2**24])
def test_image_tokens_may_be_none_or_many(value):
    assert links.read({"image_tokens": [str(value)]}) == ({"image_tokens": value}, [])


@pytest.mark.parametrize("value", [1 / 3, 0.05000001, 0.9999999])
def test_a_number_is_written_to_its_last_digit(value):
    assert links.read({"lora_dropout": [links.controls()["lora_dropout"].write(value)]}) == ({"lora_dropout": value}, [])
