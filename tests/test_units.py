import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore.units import GB, GiB, MiB, format_bytes, format_count, format_tokens, parse_bytes, parse_count, parse_tokens


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "GiB", "0 GiB"),
        (1, "GiB", "<0.001 GiB"),
        (-1, "GiB", ">-0.001 GiB"),
        (12 * MiB, "GiB", "0.012 GiB"),
        (0.5 * GiB, "GiB", "0.500 GiB"),
        (0.9999 * GiB, "GiB", "1.00 GiB"),
        (8.03 * GiB, "GiB", "8.03 GiB"),
        (9.996 * GiB, "GiB", "10.0 GiB"),
        (81559 * MiB, "GiB", "79.6 GiB"),  # H100 80GB, nvidia-smi
        (81559 * MiB, "GB", "85.5 GB"),
        (999.9 * GiB, "GiB", "999.9 GiB"),
        (999.99 * GiB, "GiB", "1,000 GiB"),
        (1234.4 * GiB, "GiB", "1,234 GiB"),
        (-6.14 * GiB, "GiB", "-6.14 GiB"),
        (24 * GB, "GB", "24.0 GB"),
        (512, "auto", "512 B"),
        (1536 * MiB, "auto", "1.50 GiB"),
        (3 * MiB, "auto", "3.00 MiB"),
    ],
)
def test_bytes_as_text_have_three_digits_and_a_unit(value, unit, text):
    assert format_bytes(value, unit) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_of_bytes_is_refused(value):
    with pytest.raises(ValueError):
        format_bytes(value)


def test_an_unknown_unit_is_refused_by_name():
    with pytest.raises(ValueError, match="'gigs'.*GiB"):
        format_bytes(1, "gigs")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8_030_261_248, "8.03 B"),  # Llama-3.1-8B
        (70_553_706_496, "70.6 B"),
        (405_853_388_800, "406 B"),
        (494_032_768, "494 M"),
        (4_194_304, "4.19 M"),
        (999_999_999, "1.00 B"),
        (512, "512"),
        (0, "0"),
        (1.5e15, "1500 T"),
    ],
)
def test_counts_are_decimal(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("tokens", "label"),
    [(1, "1"), (512, "512"), (1000, "1000"), (1024, "1K"), (1536, "1.5K"), (8192, "8K"), (131072, "128K"), (2**20, "1M"), (2**27, "128M")],
)
def test_token_labels_are_short_and_ascii(tokens, label):
    assert format_tokens(tokens) == label
    assert parse_tokens(label) == tokens


@given(st.integers(1, 2**27))
def test_every_token_label_reads_back_exactly(tokens):
    assert parse_tokens(format_tokens(tokens)) == tokens


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "24 GB", 24 * GB),
        (parse_bytes, "80GiB", 80 * GiB),
        (parse_bytes, "0.5 gib", GiB // 2),
        (parse_bytes, "81,559 MiB", 81559 * MiB),
        (parse_count, "8.03 B", 8_030_000_000),
        (parse_count, "350m", 350_000_000),
        (parse_count, "8,030,261,248", 8_030_261_248),
        (parse_tokens, "8,192", 8192),
        (parse_tokens, " 8k ", 8192),
    ],
)
def test_labels_are_read(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_tokens])
@pytest.mark.parametrize("text", ["", "nan", "inf", "-5", "1e99", "8X", "8 8", "1,0", "٣B", "9" * 400, None, 8])
def test_nonsense_is_refused_with_an_example(parse, text):
    with pytest.raises(ValueError, match="such as"):
        parse(text)


def test_a_size_without_a_unit_is_refused():
    with pytest.raises(ValueError, match="with its unit"):
        parse_bytes("24")
