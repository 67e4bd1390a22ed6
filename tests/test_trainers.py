"""Trainers' files: what their keys and defaults mean, that nothing is lost on the way back, and that bad input ends in one sentence."""

import time
import tomllib
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import Scenario, TrainerFileError, read_trainer_file, write_trainer_file
from memcore.scenario import FIELDS, choices
from memcore.trainers import WRITABLE, trainers

FOLDER = Path(__file__).parent / "trainer_files"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix != ".toml")
EXPECTED, DEFAULTS, CONTRADICTIONS, MEANINGS = (
    tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")) for name in ("expected", "defaults", "contradictions", "meanings")
)
DEFAULTS, CONTRADICTIONS, MEANINGS = DEFAULTS["default"], CONTRADICTIONS["contradiction"], MEANINGS["meaning"]
MODEL_KEYS = {"base_model", "model_name", "model", "model_name_or_path"}
CHOSEN = memcore.scenario.CHOICES | memcore.scenario.CATALOG_CHOICES


class TestFiles:
    """Configurations as people have them."""

    def test_there_are_five_for_each_trainer(self):
        for trainer in WRITABLE:
            assert sum(name.startswith(f"{trainer}-") for name in FILES) >= 5, trainer

    @pytest.mark.parametrize("name", FILES)
    def test_a_file_means_what_its_trainer_does_with_it(self, name):
        read = read_trainer_file((FOLDER / name).read_bytes())
        expected = dict(EXPECTED[name])
        assert read.trainer == expected.pop("trainer")
        found = read.scenario.to_dict()
        assert {field: found[field] for field in expected} == expected

    @pytest.mark.parametrize("name", FILES)
    def test_every_key_is_used_or_listed_with_a_reason(self, name):
        read = read_trainer_file((FOLDER / name).read_bytes())
        assert all(item.reason for item in read.unused)
        assert not {item.key for item in read.unused} & {item.key for item in read.used}
        assert not [item for item in read.unused if item.reason.startswith("not known")]

    @pytest.mark.parametrize("name", FILES)
    def test_in_out_and_in_again_is_the_same_scenario(self, name):
        run = read_trainer_file((FOLDER / name).read_bytes()).scenario
        trainer = EXPECTED[name]["trainer"]
        text = write_trainer_file(run, trainer)
        again = read_trainer_file(text)
        assert again.trainer == trainer
        assert again.scenario == run

    @pytest.mark.parametrize("name", FILES)
    def test_a_file_can_be_moved_to_every_other_trainer(self, name):
        run = read_trainer_file((FOLDER / name).read_bytes()).scenario
        for trainer in WRITABLE:
            if trainer == "torchtune" and run.model.name not in trainers()["torchtune"].values["builders"].values():
                with pytest.raises(TrainerFileError, match="no builder"):
                    write_trainer_file(run, trainer)
            else:
                assert read_trainer_file(write_trainer_file(run, trainer)).scenario == run


class TestDefaults:
    """A file of a trainer gives the numbers that trainer's defaults imply."""

    @pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row["trainer"])
    def test_a_key_that_is_absent_takes_the_documented_default(self, row):
        read = read_trainer_file(row["text"])
        assert read.trainer == row["trainer"] and row["source"]
        found = read.scenario.to_dict()
        assert {field: found[field] for field in row["expected"]} == row["expected"]

    @pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row["trainer"])
    def test_what_was_assumed_is_listed_with_its_source(self, row):
        read = read_trainer_file(row["text"])
        assert read.assumed and all(item.source for item in read.assumed)
        assert not {item.key for item in read.assumed} & {item.key for item in read.used} - MODEL_KEYS

    @pytest.mark.parametrize("name", list(trainers()))
    def test_every_default_of_a_table_has_a_source(self, name):
        table = trainers()[name]
        assert table.source.startswith("https://") and table.checked and table.version
        for key in table.keys.values():
            assert key.default is None or key.source, key.name
            assert key.field or key.decides, key.name
            assert not key.field or key.field in FIELDS, key.name
            assert not key.values or key.values in table.values, key.name
        assert table.software in choices("software")
        assert set(table.elsewhere) <= set(FIELDS)

    def test_every_value_a_table_translates_to_is_one_a_scenario_has(self):
        known = {value for field in CHOSEN for value in choices(field)}
        for table in trainers().values():
            for name, values in table.values.items():
                assert name == "builders" or set(values.values()) <= known, (table.name, name)
        assert set(trainers()["torchtune"].values["builders"].values()) <= set(memcore.models())


