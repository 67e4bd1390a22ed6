"""The README's "How close is it?": made here from the code, held to it by test_validation.py.

`python tests/accuracy_section.py` writes it into the README.
"""

from pathlib import Path

from measured_steps import STEPS
from test_unseen_steps import ROWS as UNSEEN
from test_unseen_steps import run_of

import memcore
from memcore import validation
from memcore.validation import METHODS, errors, percent

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- accuracy: written by tests/accuracy_section.py -->", "<!-- end of accuracy -->"
INTRODUCTION = """\
Every published run whose settings are known (`data/measured_runs.csv`), estimated by this version. Live tensors are
`torch.cuda.max_memory_allocated()`; what the allocator holds free and the driver adds depends on a run's history, so there
memcore gives a typical value and a band."""
STEPS_INTRODUCTION = """\
{n} training steps of {models} models, measured under autograd with the real transformers, PEFT and torch (`tests/truth`),
peak of live tensors:"""


UNSEEN_INTRODUCTION = """{n} more steps of {models} models with settings drawn at random over every mode, measured after the operations were written:
median error {median}, 90 % within {p90}, worst {worst}."""


def unseen():
    e = errors(float(memcore.estimate(run_of(row)).allocated) / row["peak_bytes"] - 1 for row in UNSEEN)
    models = len({row["config"] for row in UNSEEN})
    return UNSEEN_INTRODUCTION.format(n=e.n, models=models, median=percent(e.median, 2), p90=percent(e.p90, 2), worst=percent(e.worst, 2))


def step_errors(method):
    steps = [step for step in STEPS if step.run.method == method]
    return errors(float(memcore.estimate(step.run).allocated) / step["peak_bytes"] - 1 for step in steps)


def section():
    lines = [START, "## How close is it?", "", INTRODUCTION, "", validation.to_markdown(), ""]
    lines += [STEPS_INTRODUCTION.format(n=len(STEPS), models=len({step.row["model"] for step in STEPS})), ""]
    lines += ["| method | steps | median error | 90 % within | worst |", "|---|--:|--:|--:|--:|"]
    for method, label in METHODS.items():
        e = step_errors(method)
        lines.append(f"| {label} | {e.n} | {percent(e.median, 2)} | {percent(e.p90, 2)} | {percent(e.worst, 2)} |")
    lines += [
        "",
        unseen(),
        "",
        "Misses (live tensors by more than 1 %, other figures by more than 5 %, or outside the band), and what is known about them:",
        "",
    ]
    for note, rows in validation.misses().groupby("note", sort=False):
        low, high = (round(100 * end, 1) + 0.0 for end in (rows["error"].min(), rows["error"].max()))
        runs = f"{len(rows)} runs, {low:+} to {high:+} %" if len(rows) > 1 else f"1 run, {high:+} %"
        lines.append(f"- {runs} (worst: {rows['id'].iloc[0]}): {note}.")
    return "\n".join([*lines, END])


def written():
    """The section as the README has it; empty where it has none."""
    text = README.read_text(encoding="utf-8")
    return text[text.index(START) : text.index(END) + len(END)] if START in text and END in text else ""


def write():
    text, old, new = README.read_text(encoding="utf-8"), written(), section()
    text = text.replace(old, new) if old else text.replace("\n## Units\n", f"\n{new}\n\n## Units\n")
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
