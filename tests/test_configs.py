"""Counted parameters against PyTorch's, what is read from a config.json, and what is refused.

Expected totals come from transformers 5.24 (models built on the meta device, parameters counted once each), from
published checkpoints, or from papers; never from memcore.
"""

import csv
import json
import time
import tomllib
from pathlib import Path

import pytest

from memcore.architecture import Linear
from memcore.configs import (
    ConfigError,
    checkpoint,
    custom_model,
    lora_fields_from_adapter_config,
    model_from_config,
    model_types,
)

TRUTH = Path(__file__).parent / "truth"
LLAMA = {  # Llama-3.1-8B: 8,030,261,248 parameters
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}


def read_csv(name):
    with open(TRUTH / name, newline="") as file:
        return list(csv.DictReader(file))


def models():
    return [json.loads(line) for line in (TRUTH / "models.jsonl").read_text().splitlines()]


MEASURED = read_csv("parameters.csv")


def config(name):
    return json.loads((TRUTH / "configs" / f"{name}.json").read_text())


# Totals


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["model"])
def test_parameters_equal_pytorchs(row):
    assert model_from_config(config(row["model"])).parameters == int(row["total"])


@pytest.mark.parametrize("row", read_csv("families/params.csv"), ids=lambda row: row["family"])
def test_a_familys_class_defaults_are_counted_exactly(row):
    assert model_from_config(TRUTH / "families" / f"{row['family']}.json").parameters == int(row["parameters"])


@pytest.mark.parametrize("row", models(), ids=lambda row: row["id"])
def test_published_models_are_counted_exactly(row):
    model = model_from_config(row["config"])
    assert (model.parameters, model.text_parameters) == (row["parameters"], row["text_parameters"])


# Counted by PyTorch, transformers 5.24: each configuration class with its defaults, on the meta device.
WITH_CLASS_DEFAULTS = """
    afmoe 19232600000, apertus 6979596352, arcee 4022766080, aria_text 18517069824, axk1 518983052288, bailing_hybrid 124414191072,
    bamba 9992765440, biogpt 346763264, bitnet 2741155840, bloom 16156544, codegen 6050882784, cohere 34980831232, cohere2 34980831232,
    cohere2_moe 190004928512, ctrl 1637964550, cwm 32581097472, deepseek_v2 38612307968, deepseek_v3 671026404352,
    deepseek_v32 671877929216, deepseek_v4 284325869015, diffllama 1204885504, doge 403055872, ernie4_5 360748032,
    ernie4_5_moe 21825437888, exaone 7818448896, exaone4 9429069824, exaone_moe 28550639616, falcon 6921720704, falcon_h1 8514961408,
    falcon_mamba 159308544, flex_olmo 33270665216, flint 39785287456, gemma 8537680896, gemma2 2614341888, gemma3_text 2628658432,
    gemma3n_text 6835235568, gemma4_text 5077177856, gemma4_unified_text 3010758400, glm 9399951360, glm4 9400279040,
    glm4_moe 103481200640, glm4_moe_lite 29943390976, glm_moe_dsa 743911199232, gpt-sw3 124439808, gpt2 124439808, gpt_bigcode 111446784,
    gpt_neo 1315575808, gpt_neox 20554567680, gpt_neox_japanese 2598837760, gpt_oss 116829156672, gptj 6050882784, granite 6738415616,
    granite_swa 2144463840, granitemoe 37039116288, granitemoe_swa 37039117312, granitemoehybrid 38601064448,
    granitemoeshared 37039116288, helium 2172643840, hy_v3 295033528320, hyperclovax 6738677760, internlm3 8804241408,
    iquestcoder 39794283520, jais2 8090401280, jamba 51570323328, jetmoe 4293888000, kimi_linear 49133074464, kolibri1 78103055360,
    laguna 33189975808, lara_mini 7281684672, lfm2 2705497600, lfm3 1728801536, llama 6738415616, llama4_text 107769861120,
    mamba 159308544, mamba2 7285403648, mellum 12149923072, mimo_v2_flash 308778768832, minicpm3 4073875968, minimax 47373946880,
    minimax_m2 228689748992, minimax_m3_vl_text 447186441216, ministral3 8489553920, mistral 7241732096, mixtral 46702792704,
    modernbert-decoder 149655232, mpt 1311213568, nanochat 256573440, olmo 6888095744, olmo2 6888624128, olmo3 6888624128,
    olmo_hybrid 7430870688, olmoe 13361612800, openai-gpt 116534784, opt 125239296, persimmon 9397175296, phi 1418270720, phi3 3821079552,
    phimoe 41872793600, qwen2 12049846272, qwen2_moe 14315784192, qwen3 12049461248, qwen3_5_moe_text 34660610688,
    qwen3_5_text 8953803264, qwen3_moe 15350731776, qwen3_next 79674391296, recurrent_gemma 2010263040, rwkv 7392649216,
    sarvam_mla 106031763456, sarvam_moe 32152648064, seed_oss 28921040896, smollm3 3075098624, solar_open 102651793408,
    stablelm 2795443200, starcoder2 3030371328, vaultgemma 2614222080, xglm 564463616, youtu 1961560064, zamba 7232490496,
    zamba2 2481848336
"""
MULTIMODAL_WITH_CLASS_DEFAULTS = """
    aria 18701885824, deepseek_vl 6720158976, gemma3 2723312896, gemma4 5554675488, glm46v 10292777472, glm4v 10292777472,
    glm4v_moe 104372866880, idefics3 6909685760, internvl 11765025792, lfm2_vl 2812857088, llama4 108225039360, mllama 10642941475,
    qwen2_5_vl 75789228800, qwen2_vl 73381962752, qwen3_5 9407453936, qwen3_vl 12616410352, qwen3_vl_moe 14052070640, smolvlm 6909685760
"""