class TestMeaning:
    """Single keys, where trainers differ."""

    @pytest.mark.parametrize("row", MEANINGS, ids=lambda row: f"{row['field']}-{row['expected']}")
    def test_a_key_means(self, row):
        assert read_trainer_file(row["text"]).scenario.to_dict()[row["field"]] == row["expected"]

    def test_fewer_layers_than_the_model_has_are_said_not_followed(self):
        read = read_trainer_file("model: Qwen/Qwen3-4B\nfine_tune_type: lora\nnum_layers: 8")
        assert any("last 8 layers" in note and "all 36" in note for note in read.notes)
        assert [item.key for item in read.unused] == ["num_layers"]

    def test_a_model_outside_the_catalog_is_named_and_can_be_given(self):
        text = "base_model: somebody/new-model-9b\nadapter: lora\nlora_r: 8\nlora_target_linear: true"
        read = read_trainer_file(text)
        assert read.scenario is None and read.scenario_fields["lora_rank"] == 8
        assert any("somebody/new-model-9b" in note and "not in the catalog" in note for note in read.notes)
        assert read_trainer_file(text, model="Qwen/Qwen3-4B").scenario.model.name == "Qwen/Qwen3-4B"
        assert read_trainer_file(text, model=memcore.model("Qwen/Qwen3-4B")).scenario.method == "lora"

    def test_an_unknown_key_comes_with_the_one_it_looks_like(self):
        read = read_trainer_file("base_model: Qwen/Qwen3-4B\nsequence_len: 64\nmicro_batchsize: 3")
        assert [(item.key, item.reason) for item in read.unused] == [
            ("micro_batchsize", "not known to memcore; did you mean micro_batch_size?")
        ]

    def test_what_a_scenario_cannot_say_is_listed_first(self):
        read = read_trainer_file("base_model: Qwen/Qwen3-4B\nsequence_len: 64\nseed: 1\ntorch_compile: true\nrl: dpo")
        assert [item.key for item in read.unused] == ["torch_compile", "rl", "seed"]

    def test_the_trainer_can_be_named(self):
        text = "model_name_or_path: Qwen/Qwen3-4B\nper_device_train_batch_size: 2"
        assert read_trainer_file(text, trainer="llama-factory").scenario.method == "lora"
        assert read_trainer_file(text, trainer="trl").scenario.method == "full"


SCENARIOS = {field: st.sampled_from(choices(field)) for field in CHOSEN}
SCENARIOS |= {
    "autocast": st.booleans(),
    "lora_rank": st.integers(1, 512),
    "lora_dropout": st.sampled_from([0.0, 0.05, 0.1]),
    "micro_batch_size": st.integers(1, 64),
    "sequence_length": st.integers(1, 2**20),
    "gradient_accumulation_steps": st.integers(1, 64),
    "data_parallel_size": st.sampled_from([1, 2, 8, 64]),
    "modules_to_save": st.sampled_from([(), ("lm_head",), ("embed_tokens", "lm_head")]),
}


MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "google/gemma-2-2b", "microsoft/Phi-3-mini-4k-instruct")


@st.composite
def scenarios(draw):
    fields = draw(st.fixed_dictionaries(SCENARIOS))
    model = memcore.model(draw(st.sampled_from(MODELS)))
    if fields["method"] != "qlora":
        fields["quantization"] = "none"
    elif fields["quantization"] == "none":
        fields["quantization"] = "int8"
    chosen = draw(st.lists(st.integers(0, 6), max_size=7))
    targets = tuple(dict.fromkeys(model.lora_targets[i % len(model.lora_targets)] for i in chosen))
    fields["activation_offload"] = fields["gradient_checkpointing"] != "none" and draw(st.booleans())
    if fields["sharding"] == "none":
        fields["offload"] = "none"
    elif fields["offload"] == "weights" and not fields["sharding"].startswith(("fsdp", "hsdp")):
        fields["offload"] = "optimizer"
    return Scenario(model=model, lora_target_modules=targets or "all-linear", **fields)


