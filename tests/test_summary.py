"""What the page says about an estimate agrees with the estimate."""

from dataclasses import replace

import pytest

from memcore import catalog, estimate, summary
from memcore.links import METHODS
from memcore.scenario import Scenario
from memcore.units import GiB


@pytest.fixture(scope="module")
def run():
    return Scenario(model="meta-llama/Llama-3.1-8B")


@pytest.fixture(scope="module")
def breakdowns(run):
    return {method: estimate(r) for method, r in summary.by_method(run).items()}


@pytest.fixture(params=METHODS)
def breakdown(request, breakdowns):
    return breakdowns[request.param]


def device(usable):
    return replace(catalog.devices()["NVIDIA GeForce RTX 4090"], label="D 1 GB", usable_bytes=usable)


def test_it_fits_where_the_high_end_of_the_band_does(breakdown):
    low, high = breakdown.device_band
    words = [summary.verdict(breakdown, device(usable)).word for usable in (high, high - 1, breakdown.device, breakdown.device - 1)]
    assert words == ["fits", "tight", "tight", "does not fit"]
    assert low <= breakdown.device <= high


@pytest.mark.parametrize(("usable", "part"), [(1e12, "to spare"), (1, "more than")])
def test_the_sentence_names_run_device_and_numbers(run, breakdowns, usable, part):
    d = device(usable)
    text = summary.sentence(summary.verdict(breakdowns["qlora"], d), run, d)
    assert part in text and "QLoRA of Llama-3.1-8B" in text and "4 sequences of 4K tokens" in text and "D 1 GB" in text


def test_the_bars_of_a_method_add_up_to_what_it_needs(breakdowns):
    stacks = summary.stacks(breakdowns)
    for method, b in breakdowns.items():
        rows = stacks[stacks["method"] == method]
        assert rows["bytes"].sum() == pytest.approx(float(b.device)) and (rows["bytes"] >= 0).all()


def test_the_table_and_the_bar_show_the_same(breakdowns):
    for method, b in breakdowns.items():
        table = summary.terms(b).groupby("group")["bytes"].sum()
        stacks = summary.stacks({method: b}).set_index("group")["bytes"]
        for group, value in table.items():
            assert value == pytest.approx(stacks[group])


def test_one_phase_is_the_peak_and_it_is_the_largest(breakdown):
    phases = summary.over_one_step(breakdown)
    totals = phases.groupby("phase")["bytes"].sum()
    assert set(phases[phases["peak"]]["phase"]) == {breakdown.peak_phase} and totals.idxmax() == breakdown.peak_phase
    assert totals.max() == pytest.approx(float(breakdown.allocated))


def test_the_peak_crosses_the_line_exactly_where_the_run_does_not_fit(breakdown):
    needs = float(breakdown.device)
    assert summary.room_for_tensors(breakdown, device(needs)) == pytest.approx(float(breakdown.allocated))
    assert summary.room_for_tensors(breakdown, device(1)) == 0


def test_why_the_rule_differs_is_told_with_the_numbers_of_this_run(breakdowns):
    # rule of thumb for 8.03 B: QLoRA 0.72 * 8.03 + 3 = 8.78 GB, LoRA 2 * 8.03 + 3 = 19.1 GB, full 12 * 8.03 + 4 = 100 GB
    for method, rule in {"qlora": "8.78 GB", "lora": "19.1 GB", "full": "100.4 GB"}.items():
        text = " ".join(summary.why_different(breakdowns[method]))
        assert rule in text and "8.03 B parameters" in text and "4 × 4K tokens" in text


def test_the_ledger_of_full_fine_tuning_in_bf16_with_a_master_copy_is_16_bytes(run):
    # ZeRO, section 3.1: 2 + 2 + 4 + 4 + 4
    table = summary.ledger(estimate(run.replace(method="full", precision="bf16-master"))).set_index("part")
    assert table["per_parameter"]["Together"] == 16
    assert table["estimate_gb"]["Weights"] == pytest.approx(table["ledger_gb"]["Weights"], rel=0.001)


@pytest.mark.parametrize(("now", "before", "said"), [(2, None, None), (2, 2, None), (3, 2, 1), (1, 2, -1)])
def test_the_change_since_the_last_move(now, before, said):
    assert summary.change(now, before) == said


def test_a_change_is_written_with_its_sign():
    assert summary.signed(1.5 * GiB) == "+1.50 GiB" and summary.signed(-0.5e9, "GB") == "-0.500 GB"
