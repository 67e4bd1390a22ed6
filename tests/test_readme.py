import doctest
import importlib

import pytest
from readme_sections import README, SECTIONS, section, written

PACKAGE = README.parent / "memcore"
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", SECTIONS)
def test_the_readme_says_what_the_code_says(name):
    assert written(name) == section(name), "python tests/readme_sections.py writes it anew"


def test_the_readmes_examples_run():
    result = doctest.testfile(str(README), module_relative=False, encoding="utf-8")
    assert result.attempted and not result.failed


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_of_docstrings_run(path):
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
