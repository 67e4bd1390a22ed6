"""The README's sections that repeat what the code knows, "What is counted" and "How close is it?": made here, held to it by
test_readme.py.

`python tests/readme_sections.py` writes them into the README.
"""

from pathlib import Path

from measured_steps import STEPS
from test_unseen_steps import ROWS as UNSEEN
from test_unseen_steps import run_of

import memcore
from memcore import ledger, validation
from memcore.validation import METHODS, errors, percent

README = Path(__file__).resolve().parents[1] / "README.md"
INTRODUCTION = """\
Every published run whose settings are known (`data/measured_runs.csv`), estimated by this version. Live tensors are
`torch.cuda.max_memory_allocated()`; what the allocator holds free and the driver adds depends on a run's history, so there
memcore gives a typical value and a band."""
TERMS_INTRODUCTION = """\
A training step is run symbolically: every operation of the forward pass says which tensors autograd keeps, every operation
of the backward pass what it makes and frees. In each phase the terms below are added up; the peak is the largest phase. What
each is in a run at hand, with the numbers put in, is in the page's table, the CSV and `MemoryBreakdown.to_frame()`."""
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


def terms():
    """What is counted: one line for each term of the ledger."""
    lines = ["## What is counted", "", TERMS_INTRODUCTION, "", "| term | bytes | what it is | source |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {t.label} | {t.formula} | {t.meaning} | {t.source} |" for t in ledger.TERMS])


def accuracy():
    lines = ["## How close is it?", "", INTRODUCTION, "", validation.to_markdown(), ""]
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
    return "\n".join(lines)


SECTIONS = {"terms": terms, "accuracy": accuracy}


def section(name):
    """A section between its marks, as the code has it now."""
    start, end = marks(name)
    return f"{start}\n{SECTIONS[name]()}\n{end}"


def marks(name):
    return f"<!-- {name}: written by tests/readme_sections.py -->", f"<!-- end of {name} -->"


def written(name):
    """The section as the README has it."""
    start, end = marks(name)
    text = README.read_text(encoding="utf-8")
    return text[text.index(start) : text.index(end) + len(end)]


def write():
    for name in SECTIONS:
        README.write_text(README.read_text(encoding="utf-8").replace(written(name), section(name)), encoding="utf-8")


if __name__ == "__main__":
    write()