def totals(text):
    return [(word.split()[0], int(word.split()[1])) for word in text.split(",")]


def name_of(value):
    return value if isinstance(value, str) else ""


@pytest.fixture(scope="module")
def class_defaults():
    return tomllib.loads((Path(__file__).parents[1] / "data" / "config_defaults.toml").read_text())


@pytest.mark.parametrize(("model_type", "expected"), totals(WITH_CLASS_DEFAULTS), ids=name_of)
def test_every_family_is_counted_exactly_with_its_class_defaults(model_type, expected, class_defaults):
    assert model_from_config({"model_type": model_type, **class_defaults[model_type]}).parameters == expected


@pytest.mark.parametrize(("model_type", "expected"), totals(MULTIMODAL_WITH_CLASS_DEFAULTS), ids=name_of)
def test_nested_configs_may_leave_everything_to_the_class_defaults(model_type, expected):
    towers = {"vision_config": {}, "audio_config": {}} if model_type == "gemma4" else {"vision_config": {}}
    assert model_from_config({"model_type": model_type, "text_config": {}, **towers}).parameters == expected


ADAPTERS = [(row, column) for row in MEASURED for column in row if column.startswith("lora_") and row[column]]  # blank: experts, a tower


@pytest.mark.parametrize(("row", "column"), ADAPTERS, ids=[f"{row['model']} {column}" for row, column in ADAPTERS])
def test_the_linear_modules_give_pefts_adapter_sizes(row, column):
    rank, named = int(column.split("_")[1][1:]), row["qv_modules"].split() if column.endswith("qv") else None
    linears = [m for b in model_from_config(config(row["model"])).layers for m in b.modules if isinstance(m, Linear) and m.kind != "router"]
    adapters = sum(rank * (m.in_features + m.out_features) for m in linears if named is None or m.name in named)
    assert adapters == int(row[column])


# What is read


def test_tied_embeddings_are_counted_once():
    tied = model_from_config({**LLAMA, "tie_word_embeddings": True})
    assert model_from_config(LLAMA).parameters == 8_030_261_248  # Meta's model card, safetensors total
    assert 8_030_261_248 - tied.parameters == 128256 * 4096


