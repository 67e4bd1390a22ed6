"""Several GPUs on the page: stages, what is divided and what is whole, the host's memory, more of them and fewest of them."""

import numpy as np
import pytest
from test_dashboard import chart

import memcore
from memcore import catalog, figures_several, links, remarks, several, solver, summary, units
from memcore.units import GiB

pytestmark = pytest.mark.usefixtures("quick")

H100 = catalog.devices()["NVIDIA H100 80GB HBM3"]
RUN = memcore.Scenario(model=links.DEFAULT_MODEL, method="full")
FSDP = RUN.replace(data_parallel_size=8, sharding="fsdp")
STAGES = memcore.Scenario(model="meta-llama/Llama-3.1-70B", method="lora", pipeline_parallel_size=4, tensor_parallel_size=2, gradient_accumulation_steps=8)
RUNS = {
    "fsdp": FSDP,
    "ddp": RUN.replace(data_parallel_size=8),
    "zero2": RUN.replace(data_parallel_size=8, sharding="zero2"),
    "offload": RUN.replace(data_parallel_size=8, sharding="zero2", offload="optimizer"),
    "qlora": RUN.replace(method="qlora", data_parallel_size=2, sharding="fsdp"),
    "stages": STAGES,
    "context": RUN.replace(context_parallel_size=4, sharding="fsdp"),
}


def said(app):
    return " ".join(element.value for kind in (app.markdown, app.info, app.caption) for element in kind)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_divided_and_whole_parts_are_the_peak(run):
    breakdown = memcore.estimate(run)
    assert sum(several.totals(breakdown).values()) == pytest.approx(float(breakdown.allocated), rel=1e-12)


def test_with_nothing_sharded_nothing_is_divided():
    parts = several.totals(memcore.estimate(RUNS["ddp"]))
    assert parts["divided"] == 0 and parts["whole"] > 2 * RUN.model.parameters


def test_what_is_divided_halves_with_twice_as_many_and_the_rest_stays():
    before, after = (several.totals(memcore.estimate(RUN.replace(data_parallel_size=n, sharding="fsdp"))) for n in (8, 16))
    assert after["divided"] == pytest.approx(before["divided"] / 2)
    assert (after["whole"], after["tokens"]) == (before["whole"], before["tokens"])


def test_fsdp_divides_every_byte_of_weights_but_what_is_gathered():
    # 2 bytes for each parameter among 8; the gathered layers are overhead
    parts = several.by_kind(memcore.estimate(FSDP)).set_index(["kind", "group"])["bytes"]
    assert parts["divided", "weights"] == pytest.approx(2 * RUN.model.parameters / 8) and parts["whole", "weights"] == 0


def test_the_sentence_about_more_gpus_has_the_numbers():
    text = several.twice_as_many(FSDP)
    after = memcore.estimate(FSDP.replace(data_parallel_size=16))
    assert units.format_bytes(float(after.device)) in text and "falls by" in text and "stay" in text
    assert "nothing is divided" in several.twice_as_many(RUNS["ddp"]) and several.sharded_instead(RUNS["ddp"])
    assert not several.sharded_instead(FSDP)
    assert "within a machine" in several.twice_as_many(FSDP.replace(sharding="hsdp"))


def test_the_most_gpus_have_no_double():
    assert several.twice_as_many(FSDP.replace(data_parallel_size=2**20)) == ""


def test_stages_are_named_by_their_layers():
    names = list(several.by_stage(STAGES))
    assert names == [
        "Stage 1: embedding, layers 1 to 20",
        "Stage 2: layers 21 to 40",
        "Stage 3: layers 41 to 60",
        "Stage 4: layers 61 to 80, head",
    ]


def test_the_busiest_stage_is_the_verdicts():
    needs = max(float(b.device) for b in several.by_stage(STAGES).values())
    assert needs == float(memcore.estimate(STAGES).device)


def test_many_stages_are_drawn_in_part_and_all_are_in_the_table():
    found = several.by_stage(STAGES.replace(pipeline_parallel_size=40))
    drawn = list(several.shown(found))
    assert len(drawn) == several.MOST_BARS and (drawn[0], drawn[-1]) == (list(found)[0], list(found)[-1])
    assert len(several.stage_table(found)) == 40