class TestWriting:
    """A file to start from: it reads back as the same Scenario, whatever the trainer can say."""

    @pytest.mark.parametrize("trainer", WRITABLE)
    @settings(max_examples=60, deadline=None)
    @given(run=scenarios())
    def test_reading_back_gives_the_same_scenario(self, trainer, run):
        back = read_trainer_file(write_trainer_file(run, trainer))
        assert back.trainer == trainer
        assert back.scenario == run

    def test_what_the_trainer_cannot_say_stands_in_a_comment_with_what_it_would_do(self):
        run = Scenario(
            model="Qwen/Qwen2.5-7B", method="lora", loss="chunked", gradient_checkpointing="full-reentrant", attention="flash-attn", data_parallel_size=4
        )
        lines = write_trainer_file(run, "mlx-lm").splitlines()
        assert '# memcore: loss = "chunked"  # full-logits; loss is MLX\'s cross-entropy of all logits' in lines
        assert any(line.startswith("# memcore: data_parallel_size = 4") and "mlx.launch" in line for line in lines)
        assert not [
            line for line in write_trainer_file(run.replace(data_parallel_size=1), "trl").splitlines() if line.startswith("# memcore:")
        ]

    def test_a_run_that_trl_can_say_whole_has_no_comment(self):
        run = Scenario(model="meta-llama/Llama-3.1-8B", method="qlora", adapter_precision="bf16", optimizer="paged_adamw_8bit", attention="flash-attn")
        assert "# memcore:" not in write_trainer_file(run, "trl")

    def test_a_model_outside_the_catalog_is_passed_beside_the_file(self):
        from dataclasses import replace

        model = replace(memcore.model("Qwen/Qwen3-4B"), name="mine/own")
        run = Scenario(model=model, method="lora")
        assert read_trainer_file(write_trainer_file(run, "axolotl"), model=model).scenario == run

    def test_the_name_a_quantized_mlx_checkpoint_gets_is_found_again(self):
        from memcore.trainers.models import _find, stored_as

        for id in memcore.models():
            stem, stored = stored_as(f"mlx-community/{id.rpartition('/')[2]}-4bit")
            found = _find(stem)
            assert stored == "mlx-4bit"
            assert memcore.catalog.model_records()[found].config == memcore.catalog.model_records()[id].config, id

    def test_a_grid_is_no_run(self):
        with pytest.raises(TrainerFileError, match="sequence_length holds several values"):
            write_trainer_file(Scenario(model="Qwen/Qwen3-4B", sequence_length=[1024, 2048]), "trl")

    def test_an_unknown_trainer_is_answered_with_the_known_ones(self):
        with pytest.raises(TrainerFileError, match="axolotl"):
            write_trainer_file(Scenario(model="Qwen/Qwen3-4B"), "axolotls")
        with pytest.raises(TrainerFileError, match="must be one of"):
            read_trainer_file("a: 1", trainer="nonsense")


@pytest.mark.parametrize("row", CONTRADICTIONS, ids=lambda row: row["match"][:30])
def test_a_contradiction_names_key_value_and_remedy(row):
    with pytest.raises(TrainerFileError, match=row["match"]):
        read = read_trainer_file(row["text"])
        if read.notes and "missing" in read.notes[0]:  # half a file is no error: the model is asked for
            raise TrainerFileError("base_model")


