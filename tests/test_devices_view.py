"""Devices against methods: the table says what estimate and solver say, and the view draws it."""


import pytest

import memcore
from memcore import catalog, export, figures_whatif, links, matrix, solver
from memcore.summary import by_method, verdict

RUN = memcore.Scenario(model=links.DEFAULT_MODEL)
DEVICES = [d for d in catalog.devices().values() if d.kind in ("consumer", "datacenter")]
TOO_LARGE = memcore.Scenario(model="meta-llama/Llama-3.1-405B", micro_batch_size=64, sequence_length=2**17)


@pytest.fixture(scope="module")
def table():
    return matrix.fit(by_method(RUN), DEVICES)


def test_every_cell_is_the_verdict_on_that_device(table):
    assert len(table) == 3 * len(DEVICES)
    for row in table.iloc[::7].itertuples():
        v = verdict(memcore.estimate(by_method(RUN)[row.method]), catalog.devices()[row.device])
        assert (row.verdict, row.needs_bytes, row.spare_bytes) == (v.word, v.needs, v.spare)


@pytest.mark.parametrize("method", links.METHODS)
def test_the_smallest_device_named_fits_even_at_the_bands_high_end(table, method):
    fits, tight, of, least = matrix.summary(table, method)
    breakdown = memcore.estimate(by_method(RUN)[method])
    high = float(breakdown.device_band[1])
    assert catalog.devices()[least].usable_bytes == min(d.usable_bytes for d in DEVICES if d.usable_bytes >= high)
    assert (fits, of) == (sum(d.usable_bytes >= high for d in DEVICES), len(DEVICES))
    assert fits + tight == sum(d.usable_bytes >= breakdown.device for d in DEVICES)


def test_where_none_fits_none_is_named():
    table = matrix.fit(by_method(TOO_LARGE), DEVICES)
    assert matrix.summary(table, "full") == (0, 0, len(DEVICES), None) and matrix.smallest(TOO_LARGE) is None


@pytest.mark.parametrize("method", links.METHODS)
def test_the_largest_models_are_the_solvers(method):
    run = by_method(RUN)[method]
    budgets = (14.6 * 2**30, 2.0 * 2**30, 79.1 * 2**30, 14.6 * 2**30)
    found = matrix.largest_models(run, budgets)
    for budget, answer in zip(budgets, found, strict=True):
        known = solver.largest_model(run, budget)
        assert answer.model == known.model
        assert not answer.model or answer.needs == known.needs


def test_the_shown_tables_have_a_row_for_each_device_and_numbers_to_sort_by(table):
    for shown, numbers in (
        (matrix.shown_fit(table), "QLoRA: spare (GiB)"),
        (matrix.shown_largest(matrix.largest(by_method(RUN), DEVICES[:9])), "QLoRA: billions"),
    ):
        assert shown["Device"].is_unique and shown["Gives (GiB)"].is_monotonic_decreasing
        assert shown[numbers].dtype.kind == "f"


def test_the_map_draws_every_cell_and_says_more_than_colour(table):
    figure = figures_whatif.fit_map(table, "GB")
    (heat,) = figure.data
    assert heat.z.shape == (len(DEVICES), 3) and len(figure.layout.annotations) == 3 * len(DEVICES)
    assert {a.text[0] for a in figure.layout.annotations} <= set(matrix.MARKS.values())
    row = table.iloc[0]
    y, x = (list(figure.layout.yaxis.ticktext).index(row["label"]), list(links.METHODS).index(row["method"]))
    assert row["verdict"] in heat.customdata[y][x] and "GB" in heat.customdata[y][x]


def test_a_map_of_sizes_says_none_where_nothing_fits():
    table = matrix.largest(by_method(TOO_LARGE), DEVICES[:3])
    figure = figures_whatif.largest_map(table)
    assert {a.text for a in figure.layout.annotations} == {"none"}


def test_the_file_keeps_the_scenarios_own_columns(table):
    text = export.to_csv(export.with_scenario(table.rename(columns=matrix.IN_A_FILE), RUN, DEVICES[0])).decode()
    assert {"on_device", "with_method", "device", "method", "spare_bytes"} <= set(text.lstrip("\ufeff").splitlines()[0].split(","))


# ---- the page


@pytest.fixture
def app(open_app):
    return open_app(view="Devices")


def test_the_view_filters_by_class(app):
    assert not app.exception and set(app.dataframe[0].value["Class"]) == {"consumer"}
    app.get_by_key("device_classes").set_value(["apple", "cloud"]).run()
    assert set(app.dataframe[0].value["Class"]) == {"apple", "cloud"}
    app.get_by_key("device_classes").set_value([]).run()
    assert not app.exception and any("Choose a class" in i.value for i in app.info)


def test_a_device_named_on_a_card_is_used_with_its_method(app):
    app.button(key="use_device_lora").click().run()
    assert not app.exception and app.get_by_key("method").value == "lora"
    assert catalog.devices()[app.selectbox(key="device").value].usable_bytes >= memcore.estimate(by_method(RUN)["lora"]).device


def test_the_reverse_names_the_largest_models(app):
    app.get_by_key("devices_question").set_value("Largest model").run()
    assert not app.exception
    shown = app.dataframe[0].value.set_index("Device")
    card = catalog.devices()[links.DEFAULT_DEVICE]
    assert solver.largest_model(RUN, card.usable_bytes).model.name.endswith(shown.loc[card.label, "QLoRA"])


def test_every_class_of_the_catalog_can_be_chosen():
    from memcore.pages import devices

    assert {d.kind for d in catalog.devices().values()} == set(devices.CLASSES)
