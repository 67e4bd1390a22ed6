"""The page's widgets, without a browser: what each does to the numbers, and that nothing a link or a field says breaks it."""

import json
from pathlib import Path

import pytest

import memcore
from memcore import catalog, configs, links
from memcore.markup import escape
from memcore.scenario import FIELDS
from memcore.units import format_bytes

pytestmark = pytest.mark.usefixtures("quick")

SCRIPT = Path(__file__).parents[1] / "dashboard.py"
RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
DEVICE = catalog.devices()[links.DEFAULT_DEVICE]


@pytest.fixture
def app(open_app):
    return open_app()


def needs(app):
    assert not app.exception
    return app.metric[0].value


def needed_by(run, unit="GiB"):
    return format_bytes(memcore.estimate(run).device, unit)


def notices(app):
    return [w.value for w in app.warning if "Not everything" in w.value]


def verdict(app):
    boxes = [*app.success, *app.warning, *app.error]
    (found,) = [b.value for b in boxes if b.value.startswith(("**Fits.**", "**Tight.**", "**Does not fit.**"))]
    return found


def chart(app, key):
    (found,) = [json.loads(c.proto.spec) for c in app.get("plotly_chart") if c.proto.id.endswith(f"-{key}") or key in c.proto.id]
    return found


def test_the_page_opens_with_a_scenario_at_its_defaults(app):
    assert needs(app) == needed_by(RUN) and app.metric[1].value == format_bytes(DEVICE.usable_bytes)
    assert not notices(app)


def test_every_field_of_a_scenario_has_a_widget_that_its_link_can_set(app):
    keys = {
        w.key for kind in ("selectbox", "select_slider", "number_input", "toggle", "multiselect", "button_group") for w in app.get(kind)
    }
    assert set(FIELDS) <= keys


CHANGES = [
    ("select_slider", "sequence_length", 8192, {"sequence_length": 8192}),
    ("select_slider", "micro_batch_size", 1, {"micro_batch_size": 1}),
    ("button_group", "gradient_checkpointing", "none", {"gradient_checkpointing": "none"}),
    ("button_group", "method", "full", {"method": "full"}),
    ("selectbox", "quantization", "nf4", {"quantization": "nf4"}),
    ("selectbox", "model", "Qwen/Qwen3-4B", {"model": "Qwen/Qwen3-4B"}),
    ("selectbox", "optimizer", "paged_adamw_8bit", {"optimizer": "paged_adamw_8bit"}),
    ("selectbox", "precision", "fp32", {"precision": "fp32"}),
    ("selectbox", "adapter_precision", "bf16", {"adapter_precision": "bf16"}),
    ("selectbox", "attention", "eager", {"attention": "eager"}),
    ("selectbox", "loss", "fused-linear", {"loss": "fused-linear"}),
    ("selectbox", "kernels", "fused", {"kernels": "fused"}),
    ("selectbox", "prepare_kbit", "all-fp32", {"prepare_kbit": "all-fp32"}),
    ("selectbox", "software", "transformers-4.48", {"software": "transformers-4.48"}),
    ("selectbox", "sharding", "fsdp", {"sharding": "fsdp"}),
    ("select_slider", "data_parallel_size", 8, {"data_parallel_size": 8}),
    ("select_slider", "gradient_accumulation_steps", 4, {"gradient_accumulation_steps": 4}),
    ("select_slider", "lora_rank", 256, {"lora_rank": 256}),
    ("number_input", "lora_dropout", 0.05, {"lora_dropout": 0.05}),
    ("toggle", "autocast", False, {"autocast": False}),
    ("toggle", "activation_offload", True, {"activation_offload": True}),
    ("select_slider", "tensor_parallel_size", 2, {"tensor_parallel_size": 2}),
    ("select_slider", "pipeline_parallel_size", 4, {"pipeline_parallel_size": 4}),
    ("select_slider", "context_parallel_size", 2, {"context_parallel_size": 2}),
    ("multiselect", "lora_target_modules", ["q_proj", "v_proj"], {"lora_target_modules": ("q_proj", "v_proj")}),
    ("multiselect", "modules_to_save", ["lm_head"], {"modules_to_save": ("lm_head",)}),
]


@pytest.mark.parametrize(("kind", "key", "value", "fields"), CHANGES, ids=[c[1] for c in CHANGES])
def test_a_control_sets_its_field(app, kind, key, value, fields):
    app.get_by_key(key).set_value(value).run()
    assert needs(app) == needed_by(RUN.replace(**fields))


@pytest.mark.parametrize(("kind", "key", "value", "fields"), CHANGES, ids=[c[1] for c in CHANGES])
def test_a_link_sets_the_same_field(open_app, kind, key, value, fields):
    app = open_app(**{key: value if isinstance(value, list) else links.controls()[key].write(value)})
    assert needs(app) == needed_by(RUN.replace(**fields)) and not notices(app)