def bomb(levels=9, width=9):
    lines = ["a0: &a0 [lol, lol]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


BAD = {
    "yaml bomb": bomb(),
    "merge bomb": "a: &a {x: 1}\n" + "\n".join(f"b{i}: {{<<: *a}}" for i in range(200)),
    "alias to itself": "a: &a [*a]\nbase_model: x\nsequence_len: 1",
    "python tag": "base_model: !!python/object/apply:os.system ['true']",
    "unknown tag": "base_model: !secret x",
    "50 MB": "a: b\n" * 10_000_000,
    "50 MB of bytes": b"a" * 50_000_000,
    "50 MB of JSON": '{"a": "' + "x" * 50_000_000 + '"}',
    "10,000 levels of YAML": "[" * 10_000,
    "10,000 levels of blocks": "\n".join(" " * i + "a:" for i in range(600)),
    "10,000 levels of JSON": '{"a":' * 10_000,
    "10,000 brackets of Python": "get_peft_model(" + "(" * 10_000,
    "a chain of Python": "get_peft_model(r=" + "1+" * 40_000 + "1)",
    "a chain of signs": "get_peft_model(r=" + "-" * 90_000 + "1)",
    "a chain of attributes": "get_peft_model(r=a" + ".b" * 45_000 + ")",
    "a chain of nots": "get_peft_model(r=" + "not " * 20_000 + "1)",
    "binary": bytes(range(256)) * 40,
    "null characters": "base_model: a\0b\n",
    "UTF-16": "base_model: x\nsequence_len: 5".encode("utf-16"),
    "Latin-1": "base_model: caf\xe9".encode("latin-1"),
    "list": "- a\n- b",
    "JSON list": "[1, 2]",
    "text": "hello there",
    "number": "42",
    "empty": "",
    "only comments": "# nothing\n\n# here",
    "not text": 42,
    "nothing": None,
    "NaN": "base_model: x\nsequence_len: .nan",
    "infinity": "base_model: x\nsequence_len: .inf",
    "JSON NaN": '{"base_model": "x", "sequence_len": NaN}',
    "a number of thousands of digits": "base_model: x\nsequence_len: " + "9" * 10_000,
    "a JSON number of thousands of digits": '{"base_model": "x", "sequence_len": ' + "9" * 10_000 + "}",
    "base sixty": "base_model: x\nsequence_len: " + "1:" * 4_000 + "1",
    "truncated JSON": '{"base_model": "x", "sequence_len"',
    "truncated YAML": 'base_model: "x',
    "tabs": "base_model:\tx\n\tsequence_len: 5",
    "a key twice": "base_model: x\nsequence_len: 5\nsequence_len: 6",
    "a JSON key twice": '{"base_model": "x", "base_model": "y"}',
    "a list as key": "? [a, b]\n: c\nbase_model: x",
    "number as key": "1: 2\nbase_model: x",
    "two documents": "base_model: x\n---\nbase_model: y",
    "many keys": "\n".join(f"k{i}: 1" for i in range(20_000)),
    "a long command": "trl sft " + " ".join(f"--a{i} b" for i in range(20_000)),
    "many words": "trl sft --model_name_or_path " + "b " * 120_000,
    "spaces behind a comment": "\n".join("# memcore: loss = " + " " * 3_900 + "x" for _ in range(60)),
    "lists of lists": "a: &a [" + "1," * 2_000 + "1]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1 or ''}, *a{i - 1 or ''}]" for i in range(1, 9)),
    "Python lists of lists": "a = [1, 2]\n"
    + "\n".join(f"{x} = [{y}, {y}, {y}, {y}]" for x, y in zip("bcdefghijklmnop", "abcdefghijklmno", strict=True))
    + "\nget_peft_model(r=p)",
    "an open quotation": "trl sft --model_name_or_path 'x",
    "Python that is none": "get_peft_model(r=",
    "negative size": "base_model: x\nsequence_len: -1",
    "zero": "base_model: x\nmicro_batch_size: 0",
    "a float": "base_model: x\nmicro_batch_size: 1.5",
    "a huge size": "base_model: x\nsequence_len: 1000000000000",
    "a mapping for a number": "base_model: x\nsequence_len: {a: 1}",
    "a truth value for a number": "base_model: x\nsequence_len: true",
    "a list for a name": "base_model: [x]\nsequence_len: 4",
    "a long name": "base_model: " + "x" * 10_000 + "\nsequence_len: 4",
    "__proto__": '{"__proto__": {"polluted": true}}',
    "a tag for no truth value": "base_model: x\na: !!bool abc",
    "a tag for no number": "base_model: x\na: !!int ''",
    "several values in a comment": "base_model: Qwen/Qwen3-4B\nadapter: lora\n# memcore: lora_rank = [1, 2]",
    "many commas": "base_model: x\nadapter: lora\nlora_r: 8\nlora_target_modules: " + "a," * 5_000,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_quickly_and_without_growing(name):
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(TrainerFileError) as caught:
            read_trainer_file(BAD[name])
        elapsed, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert 10 < len(message) < 400 and "\n" not in message and "Traceback" not in message
    assert elapsed < 10  # tracing slows tenfold: the clock alone says well below a second
    assert peak < 64 * 2**20


@pytest.mark.parametrize("name", BAD)
def test_bad_input_takes_less_than_a_second(name):
    started = time.process_time()
    with pytest.raises(TrainerFileError):
        read_trainer_file(BAD[name])
    assert time.process_time() - started < 1


def test_a_path_is_a_name_and_nothing_is_opened():
    read = read_trainer_file("base_model: ../../../etc/passwd\nsequence_len: 5\nadapter:\n")
    assert read.scenario is None and read.model_name == "../../../etc/passwd"


def test_python_is_parsed_and_never_run(tmp_path):
    witness = tmp_path / "witness"
    write = f'open({str(witness)!r}, "w")'
    read_trainer_file(f'{write}\nmodel = FastLanguageModel.from_pretrained("Qwen/Qwen3-4B", max_seq_length={write})')
    assert not witness.exists()


@pytest.mark.parametrize("trainer", WRITABLE)
def test_a_model_whose_name_has_a_line_break_is_written_nowhere(trainer):
    model = memcore.custom_model(8e9)
    run = Scenario(model=replace(model, name="m\nimport os; os.system('x')\n#"), method="lora")
    with pytest.raises(TrainerFileError, match="another name"):
        write_trainer_file(run, trainer)


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from(["cut", "insert", "twice", "swap"]), st.text(max_size=6)), min_size=1, max_size=6
)
WORDS = st.sampled_from(
    [*":-[]{}&*!|>%@`\"'#,?\n\t ", "null", "true", ".nan", "1e999", "<<: *a", "&a ", "!!int ", "---\n", "'''", "\x00", "é", "(", ")", "="]
)


