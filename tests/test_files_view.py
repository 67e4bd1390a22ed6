"""Files in and out of the page: a trainer's file sets the controls and comes back the same; bad ones cost one sentence and nothing else."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from test_browser import CUT_OFF
from test_dashboard import SCRIPT, needed_by, needs

import memcore
from memcore import exchange, links, uploads
from memcore.markup import escape
from memcore.scenario import FIELDS
from memcore.trainers import WRITABLE, TrainerFileError
from memcore.units import format_bytes

pytestmark = pytest.mark.usefixtures("quick")

FILES = sorted((Path(__file__).parent / "trainer_files").glob("*.[!t]*"))
RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
SMALL = memcore.model("HuggingFaceTB/SmolLM2-135M")


@pytest.fixture
def view(open_app):
    return open_app(view="Trainer files")


def give(app, text):
    app.text_area(key="trainer_text").set_value(text).run()
    assert not app.exception
    return app


def errors(app):
    return [e.value for e in app.error if not e.value.startswith("**Does not fit.**")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_applying_a_file_puts_its_run_into_the_controls(view, path):
    text = path.read_text()
    found = exchange.read(text, RUN.model)
    give(view, text)
    view.button(key="trainer_apply").click().run()
    assert not view.exception and not errors(view)
    assert needs(view) == needed_by(found.run)
    for field in FIELDS:
        if field == "quantization" and found.run.quantization == "none" or field == "lora_target_modules":
            continue
        shown = view.get_by_key(field).value
        assert (tuple(shown) if isinstance(shown, list) else shown) == (found.run.model.name if field == "model" else getattr(found.run, field))


def test_every_field_the_file_sets_says_which_key_did():
    found = exchange.read("base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: 8\nsequence_len: 2048\nmicro_batch_size: 2", RUN.model)
    table = exchange.fields_set(found, RUN).set_index("Field")
    assert table.loc["sequence_length", "Because of"] == escape("sequence_len") and table.loc["sequence_length", "Becomes"] == "**2,048**"
    assert table.loc["sequence_length", "Now"] == "4,096" and table.loc["micro_batch_size", "Because of"] == escape("micro_batch_size")
    assert set(found.file.scenario_fields) <= set(table.index)


def test_what_was_not_used_and_what_was_assumed_are_listed():
    found = exchange.read("base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: 8\nwandb_project: x\nsequence_lenght: 10", RUN.model)
    left = exchange.not_used(found.file).set_index("Key")
    assert escape("sequence_lenght") in left.index and "wandb_project" in exchange.without_effect(found.file)
    defaults = exchange.assumed(found.file)
    assert len(defaults) and defaults["Source"].str.len().min() > 5 and defaults["Source"].str.contains("https://").any()


def test_an_unknown_model_borrows_the_pages_and_leaves_it_alone():
    found = exchange.read("base_model: someone/private-9b\nadapter: lora\nlora_r: 8\nsequence_len: 1024", SMALL)
    assert found.borrowed and found.run.model is SMALL and "model" not in found.controls
    assert any("not in the catalog" in note for note in found.file.notes)


@pytest.mark.parametrize("trainer", WRITABLE)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "full", "optimizer": "adafactor", "sequence_length": 512},
        {"method": "lora", "lora_target_modules": ("q_proj", "v_proj"), "lora_rank": 64},
    ],
    ids=["qlora", "full", "lora"],
)
def test_a_written_file_reads_back_as_the_same_run(trainer, changes):
    run = RUN.replace(**changes)
    assert exchange.read(exchange.write(run, trainer), run.model, trainer).run == run


def test_the_page_writes_a_file_for_each_trainer(view):
    for trainer in WRITABLE:
        view.get_by_key("write_for").set_value(trainer).run()
        assert not view.exception and [c for c in view.code if c.value.strip() == exchange.write(RUN, trainer).strip()]


def test_files_are_named_after_model_method_and_trainer():
    assert exchange.file_name(RUN, "axolotl") == "Llama-3.1-8B-qlora-axolotl.yaml"
    assert exchange.file_name(RUN.replace(method="full"), "unsloth") == "Llama-3.1-8B-full-unsloth.py"


BAD = {
    "nothing of a trainer": "hello: world\nfoo: bar",
    "a list": "- a\n- b",
    "a bomb": "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: &d [*c,*c]\ne: [*d,*d]\nlora_r: *d\n" + "f: [*d,*d]\n" * 40,
    "a tag": "!!python/object/apply:os.system ['true']",
    "deep": "{" * 5000,
    "cut json": '{"base_model": "x", "lora_r": ',
    "negative": "base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: -3",
    "nan": "base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_dropout: .nan",
    "script": "<script>alert(1)</script>",
    "prototype": '{"__proto__": {"lora_r": 3}}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_file_costs_one_sentence_and_nothing_else(view, text):
    view.select_slider(key="micro_batch_size").set_value(2).run()
    give(view, text)
    (error,) = errors(view)
    assert error.endswith("The page is as it was.") and "\n" not in error
    assert view.text_area(key="trainer_text").value == text
    assert view.select_slider(key="micro_batch_size").value == 2
    view.get_by_key("view").set_value("Estimate").run()
    assert needs(view) == needed_by(RUN.replace(micro_batch_size=2))


def test_the_pasted_text_is_still_there_after_another_view(view):
    give(view, "base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: 8")
    view.get_by_key("view").set_value("Accuracy").run()
    view.get_by_key("view").set_value("Trainer files").run()
    assert view.text_area(key="trainer_text").value.startswith("base_model: Qwen")


def upload(app, name, data):
    app.get_by_key("trainer_upload").upload(name, data).run()
    assert not app.exception
    return app


def test_an_uploaded_file_is_read(view):
    upload(view, "a.yaml", b"base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: 8\nsequence_len: 1024")
    view.button(key="trainer_apply").click().run()
    assert view.selectbox(key="model").value == "Qwen/Qwen3-4B" and view.select_slider(key="lora_rank").value == 8


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01binary", b"x" * 300_000], ids=["binary", "huge"])
def test_an_upload_that_is_no_trainers_file_costs_one_sentence(view, data):
    give(view, "base_model: Qwen/Qwen3-4B\nadapter: lora\nlora_r: 8")
    upload(view, "weights.bin", data)
    (error,) = errors(view)
    assert error.startswith("weights.bin is")
    assert view.text_area(key="trainer_text").value.startswith("base_model: Qwen")


ADAPTER = {"peft_type": "LORA", "r": 64, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]}


def test_an_adapters_own_file_changes_the_adapters_and_nothing_else(view):
    view.select_slider(key="sequence_length").set_value(1024).run()
    give(view, json.dumps(ADAPTER | {"base_model_name_or_path": "Qwen/Qwen3-4B", "lora_alpha": 8}))
    view.button(key="trainer_apply").click().run()
    run = RUN.replace(model="Qwen/Qwen3-4B", sequence_length=1024, lora_rank=64, lora_dropout=0.1)
    assert needs(view) == needed_by(run.replace(lora_target_modules=("q_proj", "v_proj"), modules_to_save=("lm_head",)))


def test_an_adapters_file_for_other_modules_says_which_there_are(view):
    give(view, json.dumps(ADAPTER | {"target_modules": ["c_attn"]}))
    (error,) = errors(view)
    assert "c_attn" in error.replace("\\", "") and "q_proj" in error.replace("\\", "")


def test_an_empty_view_says_what_to_do(view):
    assert any("Nothing to read yet" in i.value for i in view.info)


def test_bad_text_raises_a_trainer_file_error():
    with pytest.raises(TrainerFileError):
        exchange.read("hello: world", RUN.model)


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
PARAMETERS = 210_240


class TestModelFiles:
    @pytest.fixture
    def page(self):
        app = AppTest.from_file(str(SCRIPT), default_timeout=60)
        app.query_params["model"] = links.UPLOAD
        return app.run()

    def give(self, page, *files):
        page.get_by_key("config_file").set_value([(name, json.dumps(values).encode(), "application/json") for name, values in files]).run()
        assert not page.exception
        return page

    def test_an_adapter_beside_the_config_sets_the_lora_controls(self, page):
        self.give(page, ("config.json", CONFIG), ("adapter_config.json", ADAPTER))
        assert page.select_slider(key="lora_rank").value == 64 and page.number_input(key="lora_dropout").value == 0.1
        assert page.multiselect(key="lora_target_modules").value == ["q_proj", "v_proj"]
        assert page.multiselect(key="modules_to_save").value == ["lm_head"] and page.get_by_key("method").value == "qlora"

    def test_it_can_be_changed_afterwards(self, page):
        self.give(page, ("config.json", CONFIG), ("adapter_config.json", ADAPTER))
        page.select_slider(key="lora_rank").set_value(8).run()
        assert page.select_slider(key="lora_rank").value == 8

    def test_the_index_is_compared_to_the_byte(self, page):
        self.give(page, ("config.json", CONFIG), ("model.safetensors.index.json", index(2 * PARAMETERS)))
        assert any("equal to the counted parameters in 16 bits" in c.value for c in page.caption)

    def test_an_index_that_differs_says_by_how_much(self, page):
        self.give(page, ("config.json", CONFIG), ("model.safetensors.index.json", index(2 * PARAMETERS + 100 * 2**10)))
        assert any("100.0 KiB more than the counted parameters in 16 bits" in c.value for c in page.caption)

    def test_a_bad_file_beside_a_good_one_costs_one_sentence(self, page):
        self.give(page, ("config.json", CONFIG), ("adapter_config.json", {"peft_type": "IA3"}))
        assert any("IA3" in e for e in errors(page)) and "uploaded llama" in page.success[0].value

    def test_a_link_to_it_says_what_is_missing(self, page):
        assert any("cannot be part of a link" in i.value for i in page.info)


def index(total):
    return {"metadata": {"total_size": total}, "weight_map": {}}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"\xff\xfe\x00", "not UTF-8"),
        ("config.json", b"[" * 10_000, "levels deep"),
        ("config.json", b'{"model_type": "llama", ', "not valid JSON"),
        ("config.json", b"[1]", "must be a JSON object"),
        (
            "config.json",
            b'{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8, "vocab_size": 9, "hidden_size": -4}',
            "hidden_size",
        ),
        ("config.json", json.dumps(CONFIG | {"num_hidden_layers": float("nan")}), "num_hidden_layers (nan)"),
        ("config.json", b" " * (17 * 2**20), "MiB long"),
        ("adapter_config.json", b'{"peft_type": "LORA", "r": 0}', "r (0)"),
        ("adapter_config.json", b'{"peft_type": "LORA", "use_dora": true}', "use_dora"),
        ("model.safetensors.index.json", b'{"metadata": {}}', "add its config.json"),
    ],
)
def test_each_bad_model_file_gets_one_sentence(name, content, words):
    found = uploads.read([(name, content)])
    assert found.model is None and len(found.problems) == 1 and words in found.problems[0] and "\n" not in found.problems[0]


def test_files_are_told_apart_by_their_keys_whatever_their_names():
    found = uploads.read([("a.json", json.dumps(CONFIG)), ("b.json", json.dumps(ADAPTER)), ("c.json", json.dumps(index(2 * PARAMETERS)))])
    assert found.model.parameters == PARAMETERS and found.lora["lora_rank"] == 64 and found.checkpoint.agrees and not found.problems


@pytest.mark.browser
def test_in_a_browser_a_file_goes_in_and_comes_out_the_same(open_page, settle):
    path = Path(__file__).parent / "trainer_files" / "axolotl-llama3-qlora.yaml"
    run = exchange.read(path.read_text(), RUN.model).run
    page = open_page("?view=Trainer+files")
    page.locator(".st-key-trainer_upload input[type=file]").set_input_files(str(path))
    page.get_by_role("button", name="Apply to the page").click()
    page.wait_for_function(
        "text => document.querySelector('[data-testid=stMetricValue]')?.innerText === text",
        arg=format_bytes(memcore.estimate(run).device),
    )
    settle(page)
    page.get_by_role("radio", name="Trainer files", exact=True).click()
    page.get_by_role("tab", name="This page into a trainer's file").click()
    page.get_by_role("radio", name="axolotl", exact=True).click()
    page.locator(".st-key-trainer_file").get_by_text("base_model").first.wait_for()
    settle(page)
    with page.expect_download() as download:
        page.locator(".st-key-trainer_download button").click()
    written = download.value
    assert written.suggested_filename.endswith("-axolotl.yaml")
    assert exchange.read(written.path().read_text(), run.model).run == run


@pytest.mark.browser
@pytest.mark.parametrize("view", ["Trainer+files", "Accuracy", "Method", "Estimate&data_parallel_size=8&sharding=fsdp&pipeline_parallel_size=4"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(open_page, view, scheme):
    page = open_page(f"?view={view}", width=390, color_scheme=scheme)
    assert page.evaluate(CUT_OFF) == [0, []]
