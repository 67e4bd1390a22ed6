import pytest
from readme_sections import SECTIONS, section, written


@pytest.mark.parametrize("name", SECTIONS)
def test_the_readme_says_what_the_code_says(name):
    assert written(name) == section(name), "python tests/readme_sections.py writes it anew"
