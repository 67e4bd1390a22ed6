"""The page in a real browser: keyboard, charts, address, download, both themes and widths; no errors, nothing from elsewhere."""

import csv
import io
import re
from urllib.parse import urlsplit

import pytest

import memcore
from memcore import links, summary
from memcore.units import GiB, format_bytes

pytestmark = pytest.mark.browser

RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
TOTALS = """key => {
    const chart = document.querySelector(`.st-key-${key} .js-plotly-plot`);
    const bars = chart._fullData.filter(trace => trace.type === 'bar');
    return bars[0].y.map((name, i) => [name, bars.reduce((sum, bar) => sum + bar.x[i], 0)]);
}"""

CUT_OFF = """() => {
    const main = document.querySelector('[data-testid=stMain]');
    const outside = (text, frame) => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1;
    };
    const texts = [...main.querySelectorAll('.js-plotly-plot')].flatMap(chart =>
        [...chart.querySelectorAll('.main-svg text')].filter(text => text.textContent && outside(text, chart.getBoundingClientRect())));
    const labels = '[data-testid=stMetricLabel] p, [data-testid=stMetricValue] div, [data-testid=stMain] button p';
    const cut = [...document.querySelectorAll(labels)].filter(label => label.clientWidth && label.scrollWidth > label.clientWidth + 1);
    return [main.scrollWidth - main.clientWidth, [...texts, ...cut].map(element => element.textContent)];
}"""


def needs(page):
    return page.locator("[data-testid=stMetricValue]").first.inner_text()


def wait_for_needs(page, run, unit="GiB"):
    page.wait_for_function(
        "text => document.querySelector('[data-testid=stMetricValue]')?.innerText === text",
        arg=format_bytes(memcore.estimate(run).device, unit),
    )


def bar(page, method):
    return dict(page.evaluate(TOTALS, "where_it_goes"))[links.METHODS[method]]


def slider(page, key):
    return page.locator(f".st-key-{key} input[type=range]")


def test_a_slider_moved_by_keyboard_changes_verdict_and_chart(page, settle):
    assert bar(page, "qlora") == pytest.approx(memcore.estimate(RUN).device / GiB)
    slider(page, "sequence_length").press("ArrowLeft")
    shorter = RUN.replace(sequence_length=3072)
    wait_for_needs(page, shorter)
    settle(page)
    assert bar(page, "qlora") == pytest.approx(memcore.estimate(shorter).device / GiB)
    assert bar(page, "full") == pytest.approx(memcore.estimate(shorter.replace(method="full")).device / GiB)
    assert "3K tokens" in page.locator("[data-testid=stAlert]").first.inner_text()
    assert page.url.endswith("?sequence_length=3K")
    page.get_by_text("since the last move").wait_for()


def test_the_downloaded_csv_is_what_the_page_shows(page):
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    text = download.value.path().read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    shown = page.locator(".st-key-every_number tbody tr")
    cells = [shown.nth(i).locator("td").all_inner_texts() for i in range(shown.count())]
    assert [row["label"] for row in rows] == [c[0].split("\n")[0] for c in cells]
    assert [f"{float(row['gib']):,.3f}" for row in rows] == [c[1] for c in cells]
    assert [f"{float(row['bytes']):,.0f}" for row in rows] == [c[3] for c in cells]
    assert format_bytes(sum(float(row["bytes"]) for row in rows)) == needs(page)
    assert {row["model"] for row in rows} == {RUN.model.name} and {row["micro_batch_size"] for row in rows} == {"4"}
    assert not re.search(r"(^|,|\n)\"?[=+@-]", text)


