"""What the page says about changes: the plan that makes a run fit, the frontier, the curves; and the buttons that apply them."""


import pytest

import memcore
from memcore import catalog, figures_whatif, links, machine, presets, remedies, timing, whatif
from memcore.markup import escape
from memcore.summary import by_method, verdict
from memcore.units import format_bytes

pytestmark = pytest.mark.usefixtures("quick")

RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
CARD = catalog.devices()[links.DEFAULT_DEVICE]
BIG = catalog.devices()["NVIDIA H200"]
TIGHT = RUN.replace(micro_batch_size=2, sequence_length=3500)
HOPELESS = memcore.Scenario(model="meta-llama/Llama-3.1-405B", method="full", micro_batch_size=512, sequence_length=2**20)


def word(run, device):
    return verdict(memcore.estimate(run), device).word


# ---- the plan


def test_the_plan_for_a_run_that_does_not_fit_fits():
    plan = whatif.plan_to_fit(RUN, CARD)
    assert word(RUN, CARD) == "does not fit"
    assert memcore.estimate(plan.run).device == plan.needs <= CARD.usable_bytes


def test_the_plan_for_a_tight_run_fits_even_at_the_high_end_of_the_band():
    assert word(TIGHT, CARD) == "tight"
    assert word(whatif.plan_to_fit(TIGHT, CARD).run, CARD) == "fits"


def test_the_sentence_says_what_is_needed_before_and_after_and_what_it_costs():
    plan = whatif.plan_to_fit(RUN, CARD)
    said = whatif.plan_sentence(RUN, plan, CARD, "GB")
    for part in (
        format_bytes(memcore.estimate(RUN).device, "GB"),
        format_bytes(plan.needs, "GB"),
        word(plan.run, CARD),
        whatif.price(plan),
    ):
        assert part in said
    assert all(remedy.label[1:] in said for remedy in plan.remedies) and said.startswith("To make it fit")
    assert whatif.plan_sentence(TIGHT, whatif.plan_to_fit(TIGHT, CARD), CARD).startswith("To be sure it fits")


def test_a_plan_that_costs_something_says_the_dearest_thing():
    plan = whatif.plan_to_fit(memcore.Scenario(model="meta-llama/Llama-3.1-70B", method="full", micro_batch_size=16), CARD)
    assert "Gives up the model" in whatif.price(plan) and "faster" in whatif.price(plan)


def test_where_nothing_helps_it_says_what_would():
    assert whatif.plan_to_fit(HOPELESS, CARD) is None
    assert whatif.nothing_helps(HOPELESS, CARD)[1] is None
    large = RUN.replace(method="full", micro_batch_size=1)
    said, larger = whatif.nothing_helps(large, CARD)
    assert larger.usable_bytes >= memcore.estimate(large).device and larger.label in said


def test_an_effect_says_what_is_saved_and_whether_it_fits_then():
    found = whatif.remedies(RUN, CARD)
    assert {whatif.effect(remedy, CARD).rpartition(": ")[2] for remedy in found} <= {"fits", "tight", "does not fit"}
    table = whatif.remedies_table(found)
    assert list(table["remedy"]) == [remedy.key for remedy in found]
    assert (table["saves_bytes"] + table["needs_bytes"]).round().nunique() == 1


# ---- how far


@pytest.mark.parametrize("method", links.METHODS)
def test_on_the_frontier_the_batch_fits_and_one_more_does_not(method):
    table = whatif.frontier(by_method(RUN), CARD.usable_bytes)
    for row in table[table["method"] == method].iloc[::9].itertuples():
        run = by_method(RUN)[method].replace(sequence_length=row.sequence_length)
        batch = row.micro_batch_size
        assert batch == 0 or memcore.estimate(run.replace(micro_batch_size=batch)).device <= CARD.usable_bytes
        assert memcore.estimate(run.replace(micro_batch_size=batch + 1)).device > CARD.usable_bytes


def test_the_frontier_has_the_runs_own_length_and_its_table_says_the_same():
    run = RUN.replace(sequence_length=3001)
    table = whatif.frontier(by_method(run), CARD.usable_bytes)
    shown = whatif.shown_frontier(table, 3001).set_index("Sequence length")
    own = memcore.largest(run, "micro_batch_size", CARD.usable_bytes)
    assert shown.loc["3001", "QLoRA"] == f"{own:,}"
    assert shown.loc["3001", "Full"] == "none"


def test_the_furthest_sizes_are_the_solvers():
    said = whatif.furthest(RUN, CARD.usable_bytes)
    assert f"{memcore.largest(RUN, 'sequence_length', CARD.usable_bytes):,} tokens" in said
    assert f"micro batch {memcore.largest(RUN, 'micro_batch_size', CARD.usable_bytes):,}" in said
    assert "does not fit here" in whatif.furthest(HOPELESS, CARD.usable_bytes)