def test_an_absent_key_means_the_class_default():
    """gpt2's config.json does not say that its head is tied, Gemma's not how wide a head is."""
    assert model_from_config(config("gpt2")).tie_word_embeddings
    gemma = {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
             "num_key_value_heads": 1, "vocab_size": 256000}
    model = model_from_config(gemma)  # gemma-2b: 2,506,172,416 (safetensors total)
    assert (model.layers[0].attention.head_dim, model.parameters) == (256, 2_506_172_416)


def test_null_means_what_the_library_makes_of_it():
    multi_head = model_from_config({**LLAMA, "num_key_value_heads": None, "head_dim": None}).layers[0].attention
    assert (multi_head.num_key_value_heads, multi_head.head_dim) == (32, 128)


@pytest.mark.parametrize("spelling", ["num_experts", "num_local_experts"])
def test_the_library_writes_some_keys_under_another_name(spelling):
    values = config("qwen3-30b-a3b")
    values[spelling] = values.pop("num_experts")
    assert model_from_config(values).parameters == 30_532_122_624  # Qwen3-30B-A3B, safetensors total


def test_a_head_may_be_wider_than_hidden_size_over_heads():
    """Qwen3-4B: 32 heads of 128 in a model 2560 wide."""
    model = model_from_config(config("qwen3-4b"))
    assert (model.layers[0].attention.query_size, model.hidden_size, model.parameters) == (4096, 2560, 4_022_468_096)


WINDOWS = [
    # model, windows of its first layers                               said by
    ("gemma-2-2b", [4096, 0, 4096, 0]),  # every other layer           arXiv:2408.00118, section 2
    ("gemma-3-1b", [512, 512, 512, 512, 512, 0]),  # five to one       arXiv:2503.19786, section 2
    ("gpt-oss-20b", [128, 0, 128, 0]),  # alternating                  arXiv:2508.10925, section 2
    ("mistral-7b-v0.3", [0, 0]),  # sliding_window: null
    ("phi-3-mini-4k", [2047, 2047]),
    ("qwen2.5-7b", [0, 0]),  # use_sliding_window: false
]


@pytest.mark.parametrize(("name", "expected"), WINDOWS)
def test_sliding_windows_are_per_layer(name, expected):
    layers = model_from_config(config(name)).layers
    assert [block.attention.sliding_window for block in layers[: len(expected)]] == expected


def test_a_window_without_a_pattern_is_every_layers():
    """Mistral-7B-v0.1. [arXiv:2310.06825, section 2]"""
    layers = model_from_config({**config("mistral-7b-v0.3"), "sliding_window": 4096}).layers
    assert {block.attention.sliding_window for block in layers} == {4096}


def test_dropout_is_the_librarys_where_the_file_is_silent():
    bare = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    model = model_from_config(bare)
    assert (model.layers[0].attention.dropout, model.layers[0].hidden_dropout, model.embedding_dropout) == (0.1, 0.1, 0.1)
    assert model.parameters == 124_439_808


def test_softcaps_are_read():
    gemma2, gemma3 = model_from_config(config("gemma-2-2b")), model_from_config(config("gemma-3-1b"))
    assert (gemma2.layers[0].attention.softcap, gemma2.final_softcap) == (True, True)
    assert (gemma3.layers[0].attention.softcap, gemma3.final_softcap) == (False, False)


def test_part_of_a_head_is_rotated():
    assert model_from_config(config("pythia-1.4b")).layers[0].attention.rotary_dim == 32  # a quarter of 128
    assert model_from_config(config("glm-4-9b")).layers[0].attention.rotary_dim == 64  # half of 128


def test_equal_layers_are_the_same_object():
    layers = model_from_config(LLAMA).layers
    assert len({id(block) for block in layers}) == 1


def test_qwen_names_two_projections_alike():
    block = model_from_config(config("Qwen--Qwen-14B")).layers[0]
    named = [m for m in block.modules if m.name == "c_proj"]
    assert [(m.role, m.in_features, m.out_features) for m in named] == [("o", 5120, 5120), ("down", 13696, 5120)]