def test_a_shared_link_opens_the_same_page_elsewhere(page, open_page, settle):
    page.get_by_role("radio", name="LoRA", exact=True).click()
    run = RUN.replace(method="lora")
    wait_for_needs(page, run)
    slider(page, "micro_batch_size").press("ArrowRight")
    run = run.replace(micro_batch_size=5)
    wait_for_needs(page, run)
    settle(page)
    page.get_by_role("button", name="Share").click()
    link = page.locator("[data-testid=stCode]").inner_text().strip()
    for address in (link, page.url):
        other = open_page(f"?{urlsplit(address).query}")
        assert needs(other) == needs(page) == format_bytes(memcore.estimate(run).device)
        assert other.evaluate(TOTALS, "where_it_goes") == page.evaluate(TOTALS, "where_it_goes")
        assert other.evaluate(TOTALS, "over_one_step") == page.evaluate(TOTALS, "over_one_step")
        assert other.locator("[data-testid=stAlert]").first.inner_text() == page.locator("[data-testid=stAlert]").first.inner_text()


def test_a_link_in_the_words_of_python_works_and_keeps_working(open_page, settle):
    page = open_page("?method=lora&device=NVIDIA+H100+80GB+HBM3&sequence_length=8192")
    run = RUN.replace(method="lora", sequence_length=8192)
    wait_for_needs(page, run)
    slider(page, "micro_batch_size").press("ArrowLeft")
    run = run.replace(micro_batch_size=3)
    wait_for_needs(page, run)
    settle(page)
    page.reload()
    wait_for_needs(page, run)
    page.get_by_role("radio", name="Full", exact=True).click()
    wait_for_needs(page, run.replace(method="full"))
    settle(page)
    page.reload()
    wait_for_needs(page, run.replace(method="full"))


@pytest.mark.parametrize("query", ["?model=nobody%2Fnothing", "?sequence_length=-5&micro_batch_size=1e99&lora_dropout=nan&nonsense=1"])
def test_a_broken_link_opens_with_a_notice_and_a_working_page(open_page, query):
    page = open_page(query)
    page.get_by_text("Not everything could be used.").wait_for()
    wait_for_needs(page, RUN)
    slider(page, "micro_batch_size").press("ArrowLeft")
    wait_for_needs(page, RUN.replace(micro_batch_size=3))
    page.get_by_text("Not everything could be used.").wait_for(state="detached")


def test_a_model_is_found_by_any_part_of_its_name(page):
    box = page.get_by_role("combobox", name="Model")
    box.click()
    box.press_sequentially("smollm2-1.7")
    page.get_by_role("option", name="HuggingFaceTB/SmolLM2-1.7B", exact=True).click()
    wait_for_needs(page, RUN.replace(model="HuggingFaceTB/SmolLM2-1.7B"))


def test_the_verdict_what_to_change_and_the_bars_are_on_a_laptops_first_screen(page):
    bars = page.locator(".st-key-where_it_goes .bars")
    for shown in (page.get_by_text("Does not fit.").first, page.locator(".st-key-plan"), page.get_by_text("Where it goes"), bars.last):
        box = shown.bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < 900


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_nothing_is_cut_off(open_page, width, color_scheme):
    page = open_page(width=width, color_scheme=color_scheme)
    wide, sticking_out = page.evaluate(CUT_OFF)
    assert wide <= 0 and sticking_out == []


def test_every_control_of_the_sidebar_is_reached_by_keyboard(page):
    reached = set()
    page.locator("[data-testid=stSidebar] input").first.focus()
    for _ in range(60):
        reached.add(page.evaluate("document.activeElement.closest('[class*=st-key-]')?.className.match(/st-key-(\\w+)/)?.[1]"))
        page.keyboard.press("Tab")
    assert {"model", "device", "method", "quantization", "sequence_length", "micro_batch_size", "gradient_checkpointing", "unit"} <= reached


def test_the_sentence_says_what_the_numbers_say(page):
    text = page.locator("[data-testid=stAlert]").first.inner_text()
    breakdown = memcore.estimate(RUN)
    device = memcore.devices()[links.DEFAULT_DEVICE]
    assert summary.sentence(summary.verdict(breakdown, device), RUN, device) in text
