"""Text from outside never becomes markup: what a stranger's link, file or config says is shown as it is."""

import pandas as pd
import pytest

from memcore.markup import JOINER, escape, escaped


@pytest.mark.parametrize("text", ["**b**", "![i](http://a.example/i.png)", "$x^2$", "~~s~~", "`c`", "<b>", "[a](b)", "# a", "a|b", "a_b_c"])
def test_marks_are_escaped(text):
    assert not any(c in escape(text).replace("\\" + c, "") for c in text if c in "*$~`<[#|_!")


@pytest.mark.parametrize("text", [":smile:", ":material/home:", "www.a.example", "https://a.example", "me@a.example", "--flag", "->"])
def test_what_markdown_would_change_without_marks_is_parted(text):
    assert JOINER in escape(text) and escape(text).replace(JOINER, "").replace("\\", "") == text


def test_plain_text_stays_as_it_is():
    assert escape("Llama-3.1-8B QLoRA 4 × 4K: fits") == "Llama-3.1-8B QLoRA 4 × 4K: fits"


def test_a_table_is_escaped_to_its_column_names():
    table = escaped(pd.DataFrame({"**a**": ["![i](b)", 1]}))
    assert list(table.columns) == [r"\*\*a\*\*"] and table.iloc[0, 0] == r"\!\[i\](b)" and table.iloc[1, 0] == 1
