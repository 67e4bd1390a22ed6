"""The Method view: its text is data, its numbers come from the code that computes them, its formulas from the ledger."""

import re
import string

import pytest
from streamlit.testing.v1 import AppTest
from test_dashboard import SCRIPT

import memcore
from memcore import catalog, cautions, ledger, links, method, remedies, step, summary
from memcore.pages.method import TABS

RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
CARD = catalog.devices()[links.DEFAULT_DEVICE]


@pytest.fixture
def view(open_app):
    return open_app(view="Method")


def said(app):
    return " ".join(m.value for m in app.markdown)


def test_the_view_opens_from_its_link(view):
    assert not view.exception and [t.label for t in view.tabs] == list(TABS)


def test_every_term_of_the_ledger_has_its_row():
    assert list(method.terms(memcore.estimate(RUN))["term"]) == [t.key for t in ledger.TERMS]


def evaluated(formula):
    """What a formula with numbers in comes to: products of two numbers, added."""
    return sum(
        float(c.replace(",", "")) * (float(n.replace(",", "")) if n else 1.0)
        for c, n in re.findall(r"([\d,.]+(?:e[+-]?\d+)?)(?: × ([\d,.]+) )?", formula)
    )


@pytest.mark.parametrize("term", ["weights", "checkpoints", "logits", "inputs", "optimizer_states"])
def test_the_formula_with_numbers_comes_to_the_bytes_beside_it(term):
    row = method.terms(memcore.estimate(RUN)).set_index("term").loc[term]
    assert evaluated(row["formula"]) == pytest.approx(row["bytes"], rel=1e-3)


def test_every_phase_is_explained():
    assert [phase["key"] for phase in method.facts()["phase"]] == list(step.PHASES)


def test_the_texts_name_only_numbers_that_the_code_gives():
    known = method.numbers(RUN)
    texts = [part for kind in ("fact", "mistake") for entry in method.facts()[kind] for part in (entry["title"], entry["text"])]
    named = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    assert named <= set(known)


def test_training_takes_six_to_eight_times_the_download():
    # 12 and 16 bytes per parameter (ZeRO, section 3.1) against the 2 of a 16-bit download
    known = method.numbers(RUN)
    assert (known["training_low"], known["training_high"]) == (6, 8)


def test_qlora_is_about_half_of_lora_and_its_base_a_quarter():
    # 8B: 19 and 9 GB; 4.127 bits per weight (QLoRA, section 3)
    known = method.numbers(RUN)
    assert round(known["lora_8b_gb"]) == 19 and round(known["qlora_8b_gb"]) == 9
    assert known["nf4_bits"] == pytest.approx(4.127, abs=5e-4) and known["base_share"] == pytest.approx(0.26, abs=0.005)


def test_twice_the_length_is_about_twice_the_activations_and_more_with_eager_attention():
    assert method.double_length(RUN) == pytest.approx(2, abs=0.02)
    eager = RUN.replace(attention="eager", gradient_checkpointing="none", loss="fused-linear")
    assert method.double_length(eager) > 2.5


def test_the_longest_length_has_a_double_too():
    assert method.double_length(RUN.replace(sequence_length=2**27, micro_batch_size=1)) == pytest.approx(2, abs=0.05)


def test_every_fact_has_a_source_with_an_address():
    sources = method.facts()["source"]
    assert all(source["address"].startswith("https://") for source in sources.values())
    for fact in method.facts()["fact"]:
        assert fact["sources"] and set(fact["sources"]) <= set(sources)


def test_the_sources_that_must_be_named_are():
    named = " ".join(method.sources())
    for word in ("ZeRO", "Transformers", "Accelerate", "MLX", "LoRA", "QLoRA"):
        assert word in named


def test_five_mistakes_each_a_warning_where_it_applies():
    entries = method.facts()["mistake"]
    known = {key for key, _, _ in cautions.CAUTIONS}
    assert len(entries) == 5 and all(set(entry["cautions"]) <= known for entry in entries)
    too_large = method.mistakes(RUN.replace(method="full"), CARD)
    assert too_large[0].here and not method.mistakes(RUN.replace(micro_batch_size=1, sequence_length=512), CARD)[0].here


def test_what_to_try_names_remedies_that_exist_and_marks_what_is_open():
    known = {kind.key for kind in remedies.REMEDIES}
    assert all(set(entry["remedies"]) <= known for entry in method.facts()["try"])
    unchecked = {t.title: t.here for t in method.what_to_try(RUN.replace(gradient_checkpointing="none"))}
    checked = {t.title: t.here for t in method.what_to_try(RUN)}
    assert unchecked["Gradient checkpointing"] == "open" and checked["Gradient checkpointing"] == ""


def test_only_full_fine_tuning_trains_every_parameter():
    breakdowns = {m: memcore.estimate(r) for m, r in summary.by_method(RUN).items()}
    table = method.who_trains(breakdowns).set_index("Method")
    assert "100%" in table.loc["Full", "Parameters trained"]
    assert table.loc["LoRA", "Gradients"] == table.loc["QLoRA", "Gradients"] != table.loc["Full", "Gradients"]


def test_the_glossary_explains_the_groups_of_the_charts():
    words = " ".join(method.words()["Word"]).lower()
    for word in ("gradient", "activations", "logits", "weight", "optimizer"):
        assert word in words


@pytest.mark.parametrize("query", [{"method": "full"}, {"method": "lora", "data_parallel_size": "8", "sharding": "fsdp"}])
def test_the_view_holds_for_any_run(query):
    app = AppTest.from_file(str(SCRIPT), default_timeout=60)
    for key, value in (query | {"view": "Method"}).items():
        app.query_params[key] = value
    app.run()
    assert not app.exception and "times the download" in said(app)
