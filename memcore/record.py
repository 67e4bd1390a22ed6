"""Print the catalog record of a config.json: `python -m memcore.record meta-llama/Llama-3.1-8B path/to/config.json`.

What the file does not say (release, licence, published total, where it was seen) is left for you to fill in; the record
goes into the family's file in data/models, and the tests hold its count to the published total.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date
from typing import Any

from . import configs

LEFT_OUT = {"_name_or_path", "transformers_version", "auto_map", "use_cache", "id2label", "label2id", "quantization_config"}
"""Keys that say nothing about shapes."""


def record(name: str, config: dict[str, Any]) -> str:
    """The record of one model as TOML: keys as in config.json, with nulls listed apart, since TOML has none."""
    model = configs.model_from_config(config)
    config = {k: v for k, v in config.items() if k not in LEFT_OUT}
    lines = ["[[model]]", f"id = {json.dumps(name)}", 'release = ""  # year-month']
    lines += [f"context_length = {model.max_position_embeddings}", 'license = ""', "gated = false"]
    lines += [
        f"# published_parameters =   # counted: {model.parameters:_}",
        'published_source = ""',
        'source = ""  # where the config was seen',
    ]
    lines += ['basis = "read"', f"checked = {date.today().isoformat()}"]
    nulls = list(_nulls(config))
    lines += [f"null_keys = {json.dumps(nulls)}"] if nulls else []
    lines += _table(config, "model")
    return "\n".join(lines) + "\n"


def _table(values: dict[str, Any], name: str) -> list[str]:
    """Plain keys first, then a table for each nested one."""
    plain = {k: v for k, v in values.items() if not isinstance(v, dict) and v is not None}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for key, value in values.items():
        if isinstance(value, dict):
            inner = f"{name}.{_key(key)}"
            lines += ["", f"[{inner}]", *_table(value, inner)]
    return lines


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def _nulls(values: dict[str, Any], outer: str = "") -> Iterator[str]:
    for key, value in values.items():
        if value is None:
            yield outer + key
        elif isinstance(value, dict):
            yield from _nulls(value, f"{outer}{key}.")


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    name, path = arguments
    try:
        print(record(name, configs.read_json(path)), end="")
    except configs.ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