def test_the_stage_chart_adds_up_to_what_each_needs():
    found = several.by_stage(STAGES)
    figure = figures_several.by_stage(summary.stacks(found), H100.usable_bytes)
    totals = np.sum([trace.x for trace in figure.data], axis=0)
    assert totals == pytest.approx([float(b.device) / GiB for b in found.values()])
    assert "(GiB)" in figure.layout.xaxis.title.text and figure.layout.shapes


def test_the_chart_of_parts_has_no_line_to_compare_with():
    figure = figures_several.divided_and_whole(several.by_kind(memcore.estimate(FSDP)), "GB")
    assert not figure.layout.shapes and "(GB)" in figure.layout.xaxis.title.text


def test_the_host_must_hold_what_its_gpus_have_offloaded():
    run = RUNS["offload"]
    found = several.host(memcore.estimate(run))
    assert found.gpus == 8 and found.needs == float(memcore.estimate(run).host) * 8
    assert found.too_small < found.needs <= found.machine
    assert several.host(memcore.estimate(run.replace(gpus_per_node=4))).needs == found.needs / 2
    assert several.host(memcore.estimate(FSDP)) is None


def test_fewest_gpus_are_those_of_the_solver():
    table = several.fewest(summary.by_method(STAGES.replace(pipeline_parallel_size=1, tensor_parallel_size=1)), H100).set_index("Method")
    for method in ("full", "lora", "qlora"):
        run = memcore.Scenario(model="meta-llama/Llama-3.1-70B", method=method, gradient_accumulation_steps=8)
        assert table.loc[links.METHODS[method], "Fewest"] == str(solver.fewest_gpus(run, H100))


def test_where_no_number_is_enough_it_says_so():
    table = several.fewest({"full": RUN.replace(micro_batch_size=64, sequence_length=65536)}, H100)
    assert table["Fewest"][0] == "no number is enough"


class TestOnThePage:
    def test_one_gpu_has_no_such_section(self, open_app):
        assert "What more GPUs would" not in said(open_app())

    def test_several_have_it_with_the_same_words(self, open_app):
        app = open_app(method="full", data_parallel_size="8", sharding="fsdp", device=H100.name)
        assert not app.exception and several.twice_as_many(FSDP) in said(app).replace("\\", "")
        assert chart(app, "divided_and_whole") and any("Fewest" in table.value.columns for table in app.table)

    def test_stages_are_a_chart_and_a_table(self, open_app):
        app = open_app(method="lora", pipeline_parallel_size="4")
        assert not app.exception and len(chart(app, "stages")["layout"]["yaxis"]["tickvals"]) == 4
        assert any("Stage" in table.value.columns for table in app.table)

    def test_offload_has_a_second_verdict_even_on_one_gpu(self, open_app):
        app = open_app(method="full", sharding="zero2", offload="optimizer", device=H100.name)
        assert not app.exception and any("own memory must hold" in i.value for i in app.info)

    @pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
    def test_the_view_holds_for_every_way_to_divide(self, open_app, run):
        values = {k: v for k, v in links.of_run(run).items() if v != links.controls()[k].default}
        words = {k: links.controls()[k].write(v) for k, v in values.items()} | {"model": run.model.name}
        assert not open_app(**words).exception


class TestBesideTheVerdict:
    def test_what_is_not_measured_is_said(self, open_app):
        name = next(n for n, m in catalog.models().items() if m.uncertain)
        app = open_app(model=name)
        for sentence in catalog.model(name).uncertain:
            assert any(sentence in c.value.replace("\\", "") for c in app.main.caption)

    def test_encoders_say_what_they_weigh(self):
        run = memcore.Scenario(model="Qwen/Qwen2.5-VL-7B-Instruct", method="lora")
        # 676,550,144 parameters of the vision encoder and its merger, in 16 bits
        assert "frozen here, 1.26 GiB of weights" in remarks.encoders(run) and "677 M" in remarks.encoders(run)
        assert "left out" in remarks.encoders(run.replace(towers="left-out"))
        assert "trained here" in remarks.encoders(run.replace(towers="trained"))

    def test_a_text_model_has_nothing_to_say(self):
        assert remarks.about_model(memcore.estimate(RUN)) == []