def test_towers_are_counted_apart_from_the_language_model():
    model = model_from_config(config("gemma-3-4b"))
    assert (model.parameters, model.text_parameters) == (4_300_079_472, 3_880_263_168)
    assert model.towers[0].parameters == 419_816_304  # SigLIP-400M and a projector of 2,950,272
    assert 0 < model.towers[0].linear_parameters < model.towers[0].parameters


def test_gemma_3ns_towers_are_what_its_published_total_leaves():
    """keras-hub's total of E4B, 7,850,135,376, less the language model and the keys and values that 15 layers store and do not use."""
    text = next(row["config"] for row in models() if row["id"] == "google/gemma-3n-E4B-it")
    model = model_from_config({"model_type": "gemma3n", "text_config": text, "vision_config": {}, "audio_config": {}})
    unused = 15 * (2 * 2048 * 2 * 256 + 256)  # k, v and the key's norm
    assert model.parameters == 7_850_135_376 - unused


def test_a_shared_block_is_counted_once():
    """Zamba 2: with one more shared block, one more copy of its weights."""
    one = json.loads((TRUTH / "families" / "zamba2.json").read_text())
    h, i = one["hidden_size"], one["intermediate_size"]
    copy = 3 * (2 * h) ** 2 + 2 * h * h + 3 * h * i + 3 * h  # q, k, v and o on twice the width, gate, up and down, two norms
    assert model_from_config({**one, "num_mem_blocks": 2}).parameters - model_from_config(one).parameters == copy


