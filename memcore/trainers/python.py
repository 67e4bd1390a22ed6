"""A snippet of Python → the keyword arguments of the calls it makes. It is parsed, never run."""

from __future__ import annotations

import ast
import re

from .errors import TrainerFileError, show

CALLS = {
    "from_pretrained": "", "get_peft_model": "", "SFTConfig": "", "TrainingArguments": "", "UnslothTrainingArguments": "",
    "LoraConfig": "lora", "BitsAndBytesConfig": "",
}  # fmt: skip
"""Calls that are read; the arguments of LoraConfig get the names that TRL's command line gives them."""
LORA_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save"}
STRONGER = ("get_peft_model", "SFTConfig", "TrainingArguments", "UnslothTrainingArguments")
"""Where two calls give the same argument, the one that comes later in training counts."""
OTHER_MODELS = ("AutoTokenizer", "AutoProcessor", "PeftModel", "AutoConfig")
MAX_CHARACTERS = 100_000
MAX_BRACKETS = 50


def parse_python(text: str) -> tuple[dict[str, object], dict[str, str], list[str]]:
    """Keyword arguments by name, those whose value is not written out, and the names of the calls."""
    if len(text) > MAX_CHARACTERS:
        raise TrainerFileError(f"the snippet is {len(text):,} characters long; paste the calls themselves")
    _check_depth(text)
    lines = [line for line in text.splitlines() if not re.match(r"\s*[!%]", line)]  # a notebook's shell commands
    source = "\n".join(lines)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise TrainerFileError(f"the snippet is not valid Python: {show(error.msg)} (line {error.lineno})") from None
    except (ValueError, MemoryError, RecursionError):
        raise TrainerFileError("the snippet cannot be read as Python; paste the calls themselves") from None
    names = _assigned(tree)
    values: dict[str, object] = {}
    weak: dict[str, object] = {}
    unreadable: dict[str, str] = {}
    calls: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, owner = _called(node)
        if called not in CALLS or owner in OTHER_MODELS:
            continue
        calls.append(f"{owner}.{called}" if owner else called)
        target = values if called in STRONGER else weak
        if called == "from_pretrained" and node.args:
            _put(weak, unreadable, "model_name", node.args[0], names, source)
        for keyword in node.keywords:
            if keyword.arg is None:
                unreadable["**"] = f"of {called} is not written out"
                continue
            name = LORA_NAMES.get(keyword.arg, keyword.arg) if CALLS[called] == "lora" else keyword.arg
            if not isinstance(keyword.value, ast.Call):  # a call is read by itself
                _put(target, unreadable, name, keyword.value, names, source)
    if any(call.endswith("LoraConfig") for call in calls):
        weak.setdefault("use_peft", True)
    merged = weak | values
    return merged, {name: why for name, why in unreadable.items() if name not in merged}, calls


def _put(values: dict, unreadable: dict, name: str, node: ast.expr, names: dict[str, object], text: str) -> None:
    try:
        values[name] = _literal(node, names)
    except ValueError:
        shown = show(ast.get_source_segment(text, node) or "…").strip("'\"")
        unreadable[name] = f"is not written out ({shown}); write its value"


def _literal(node: ast.expr, names: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        if node.id in names:
            return names[node.id]
        raise ValueError
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return node.attr  # torch.bfloat16
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(element, names) for element in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError):
        raise ValueError from None


def _assigned(tree: ast.Module) -> dict[str, object]:
    """Names the snippet gives a plain value at its top level, and only once."""
    names: dict[str, object] = {}
    seen: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            try:
                value = _literal(statement.value, names)
                if isinstance(value, list) and any(isinstance(part, (list, dict, set, tuple)) for part in value):
                    raise ValueError  # lists of lists of lists grow when they are shown
                names[name] = value
            except ValueError:
                names.pop(name, None)
            if name in seen:
                names.pop(name, None)
            seen.add(name)
    return names


def _called(node: ast.Call) -> tuple[str, str]:
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        return node.func.attr, owner
    return (node.func.id, "") if isinstance(node.func, ast.Name) else ("", "")


def _check_depth(text: str) -> None:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_BRACKETS:
            raise TrainerFileError(f"the snippet is nested more than {MAX_BRACKETS} brackets deep")
