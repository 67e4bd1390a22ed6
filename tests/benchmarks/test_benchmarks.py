"""How long things take that somebody waits for."""

import subprocess
import sys

import numpy as np

import memcore
from memcore import advice, cautions, program, step

RUN = memcore.Scenario(model="meta-llama/Llama-3.1-8B")
CARD = memcore.devices()["NVIDIA GeForce RTX 4090"]


def forget():
    """As in a fresh process: nothing is compiled."""
    for module in (program, step):
        for function in vars(module).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


def test_one_estimate(report):
    lengths = iter(range(1, 10**6))
    report("one estimate, a slider moved", lambda: memcore.estimate(RUN.replace(sequence_length=next(lengths))).device, "under 1 ms", 50)


def test_one_estimate_of_a_choice_never_made_before(report):
    def cold():
        forget()
        return memcore.estimate(RUN).device

    report("one estimate, nothing compiled", cold)


def test_a_sweep(report):
    grids = {"sequence_length": np.arange(128, 12_928, 128), "micro_batch_size": np.arange(1, 101)}
    memcore.sweep(RUN, **grids)
    report("100 x 100 sweep, as a table", lambda: memcore.sweep(RUN, **grids), "under 50 ms")


def test_the_solver(report):
    report("largest sequence length", lambda: memcore.largest(RUN, "sequence_length", CARD.usable_bytes))
    memcore.largest_model(RUN, CARD.usable_bytes)
    report("largest model of the catalog, again", lambda: memcore.largest_model(RUN, CARD.usable_bytes))
    report("largest model of the catalog, first time", lambda: (forget(), memcore.largest_model(RUN, CARD.usable_bytes)), times=2)


def test_advice_and_cautions(report):
    report("advice, again", lambda: memcore.advise(RUN, CARD))
    report("advice, first time", lambda: (forget(), memcore.advise(RUN, CARD)), times=2)
    report("cheapest plan for a full fine-tune", lambda: advice.cheapest_plan(RUN.replace(method="full"), CARD))
    report("cautions", lambda: cautions.cautions(RUN, CARD))


def test_the_import(report):
    def python(code):
        subprocess.run([sys.executable, "-c", code], check=True)

    report("python itself, with numpy", lambda: python("import numpy"), times=3)
    report("python with memcore", lambda: python("import memcore"), "0.5 s more at most", times=3)
