"""Mutated configs: whatever is done to them, there is a clean model or a ConfigError, quickly, and nothing else."""

import json
import time
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memcore.architecture import ModelArchitecture
from memcore.configs import ConfigError, lora_fields_from_adapter_config, model_from_config, parse_json

TRUTH = Path(__file__).parent / "truth"
SETTINGS = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@cache
def seeds():
    """One config of each family and of each kind of published model."""
    published = (json.loads(line)["config"] for line in (TRUTH / "models.jsonl").read_text().splitlines())
    defaults = (json.loads(path.read_text()) for path in sorted((TRUTH / "families").glob("*.json")))
    by_type = {config["model_type"]: config for config in (*published, *defaults)}
    return [by_type[name] for name in sorted(by_type)]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.sampled_from([0, -1, 2**31, 10**12, 10**30, 1e308, 0.5, -0.0]),
    st.floats(), st.text(max_size=8), st.sampled_from(["auto", "full_attention", "mamba", "hybrid", "silu", "M*-E", "LLLG"]),
)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=8
)


@st.composite
def mutated(draw):
    """A config with some keys changed, removed or exchanged, at the top or one level down."""
    values = json.loads(json.dumps(draw(st.sampled_from(seeds()))))
    for _ in range(draw(st.integers(1, 4))):
        nested = sorted(key for key, value in values.items() if isinstance(value, dict) and value)
        part = values[draw(st.sampled_from(nested))] if nested and draw(st.booleans()) else values
        keys = sorted(part)
        if not keys:
            continue
        key, action = draw(st.sampled_from(keys)), draw(st.sampled_from(["change", "nudge", "remove", "exchange", "other family"]))
        if action == "change":
            part[key] = draw(JUNK)
        elif action == "nudge" and type(part[key]) is int:
            part[key] += draw(st.integers(-2, 2))
        elif action == "remove":
            del part[key]
        elif action == "exchange":
            other = draw(st.sampled_from(keys))
            part[key], part[other] = part[other], part[key]
        elif action == "other family":
            values["model_type"] = draw(st.sampled_from(seeds()))["model_type"]
    return values


def read(config):
    """The model or None; fails where a refusal is not one sentence, or either takes long."""
    start = time.process_time()
    try:
        model = model_from_config(config)
    except ConfigError as refused:
        sentence = str(refused)
        assert sentence and "\n" not in sentence and len(sentence) < 400
        model = None
    assert time.process_time() - start < 1
    return model


@SETTINGS
@given(mutated())
def test_a_mutated_config_gives_a_clean_model_or_a_refusal(config):
    model = read(config)
    if model is None:
        return
    assert isinstance(model, ModelArchitecture)
    assert 0 < model.text_parameters <= model.parameters <= 10**15
    assert model.layers and model.vocab_size > 0 and model.hidden_size > 0
    for block in model.distinct_layers:
        assert all(m.parameters >= 0 for m in block.modules)
        if block.attention:
            assert block.attention.num_attention_heads % block.attention.num_key_value_heads == 0
            assert 0 <= block.attention.rotary_dim <= block.attention.head_dim
    hash(model)


@SETTINGS
@given(mutated(), st.data())
def test_a_broken_file_is_read_or_refused(config, data):
    text = json.dumps(config)
    start, end = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))
    broken = text[:start] + data.draw(st.sampled_from(["", "}", "]", "\0", "NaN", '"', "é", "{", ","])) + text[end:]
    try:
        values = parse_json(broken)
    except ConfigError as refused:
        assert "\n" not in str(refused)
        return
    read(values)


@SETTINGS
@given(st.dictionaries(st.sampled_from([
    "peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "use_dora", "rank_pattern", "layers_to_transform",
]), JUNK))
def test_any_adapter_config_gives_fields_or_a_refusal(config):
    try:
        fields = lora_fields_from_adapter_config(config)
    except ConfigError:
        return
    assert fields["lora_rank"] > 0
    assert all(isinstance(name, str) for name in fields.get("modules_to_save", ()))
