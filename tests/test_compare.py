"""Pins: what is written is read back, whatever a link says; and the view that puts them side by side."""

from urllib.parse import parse_qs

import pytest

import memcore
from memcore import catalog, export, figures_whatif, links, pins, presets
from memcore.units import format_bytes

pytestmark = pytest.mark.usefixtures("quick")

DEFAULTS = {key: control.default for key, control in links.controls().items()}
CARD = catalog.devices()[links.DEFAULT_DEVICE]


def pin(name="A run", **values):
    return pins.read(pins.write(name, DEFAULTS | values))


@pytest.mark.parametrize("name", presets.presets())
def test_a_pin_is_the_run_it_was_made_of(name):
    preset = presets.presets()[name]
    values = DEFAULTS | links.of_run(preset.run) | {"model": preset.run.model.name, "device": preset.device.name}
    found = pins.read(pins.write(name, values))
    assert (found.name, found.run, found.device) == (name, preset.run, preset.device)


def test_a_pin_of_a_custom_model_on_a_custom_device():
    found = pin(model=links.CUSTOM, custom_parameters="3B", device=links.CUSTOM, custom_memory=36.0, custom_unified=True)
    assert found.run.model.parameters == pytest.approx(3e9, rel=0.05)
    assert found.device == catalog.custom_device("36", "GB", True)


def test_pins_survive_a_link():
    texts = tuple(pins.write(name, DEFAULTS | {"method": method}) for name, method in (("a & b", "full"), ("50 %=", "lora")))
    values, notices = links.read(parse_qs(links.write({"pin": texts}), keep_blank_values=True))
    assert values == {"pin": texts} and not notices
    assert [p.name for p in pins.read_all(values["pin"])[0]] == ["a & b", "50 %="]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|||",
        "name|model=nobody%2Fnothing",
        "name|sequence_length=-1",
        "name|model=config.json",
        "name|device=nope",
        "x|nonsense=1",
        "<b>|method=lora&method=full&lora_dropout=nan",
        "name|modules_to_save=lm_head&lora_target_modules=nowhere",
    ],
)
def test_a_pin_that_cannot_be_read_is_named_and_nothing_breaks(text):
    found, problems = pins.read_all([text, pins.write("good", DEFAULTS)])
    assert found[-1].name == "good" and len(found) + len(problems) == 2


def test_too_many_or_too_long_pins_are_refused_with_a_reason():
    for texts in (["a|"] * (pins.MOST + 1), ["a|" + "x" * links.LONGEST_PIN]):
        values, notices = links.read({"pin": texts})
        assert not values and len(notices) == 1


def test_names_are_one_short_line_and_are_told_apart():
    assert pins.clean(" a|b\n c ") == "a b c" and pins.clean("") == "Unnamed" and len(pins.clean("x" * 99)) == pins.LONGEST_NAME
    run = memcore.Scenario(model=links.DEFAULT_MODEL)
    first = pins.suggest_name(run, [])
    assert first == "Llama-3.1-8B QLoRA 4 × 4K" and pins.suggest_name(run, [first]) == f"{first} (2)"
    assert pins.labels([pin("a"), pin("a"), pin("b")]) == ["a", "a (2)", "b"]
    assert pins.read(pins.rename(pins.write("old", DEFAULTS), "new")).name == "new"


def test_a_run_of_an_uploaded_model_cannot_be_pinned():
    assert not pins.can_pin(DEFAULTS | {"model": links.UPLOAD}) and pins.can_pin(DEFAULTS)


def test_the_differences_are_what_differs_and_what_comes_of_it():
    table = pins.differences([pin("a"), pin("b", method="lora", lora_rank=64)]).set_index("")
    assert list(table.loc["Method"]) == ["QLoRA", "LoRA"] and list(table.loc["Lora rank"]) == ["16", "64"]
    assert "Model" not in table.index and "Sequence length" not in table.index
    assert table.loc["Needs", "a"] == format_bytes(memcore.estimate(pin().run).device)
    assert table.index.is_unique