@pytest.mark.parametrize("axis", [axis for axis in whatif.AXES if axis != "model"])
def test_a_curve_is_the_estimate_at_each_value(axis):
    table = whatif.curves(by_method(RUN), axis)
    own = table[(table["method"] == "qlora") & (table["value"] == whatif.own_value(RUN, axis))]
    assert list(own["bytes"]) == [memcore.estimate(RUN).device]
    row = table[table["method"] == "lora"].iloc[-1]
    assert row["bytes"] == memcore.estimate(by_method(RUN)["lora"].replace(**{axis: int(row["value"])})).device


def test_the_curve_over_model_sizes_is_of_llama_shaped_models():
    table = whatif.curves(by_method(RUN), "model")
    row = table[table["method"] == "full"].iloc[3]
    (model,) = [m for m in whatif._llamas() if m.parameters == row["value"]]
    assert row["bytes"] == memcore.estimate(RUN.replace(method="full", model=model)).device


@pytest.mark.parametrize("axis", whatif.AXES)
@pytest.mark.parametrize("run", [RUN, HOPELESS], ids=["a-run", "far-too-large"])
def test_the_curves_figure_has_a_line_for_each_method_and_the_run_in_sight(run, axis):
    table, needs = whatif.curves(by_method(run), axis), float(memcore.estimate(run).device)
    own = (whatif.own_value(run, axis), needs)
    figure = figures_whatif.curves(table, axis, own, CARD.usable_bytes, run.method, whatif.window(table, needs, CARD.usable_bytes))
    assert [trace.name for trace in figure.data] == [*(links.METHODS[m] for m in figures_whatif._chosen_last(run.method)), "This run"]
    low, high = (10**end for end in figure.layout.yaxis.range)
    assert low < needs / 2**30 < high and low < CARD.usable_bytes / 2**30 < high
    assert figure.layout.xaxis.range[0] < figure.layout.xaxis.range[1] and "GiB" in figure.layout.yaxis.title.text
    assert len(whatif.shown_curves(table, axis, own[0])) >= 8


def test_the_frontier_figure_says_so_where_nothing_fits():
    table = whatif.frontier(by_method(HOPELESS), CARD.usable_bytes)
    figure = figures_whatif.how_far(table, (HOPELESS.sequence_length, HOPELESS.micro_batch_size), False, "full")
    assert "No micro batch fits" in figure.layout.annotations[0].text
    assert figures_whatif.how_far(whatif.frontier(by_method(RUN), CARD.usable_bytes), (4096, 4), False, "qlora").layout.annotations == ()


# ---- the page


def shown_verdict(app):
    assert not app.exception
    return next(b.value.split(".")[0].strip("*") for b in [*app.success, *app.warning, *app.error] if b.value.startswith("**"))


def test_one_click_makes_the_first_scenario_fit(open_app):
    app = open_app()
    assert shown_verdict(app) == "Does not fit"
    app.button(key="apply_plan").click().run()
    plan = whatif.plan_to_fit(RUN, CARD)
    assert shown_verdict(app) == "Fits" and app.metric[0].value == format_bytes(plan.needs)
    assert "apply_plan" not in [button.key for button in app.button]


@pytest.mark.parametrize("remedy", [r for r in whatif.remedies(RUN, CARD) if r.helps], ids=lambda r: r.key)
def test_every_button_sets_the_controls_to_the_run_it_showed(open_app, remedy):
    app = open_app()
    app.button(key=f"apply_{remedy.key}").click().run()
    assert not app.exception and app.metric[0].value == format_bytes(remedy.needs)
    assert not [w.value for w in app.warning if "Not everything" in w.value]


def test_what_cannot_help_has_no_button_and_a_reason(open_app):
    app = open_app()
    keys = [button.key for button in app.button]
    useless = [remedy for remedy in whatif.remedies(RUN, CARD) if not remedy.helps]
    assert useless and not [r.key for r in useless if f"apply_{r.key}" in keys]
    shown = "".join(m.value for m in app.markdown)
    assert all(escape(remedy.label) in shown and escape(remedy.reason) in shown for remedy in useless)


def test_where_it_fits_the_changes_are_folded_until_asked_for(open_app):
    app = open_app(device="NVIDIA H200")
    assert shown_verdict(app) == "Fits"
    assert not [b.key for b in app.button if (b.key or "").startswith("apply_")]


def test_where_nothing_helps_another_device_is_one_click(open_app):
    card, run = "NVIDIA GeForce RTX 2060 6GB", RUN.replace(model="mistralai/Mixtral-8x7B-v0.1")
    assert whatif.plan_to_fit(run, catalog.devices()[card]) is None
    app = open_app(model=run.model.name, device=card)
    app.button(key="apply_plan").click().run()
    assert shown_verdict(app) in ("Fits", "Tight")


@pytest.mark.parametrize("name", presets.presets())
def test_a_preset_is_one_click(open_app, name):
    preset = presets.presets()[name]
    app = open_app(lora_rank="512", attention="eager", unit="GB")
    app.button(key=f"preset_{name}").click().run()
    assert not app.exception and app.metric[0].value == format_bytes(memcore.estimate(preset.run).device)
    assert app.metric[1].value == format_bytes(preset.device.usable_bytes)