def test_the_change_is_since_the_last_move(app):
    before = memcore.estimate(RUN).device
    app.select_slider(key="micro_batch_size").set_value(2).run()
    after = memcore.estimate(RUN.replace(micro_batch_size=2)).device
    assert app.metric[0].delta == f"-{format_bytes(before - after)}"
    app.get_by_key("unit").set_value("GB").run()  # shows the same in another unit: no move
    assert app.metric[0].delta == f"-{format_bytes(before - after, 'GB')}"


def test_the_unit_changes_every_number(app):
    app.get_by_key("unit").set_value("GB").run()
    assert needs(app) == needed_by(RUN, "GB") and "GiB" not in verdict(app)
    assert all(m.value.endswith(" GB") for m in app.metric)


def test_a_bigger_device_turns_the_verdict(app):
    assert verdict(app).startswith("**Does not fit.**")
    app.selectbox(key="device").select("NVIDIA H100 80GB HBM3").run()
    assert verdict(app).startswith("**Fits.**") and app.metric[2].label == "Spare"


def test_the_largest_model_can_be_taken_with_one_click(largest, app):
    run = RUN.replace(method="lora")
    found = memcore.largest_model(run, DEVICE.usable_bytes)
    app.button(key="use_lora").click().run()
    assert app.session_state["model"] == found.model.name
    assert needs(app) == needed_by(run.replace(model=found.model))


def test_where_nothing_fits_the_page_says_what_the_smallest_would_need(largest, open_app):
    app = open_app(device="custom", custom_memory="1", custom_memory_unit="GiB", sequence_length="1M")
    assert not app.exception and any(m.value.startswith("None:") and "needs" in m.value for m in app.markdown)


def test_reset_puts_every_control_back(app):
    app.get_by_key("method").set_value("full").run()
    app.selectbox(key="model").select("Qwen/Qwen3-4B").run()
    app.multiselect(key="modules_to_save").set_value(["lm_head"]).run()
    next(b for b in app.button if b.label == "Reset").click().run()
    assert needs(app) == needed_by(RUN)


def test_the_charts_show_the_numbers_of_the_estimate(app):
    bars = [t for t in chart(app, "where_it_goes")["data"] if t["type"] == "bar"]
    ticks = chart(app, "where_it_goes")["layout"]["yaxis"]["ticktext"]
    assert needed_by(RUN) in ticks[2] and len(bars) == 6


def test_a_run_that_cannot_be_estimated_leaves_the_last_answer(app, monkeypatch):
    def fail(run):
        raise ZeroDivisionError("a *bug*")

    monkeypatch.setattr("memcore.pages.controls.estimate", fail)
    app.select_slider(key="micro_batch_size").set_value(1).run()
    assert needs(app) == needed_by(RUN) and any("ZeroDivisionError: a \\*bug\\*" in e.value for e in app.error)


def test_memory_of_the_host_is_said_where_it_is_needed(open_app):
    assert "host" not in verdict(open_app())
    run = RUN.replace(method="full", data_parallel_size=8, sharding="fsdp", offload="optimizer")
    app = open_app(method="full", data_parallel_size="8", sharding="fsdp", offload="optimizer")
    assert f"host's memory holds another {format_bytes(memcore.estimate(run).host)}" in verdict(app) and "each of 8 RTX 4090" in verdict(
        app
    )


@pytest.mark.parametrize("fields", [{"tensor_parallel_size": "1024"}, {"tensor_parallel_size": "3"}, {"pipeline_parallel_size": "1024"}])
def test_choices_that_do_not_go_together_are_named_and_the_page_stays(open_app, fields):
    app = open_app(**fields)
    assert not app.exception and app.metric[0].value == needed_by(RUN)
    assert any("size" in e.value and "Below is this model with a stock run" in e.value for e in app.error)
    app.get_by_key(next(iter(fields))).set_value(1).run()
    assert needs(app) == needed_by(RUN) and not any("Below" in e.value for e in app.error)