def test_the_bars_add_up_to_what_each_run_needs():
    both = [pin("a"), pin("b", method="full", device="NVIDIA H200")]
    table = pins.stacks(both)
    for name, found in zip(("a", "b"), both, strict=True):
        rows = table[table["name"] == name]
        assert rows["bytes"].sum() == pytest.approx(float(memcore.estimate(found.run).device))
        assert set(rows["usable"]) == {found.device.usable_bytes}
    figure = figures_whatif.side_by_side(table, "GB")
    assert list(figure.data[-2].x) == pytest.approx([p.device.usable_bytes / 1e9 for p in both])
    assert "GB" in figure.layout.xaxis.title.text


def test_a_name_in_a_chart_is_text_not_markup():
    assert "<b>" not in figures_whatif._two_lines("<b>bold</b> name that goes on and on")


def test_the_file_has_every_term_of_every_run():
    both = [pin("a"), pin("=cmd", method="full")]
    table = pins.every_term(both)
    assert table.groupby("scenario")["bytes"].sum().round().to_dict() == {p.name: round(float(memcore.estimate(p.run).device)) for p in both}
    assert set(table["method"]) == {"qlora", "full"} and b"'=cmd" in export.to_csv(table)


# ---- the page


def compared(app):
    assert not app.exception
    return list(app.table[0].value.columns[1:])


def test_pinning_puts_the_run_beside_the_page(open_app):
    app = open_app()
    app.button(key="pin_this").click().run()
    app.get_by_key("method").set_value("full").run()
    app.button(key="pin_this").click().run()
    app.get_by_key("view").set_value("Compare").run()
    assert compared(app) == ["On the page", "Llama-3.1-8B QLoRA 4 × 4K", "Llama-3.1-8B Full 4 × 4K"]
    assert app.query_params["pin"] == list(app.session_state["pin"])


def test_an_empty_comparison_offers_the_three_methods(open_app):
    app = open_app(view="Compare")
    app.button(key="pin_methods").click().run()
    assert len(compared(app)) == 4


def test_a_link_opens_with_its_pins_and_they_can_be_renamed_opened_and_removed(open_app):
    texts = [pins.write("first", DEFAULTS | {"method": "lora"}), pins.write("second", DEFAULTS | {"lora_rank": 64})]
    app = open_app(view="Compare", pin=texts)
    assert compared(app) == ["On the page", "first", "second"]
    app.text_input(key="pin_name_1").set_value("renamed").run()
    assert compared(app) == ["On the page", "first", "renamed"]
    app.button(key="pin_open_0").click().run()
    assert app.get_by_key("method").value == "lora"
    app.button(key="pin_remove_0").click().run()
    assert compared(app) == ["On the page", "renamed"]


def test_four_pins_are_the_most(open_app):
    app = open_app(pin=[pins.write(str(i), DEFAULTS) for i in range(4)])
    assert app.button(key="pin_this").disabled


def test_a_pin_that_cannot_be_opened_is_said_and_can_be_removed(open_app):
    app = open_app(view="Compare", pin=["broken|model=no%2Fsuch"])
    assert not app.exception and any("broken" in w.value for w in app.warning)
    app.button(key="pin_remove_0").click().run()
    assert not app.exception and not app.session_state["pin"]


def test_resetting_keeps_the_pins(open_app):
    app = open_app(pin=[pins.write("kept", DEFAULTS)], method="full")
    next(b for b in app.button if b.label == "Reset").click().run()
    assert len(app.session_state["pin"]) == 1 and app.get_by_key("method").value == "qlora"


def test_a_pin_changes_nothing_but_its_own_run():
    """A pin in a stranger's link cannot bring pins, a view or a unit of its own."""
    pin = pins.read("z|view=Accuracy&unit=GB&pin=evil%7C&micro_batch_size=2")
    assert not set(pin.values) & set(links.ELSEWHERE) and pin.run.micro_batch_size == 2


def test_a_pin_without_settings_is_none():
    assert pins.read_all(["broken"])[1][0].startswith("broken could not be opened")


def test_an_unusable_size_or_device_cannot_be_pinned():
    values = {key: control.default for key, control in links.controls().items()}
    assert pins.readable(values)
    assert not pins.readable(values | {"model": links.CUSTOM, "custom_parameters": "0"})
    assert not pins.readable(values | {"device": links.CUSTOM, "custom_memory": 0.0})