def test_warnings_are_said_where_they_apply(open_app):
    def said(app):
        return " ".join(h.proto.body for h in app.get("html"))

    assert "The vocabulary has 128,256 entries" in said(open_app())
    assert "vocabulary" not in said(open_app(loss="fused-linear"))


def test_more_than_three_warnings_are_folded(open_app):
    app = open_app(attention="eager", gradient_checkpointing="none", modules_to_save="lm_head", prepare_kbit="all-fp32")
    assert any("warnings from experience" in e.label for e in app.expander)


@pytest.mark.parametrize("axis", whatif.AXES)
def test_memory_is_drawn_against_any_axis(open_app, axis):
    app = open_app()
    app.get_by_key("axis").set_value(axis).run()
    assert not app.exception


def test_a_change_of_attention_targets_is_applied_by_name():
    (changes,) = remedies._fewer_modules(RUN)
    assert links.of_run(RUN.replace(**changes))["lora_target_modules"] == ("q_proj", "v_proj")
    assert links.of_run(RUN)["lora_target_modules"] == () and "model" not in links.of_run(RUN)
    assert "quantization" not in links.of_run(RUN.replace(method="full"))


# ---- time


def test_hours_are_the_engines_and_the_note_says_for_which_speed():
    runs = by_method(RUN)
    table = whatif.durations(runs, 1e7, CARD, 0.4, 0.5).set_index("method")
    plan = timing.duration(runs["lora"], 1e7, CARD, 0.4, 0.5)
    assert (table.loc["lora", "hours"], table.loc["lora", "cost"]) == (plan.hours, plan.cost)
    assert table.loc["lora", "tokens_per_second"] * plan.hours * 3600 == pytest.approx(1e7)
    assert "An estimate" in whatif.speed_note(CARD, 0.4) and "40%" in whatif.speed_note(CARD, 0.4)
    assert "is not known" in whatif.speed_note(catalog.custom_device(24), 0.5)
    assert "Cost" in whatif.shown_durations(table.reset_index()) and "Cost" not in whatif.shown_durations(whatif.durations(runs, 1e7, CARD, 1, 0))


def test_a_token_budget_is_in_the_link_and_nonsense_is_said_at_the_field(open_app):
    app = open_app(train_tokens="2M", gpu_price="0.5")
    table = next(t.value for t in app.table if "GPU hours" in t.value)
    expected = whatif.shown_durations(whatif.durations(by_method(RUN), 2e6, CARD, 0.5, 0.5))
    assert table.to_dict() == expected.to_dict()
    app.text_input(key="train_tokens").set_value("many").run()
    assert not app.exception and any("'many'" in e.value.replace("\\", "") for e in app.error)
    app.text_input(key="train_tokens").set_value("0").run()
    assert not app.exception


# ---- this machine


@pytest.fixture
def own_gpus(monkeypatch):
    """Call it with the GPUs this machine is to have, and whether the browser runs on it."""

    def own_gpus(found, local=True):
        monkeypatch.setattr("memcore.pages.machine.own", lambda: found)
        monkeypatch.setattr("memcore.pages.machine.local", lambda: local)

    return own_gpus


BUSY = machine.Own(device=BIG, total_bytes=BIG.memory_bytes, free_bytes=20.0 * 2**30)
FREE = machine.Own(device=BIG, total_bytes=BIG.memory_bytes, free_bytes=BIG.memory_bytes)


def offers(app):
    return [button.label for button in app.button if (button.key or "").startswith("own_")]


def test_this_machines_gpu_is_offered_and_one_click(open_app, own_gpus):
    own_gpus([FREE, FREE])
    app = open_app()
    assert offers(app) == [f"This machine: {BIG.label}, {format_bytes(BIG.memory_bytes)} free"]
    app.button(key=f"own_{BIG.name}").click().run()
    assert not app.exception and app.selectbox(key="device").value == BIG.name


def test_what_is_free_of_a_busy_gpu_can_be_asked_for(open_app, own_gpus):
    own_gpus([FREE, BUSY])
    app = open_app()
    assert len(offers(app)) == 2
    app.button(key=f"own_free_{BIG.name}").click().run()
    assert not app.exception and app.metric[1].value == format_bytes(machine.free_device(BUSY).usable_bytes)


def test_a_machine_that_is_not_in_the_catalog_becomes_a_custom_device(open_app, own_gpus):
    odd = catalog.custom_device(37.3, "GiB", True)
    own_gpus([machine.Own(device=odd, total_bytes=odd.memory_bytes, free_bytes=None)])
    app = open_app()
    app.button(key="own_custom").click().run()
    assert not app.exception and app.metric[1].value == format_bytes(odd.usable_bytes)


def test_a_hosted_page_offers_nothing(open_app, own_gpus):
    own_gpus([FREE], local=False)
    assert offers(open_app()) == []