class TestFuzz:
    """Mutated files end in a clean result or a TrainerFileError, and in nothing else."""

    @settings(max_examples=400, deadline=None)
    @given(name=st.sampled_from(FILES), mutations=MUTATIONS, word=WORDS)
    def test_a_mutated_file_is_read_or_refused(self, name, mutations, word):
        text = (FOLDER / name).read_text(encoding="utf-8")
        for position, kind, extra in mutations:
            at = position % (len(text) + 1)
            if kind == "cut":
                text = text[:at] + text[at + 1 + len(extra) :]
            elif kind == "insert":
                text = text[:at] + word + extra + text[at:]
            elif kind == "twice":
                text = text[:at] + text[max(0, at - 40) : at] + text[at:]
            else:
                text = text[at:] + text[:at]
        self.check(text)

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
    def test_anything_is_read_or_refused(self, text):
        self.check(text)

    @settings(max_examples=300, deadline=None)
    @given(data=st.data(), trainer=st.sampled_from(list(trainers())))
    def test_any_value_of_any_key_is_read_or_refused(self, data, trainer):
        import json

        scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12))
        values = st.recursive(
            scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=5
        )
        keys = st.sampled_from(sorted(trainers()[trainer].names()))
        self.check(json.dumps(data.draw(st.dictionaries(keys, values, min_size=1, max_size=6))), trainer)

    @staticmethod
    def check(text, trainer=None):
        try:
            read = read_trainer_file(text, trainer)
        except TrainerFileError as error:
            assert str(error)
        else:
            assert read.scenario is None or isinstance(read.scenario, Scenario)