def test_the_files_own_keys_are_kept():
    quantized = {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert dict(model_from_config(quantized).config)["quantization_config"]["quant_method"] == "bitsandbytes"


def test_a_path_a_folder_and_the_text_itself_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for source in (tmp_path / "config.json", str(tmp_path / "config.json"), tmp_path, json.dumps(LLAMA), LLAMA):
        assert model_from_config(source).parameters == 8_030_261_248


def test_measured_families_are_certain_and_others_say_why_not():
    assert model_from_config(LLAMA).uncertain == ()
    assert "not measured" in model_from_config(TRUTH / "families" / "mamba2.json").uncertain[0]
    assert "arcee" in model_from_config(TRUTH / "families" / "arcee.json").uncertain[0]


def test_more_than_a_hundred_model_types_are_known():
    assert len(model_types()) > 100


# What is refused


def without(key):
    return {name: value for name, value in LLAMA.items() if name != key}


REFUSED = [
    ({}, "model_type is missing"),
    ({**LLAMA, "model_type": "lama"}, "model_type ('lama') is not known to memcore (near: llama"),
    ({**LLAMA, "model_type": ["llama"]}, "model_type must be a word"),
    ({"model_type": "bert", "hidden_size": 768}, "model_type ('bert') is an encoder"),
    ({"model_type": "t5", "d_model": 512}, "model_type ('t5') is an encoder-decoder model"),
    ({**LLAMA, "is_encoder_decoder": True}, "is_encoder_decoder (True)"),
    (without("hidden_size"), "hidden_size is missing"),
    (without("num_hidden_layers"), "num_hidden_layers is missing"),
    (without("vocab_size"), "vocab_size is missing"),
    ({**LLAMA, "num_key_value_heads": 5}, "num_attention_heads (32) is not a multiple of num_key_value_heads (5)"),
    ({**LLAMA, "hidden_size": 4100}, "hidden_size (4100) is not a multiple of num_attention_heads (32)"),
    ({**LLAMA, "hidden_size": 0}, "hidden_size (0) must be at least 1"),
    ({**LLAMA, "hidden_size": -4096}, "hidden_size (-4096) must be at least 1"),
    ({**LLAMA, "hidden_size": 4096.5}, "hidden_size (4096.5) must be a whole number"),
    ({**LLAMA, "hidden_size": "4096"}, "hidden_size (4096) must be a whole number"),
    ({**LLAMA, "hidden_size": True}, "hidden_size (True) must be a whole number"),
    ({**LLAMA, "hidden_size": float("nan")}, "hidden_size (nan) must be a whole number"),
    ({**LLAMA, "vocab_size": float("inf")}, "vocab_size (inf) must be a whole number"),
    ({**LLAMA, "hidden_size": 10**12}, "hidden_size (1000000000000) is larger than any model's"),
    ({**LLAMA, "hidden_size": 10**5000}, "hidden_size (a number of thousands of digits)"),
    ({**LLAMA, "num_hidden_layers": 10**9}, "num_hidden_layers (1000000000) is larger than any model's"),
    ({**LLAMA, "attention_dropout": float("nan")}, "attention_dropout (nan) must be a number"),
    ({**LLAMA, "attention_dropout": 10**400}, "attention_dropout (1000000"),
    ({**LLAMA, "attention_dropout": 2.0}, "attention_dropout (2.0) must lie between 0 and 1"),
    ({**LLAMA, "tie_word_embeddings": "yes"}, "tie_word_embeddings (yes) must be true or false"),
    ({**LLAMA, "hidden_act": 3}, "hidden_act (3) must be a word"),
    ({**LLAMA, "model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
    ({**LLAMA, "model_type": "qwen3", "layer_types": ["xyz"] * 32},
     "layer type `xyz` is not known to memcore; parameters can be given as a number instead"),
    ({**LLAMA, "model_type": "qwen3", "layer_types": [None] * 32}, "layer_types holds None, which is not a str"),
    ({**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
     "num_experts_per_tok (3) is larger than num_local_experts (2)"),
    ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}}, "vision_config is missing"),
    ({"model_type": "gemma3", "text_config": {"hidden_size": "wide"}, "vision_config": {}},
     "text_config.hidden_size (wide) must be a whole number"),
    ({"model_type": "gemma3", "text_config": {}, "vision_config": {"model_type": "eva"}},
     "vision_config.model_type ('eva') is not known to memcore"),
    ({"model_type": "qwen", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9, "intermediate_size": 7},
     "intermediate_size (7) must be even"),
    ("config.json of nowhere", "there is no file config.json of nowhere"),
    ("\0", "there is no file '\\x00'"),
    (7, "config.json must be a JSON object or a path to one, not int"),
]


@pytest.mark.parametrize(("source", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_what_is_wrong_is_said_in_one_sentence(source, sentence):
    with pytest.raises(ConfigError) as refused:
        model_from_config(source)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_type_is_read_as_the_class_it_names():
    model = model_from_config({**LLAMA, "model_type": "llama_of_mine", "architectures": ["LlamaForCausalLM"]})
    assert model.parameters == 8_030_261_248
    assert "llama_of_mine" in model.uncertain[0]


HOSTILE = {
    "truncated": (json.dumps(LLAMA)[:60].encode(), "is not valid JSON"),
    "empty": (b"", "is not valid JSON"),
    "a list": (b"[1, 2]", "must be a JSON object, not a list"),
    "binary": (bytes(range(256)), "is not UTF-8 text"),
    "another encoding": (json.dumps(LLAMA).encode("utf-16"), "is not UTF-8 text"),
    "50 MB": (b'{"model_type": "llama", "x": "' + b"a" * 50 * 2**20 + b'"}', "50.0 MiB long"),
    "10,000 levels": (b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested more than 64 levels deep"),
    "100 levels": (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 64 levels deep"),
    "a number of 10,000 digits": (b'{"model_type": "llama", "hidden_size": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
    "a key twice": (b'{"hidden_size": 64, "hidden_size": 128}', "hidden_size is given twice, with different values"),
    "__proto__": (b'{"__proto__": {"model_type": "llama"}}', "model_type is missing"),
    "NaN": (json.dumps({**LLAMA, "hidden_size": float("nan")}).encode(), "hidden_size (nan) must be a whole number"),
    "Infinity": (json.dumps({**LLAMA, "num_hidden_layers": float("inf")}).encode(), "num_hidden_layers (inf) must be a whole number"),
}


@pytest.mark.parametrize(("content", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_at_once(content, sentence, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(ConfigError) as refused:
        model_from_config(path)
    assert sentence in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert time.process_time() - start < 1


def test_a_config_that_holds_itself_is_refused():
    knot = dict(LLAMA)
    knot["a"] = knot["b"] = knot
    with pytest.raises(ConfigError, match="nested more than"):
        model_from_config(knot)


def test_infinity_where_it_means_something_is_not_refused():
    """Mamba 2 writes `time_step_limit: [0.0, Infinity]`."""
    assert "Infinity" in (TRUTH / "families" / "mamba2.json").read_text()


# A plain size


@pytest.mark.parametrize("parameters", [1e6, 3e7, 1.35e8, 5e8, 1e9, 3e9, 7e9, 13e9, 34e9, 70e9, 1.8e11, 1e12, 1e14])
def test_a_plain_size_is_met_to_a_thousandth(parameters):
    assert custom_model(parameters).parameters == pytest.approx(parameters, rel=1e-3)


def test_a_plain_size_looks_like_a_known_model():
    model = custom_model(7e9)
    assert (model.name, model.hidden_size, len(model.layers)) == ("Custom 7.0 B", 4096, 31)  # Llama 3.1 8B: 4096, 32
    assert "guess" in model.uncertain[0]


@pytest.mark.parametrize("parameters", [0, -1, 7, 1e15, float("nan"), float("inf"), 10**400, True, "7B", None, 1j])
def test_a_size_that_is_none_is_refused_with_a_remedy(parameters):
    with pytest.raises(ConfigError, match="for example 7e9 for 7 billion"):
        custom_model(parameters)


# What lies beside a config.json


def test_an_adapter_config_gives_the_lora_fields():
    """As PEFT 0.21 writes it."""
    fields = lora_fields_from_adapter_config({
        "peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "bias": "none", "lora_alpha": 32, "lora_dropout": 0.05,
        "modules_to_save": ["lm_head"], "r": 64, "rank_pattern": {}, "target_modules": ["q_proj", "model.layers.0.self_attn.v_proj"],
        "use_dora": False, "use_rslora": True, "layers_to_transform": None, "task_type": "CAUSAL_LM",
    })
    assert fields == {"method": "lora", "lora_rank": 64, "lora_dropout": 0.05, "lora_target_modules": ("q_proj", "v_proj"),
                      "modules_to_save": ("lm_head",)}


def test_an_adapter_config_without_a_rank_has_pefts():
    assert lora_fields_from_adapter_config({"peft_type": "LORA"}) == {"method": "lora", "lora_rank": 8}


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"peft_type": "IA3"}, "peft_type ('IA3')"),
    ({"r": 0}, "r (0) must be at least 1"),
    ({"r": "all"}, "r (all) must be a whole number"),
    ({"use_dora": True}, "use_dora adds a vector"),
    ({"rank_pattern": {"q_proj": 4}}, "rank_pattern gives modules different ranks"),
    ({"target_modules": ".*_proj"}, "target_modules (.*_proj) is a pattern"),
    ({"target_modules": [3]}, "target_modules holds 3"),
])
def test_an_adapter_config_that_needs_more_is_refused(changes, sentence):
    with pytest.raises(ConfigError) as refused:
        lora_fields_from_adapter_config({"r": 8, "target_modules": ["q_proj"], **changes})
    assert sentence in str(refused.value)


def test_a_checkpoints_index_confirms_the_count():
    """Llama-3.1-8B's model.safetensors.index.json: total_size 16060522496."""
    found = checkpoint(model_from_config(LLAMA), {"metadata": {"total_size": 16060522496}, "weight_map": {}})
    assert found.agrees and found.bytes_per_parameter == 2
    assert not checkpoint(model_from_config({**LLAMA, "num_hidden_layers": 31}), {"metadata": {"total_size": 16060522496}}).agrees
    with pytest.raises(ConfigError, match="metadata.total_size is missing"):
        checkpoint(model_from_config(LLAMA), {})