class TestLinks:
    @pytest.mark.parametrize(
        ("parameters", "said"),
        [
            ({"model": "nobody/nothing"}, "model"),
            ({"device": "Abacus"}, "device"),
            ({"sequence_length": "-5"}, "sequence"),
            ({"sequence_length": "nan"}, "sequence"),
            ({"micro_batch_size": "1e99"}, "micro"),
            ({"micro_batch_size": ""}, "micro"),
            ({"no_such_thing": "1"}, "no\\_such\\_thing"),
            ({"lora_dropout": "nan"}, "dropout"),
            ({"data_parallel_size": "0"}, "parallel"),
            ({"lora_target_modules": "c_attn"}, "c\\_attn"),
            ({"method": "<script>alert(1)</script>"}, "method"),
        ],
    )
    def test_what_is_wrong_is_said_and_the_page_works(self, open_app, parameters, said):
        app = open_app(**parameters)
        assert needs(app) == needed_by(RUN)
        (text,) = notices(app)
        assert said in text
        app.select_slider(key="micro_batch_size").set_value(1).run()
        assert needs(app) == needed_by(RUN.replace(micro_batch_size=1)) and not notices(app)

    def test_a_length_between_the_stops_is_kept(self, open_app):
        app = open_app(sequence_length="3000", micro_batch_size="9")
        assert needs(app) == needed_by(RUN.replace(sequence_length=3000, micro_batch_size=9))

    def test_an_uploaded_config_is_asked_for_again(self, open_app):
        app = open_app(model=links.UPLOAD)
        assert needs(app) == needed_by(RUN) and any("cannot be part of a link" in i.value for i in app.info)

    def test_two_sessions_share_nothing(self, open_app):
        first, second = open_app(), open_app()
        first.get_by_key("method").set_value("full").run()
        second.run()
        assert needs(second) == needed_by(RUN)


class TestCustomSizes:
    @pytest.mark.parametrize("text", ["0", "-5B", "nan", "1e99", "9999999999T", "a lot", "", "8GB"])
    def test_a_size_that_cannot_be_used_gets_a_message_and_the_last_answer_stays(self, open_app, text):
        app = open_app(model="custom", custom_parameters="13B")
        good = needs(app)
        app.text_input(key="custom_parameters").set_value(text).run()
        assert needs(app) == good and len(app.error) >= 1
        assert any("Still showing Custom 13" in c.value for c in app.caption)

    def test_other_controls_still_work_meanwhile(self, open_app):
        app = open_app(model="custom", custom_parameters="13B")
        app.text_input(key="custom_parameters").set_value("0").run()
        app.select_slider(key="micro_batch_size").set_value(1).run()
        assert needs(app) == needed_by(RUN.replace(model=configs.custom_model(13e9), micro_batch_size=1))

    @pytest.mark.parametrize("amount", [0.0, -1.0, 1e12])
    def test_a_memory_that_cannot_be_used_gets_a_message(self, open_app, amount):
        app = open_app(device="custom")
        app.number_input(key="custom_memory").set_value(amount).run()
        assert not app.exception and any("device memory" in e.value for e in app.error)

    def test_a_unified_machine_gives_three_quarters(self, open_app):
        app = open_app(device="custom", custom_memory="36", custom_unified="true", unit="GB")
        assert app.metric[1].value == "27.0 GB"


class TestUpload:
    CONFIG = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    }

    @pytest.fixture
    def upload(self, open_app):
        def upload(content):
            app = open_app(model=links.UPLOAD)
            app.get("file_uploader")[0].upload("config.json", content, "application/json").run()
            return app

        return upload

    def test_an_uploaded_config_is_the_model(self, upload):
        app = upload(json.dumps(self.CONFIG).encode())
        assert needs(app) == needed_by(RUN) and "uploaded llama" in verdict(app)
        assert any("send it along" in w.value for w in app.warning)

    def test_a_pasted_one_too(self, open_app):
        app = open_app(model=links.UPLOAD)
        app.text_area(key="config_text").set_value(json.dumps(self.CONFIG)).run()
        assert needs(app) == needed_by(RUN) and "uploaded llama" in verdict(app)

    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"[]",
            b"null",
            b"\xff\xfe",
            b'{"model_type": "llama"}',
            b'{"model_type": "nothing"}',
            b"[" * 100_000,
            b'{"model_type": {"a": 1}, "hidden_size": "x"}',
            b'{"model_type": "gemma3"}',
        ],
    )
    def test_what_is_no_config_gets_a_message_and_the_last_answer_stays(self, upload, content):
        app = upload(content)
        assert needs(app) == needed_by(RUN) and len(app.error) == 2

    def test_its_name_is_not_markup(self, upload):
        app = upload(json.dumps(self.CONFIG | {"_name_or_path": "![x](http://elsewhere.example/x.png) $a$ :red[b] <b>"}).encode())
        assert escape("$a$ :red[b] <b>") in verdict(app) and "\\$a" in verdict(app)


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({}, {"pipeline stage", "hsdp", "has none"}),
        ({"pipeline_parallel_size": "2"}, {"hsdp", "has none"}),
        ({"data_parallel_size": "8", "sharding": "hsdp"}, {"pipeline stage", "has none"}),
        ({"model": "google/gemma-3-4b-pt"}, {"pipeline stage", "hsdp"}),
    ],
)
def test_a_control_without_effect_says_so(open_app, fields, idle):
    said = [c.value for c in open_app(**fields).caption if c.value.startswith("No effect")]
    assert len(said) == len(idle) and all(any(part in s for s in said) for part in idle)
