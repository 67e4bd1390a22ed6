"""What one decoder layer keeps for its backward pass: the closed forms measured under autograd, to the byte.

The forms and the steps of tests/truth come from the same instrument; memcore knows neither. It derives both from the list
of operations a layer is. Letters: h hidden, i intermediate, a query heads, k key-value heads, d head width, q = a d, kv = k d,
r rank, S length, T tokens, E experts, K experts per token; A = 4q + 4kv + 4a is flash attention's q, k, v, output and row sums.
"""

import numpy as np
import pytest
from measured_steps import STEPS, model

import memcore
from memcore import catalog, program
from memcore.architecture import Experts, Linear
from memcore.estimate import _masked, basis_of, evaluate
from memcore.step import layer_segment, model_width
from memcore.tape import INDEX

RANK, BATCH, LENGTH = 16, 2, 384
LORA = {"method": "lora", "lora_rank": RANK}
QLORA = {"method": "qlora", "lora_rank": RANK}
MODES = {
    "full": {"method": "full", "autocast": False},
    "full-amp": {"method": "full", "precision": "fp32", "autocast": True},
    "lora32": LORA | {"autocast": False},
    "lora-amp": LORA | {"autocast": True},
    "lora16": LORA | {"autocast": False, "adapter_precision": "bf16"},
    "qlora32": QLORA | {"autocast": False},
    "qlora-amp": QLORA | {"autocast": True},
    "qlora-prep": QLORA | {"autocast": False, "prepare_kbit": "all-fp32"},
    "qlora-prep-amp": QLORA | {"autocast": True, "prepare_kbit": "all-fp32"},
}


def flow_of(run):
    choices = {name: getattr(run, name) for name in program.CHOICES}
    return program._flow(choices, bool(_masked(run)), bool(run.lora_dropout), catalog.shardings()[run.sharding])


def kept_by_a_layer(run, position=-1):
    """Bytes a layer keeps, autocast's copies of its weights apart: they do not grow with the tokens."""
    flow = flow_of(run)
    width = layer_segment(run.model, run.model.layers[0], flow, model_width(flow), False, False).out_width
    kept = layer_segment(run.model, run.model.layers[position], flow, width, True, False).kept
    terms = evaluate(kept, basis_of(run))
    return float(terms.sum() - terms[INDEX["weight_casts"]])


def letters(run, position=-1):
    block, h = run.model.layers[position], run.model.hidden_size
    at, roles = block.attention, {m.role: m for m in block.modules if isinstance(m, Linear)}
    experts = next((m for m in block.modules if isinstance(m, Experts)), None)
    a, k, d = at.num_attention_heads, at.num_key_value_heads, at.head_dim
    i = experts.intermediate_size if experts else roles["down"].in_features
    known = dict(
        h=h, i=i, a=a, k=k, d=d, q=a * d, kv=k * d, r=run.lora_rank, S=run.sequence_length, T=run.tokens, A=4 * a * d + 4 * k * d + 4 * a
    )
    if experts:
        known |= dict(E=experts.num_experts, K=experts.experts_per_token)
    if "kv_b" in roles:
        known |= dict(
            R=roles["kv_b"].in_features, v=at.value_head_dim, nope=at.head_dim - at.rotary_dim, i_shared=roles["shared_down"].in_features
        )
    return known


LLAMA = {
    "full": "16h + 8 + 8i + A",
    "full-amp": "26h + 8 + 8i + A",
    "lora32": "28h + 8 + 8q + 4kv + 4a + 10i + 28r",
    "qlora32": "28h + 8 + 8q + 4kv + 4a + 10i + 28r",
    "lora-amp": "18h + 8 + 6q + 4kv + 4a + 8i + 14r",
    "lora16": "12h + 8 + A + 8i + 14r",
    "qlora-amp": "12h + 8 + A + 8i + 14r",
    "qlora-prep-amp": "18h + 8 + 14i + A + 14r",
}
QWEN3 = {mode: form + (" + 6q + 4a + 6kv + 4k" if mode.startswith("full") else " + 4q + 4a + 4kv + 4k") for mode, form in LLAMA.items()}
GEMMA2 = {"full": "36h + 16 + 8i + A", "lora16": "20h + 16 + 8i + 14r + A", "lora32": "36h + 16 + 4q + 10i + 28r + A"}
GEMMA3 = {mode: form + (" + 8q + 4a + 8kv + 4k" if mode == "full" else " + 4q + 4a + 4kv + 4k") for mode, form in GEMMA2.items()}
FLASH, GEMMA = "24", "24 + 16h"
"""Once per layer and call: the random state of flash attention, and (1 + w) in float32 of Gemma's four norms."""


def form(name, mode, per_token, once=FLASH, misses="", **fields):
    marks = pytest.mark.xfail(strict=True, reason=misses) if misses else ()
    return pytest.param(name, MODES[mode] | fields, per_token, once, id="-".join([name, mode, *map(str, fields.values())]), marks=marks)


FORMS = [
    *[form(name, mode, text) for name in ("llama-3.1-8b", "llama-2-7b", "tinyllama-1.1b", "smollm2-1.7b") for mode, text in LLAMA.items()],
    *[form(name, mode, text) for name in ("mistral-7b-v0.3", "qwen2.5-7b", "granite-3.0-8b") for mode, text in LLAMA.items()],
    *[form("qwen3-8b", mode, text) for mode, text in QWEN3.items()],
    *[form("gemma-2-9b", mode, text, GEMMA) for mode, text in GEMMA2.items()],
    *[form("gemma-3-12b-text", mode, text, GEMMA + " + 8d") for mode, text in GEMMA3.items()],
    form("olmo-2-7b", "full", "20h + 16 + 12q + 12kv + 4a + 8i"),
    form("phi-3-mini-4k", "full", "16h + 8 + 8i + 8q + 6kv + 4a"),  # v is a view: the fused qkv stays whole; o_proj's input is a copy
    form("phi-4", "full", "16h + 8 + 8i + 8q + 6kv + 4a"),
    form("pythia-6.9b", "full", "20h + 16 + 4a + 4i"),
    form("gpt2-xl", "full", "18h + 16 + 4a + 10i"),  # gelu_new in Python
    form("opt-1.3b", "full", "18h + 16 + 4a + 2i"),
    form("glm-4-9b", "full", "16h + 8 + 8i + 6q + 4kv + 4a", "24 + 2S d"),  # each layer's own cos and sin
    form("falcon-7b", "full", "8h + 8 + 4d + 4a + 2S + 4i", "32"),  # a mask always: memory-efficient with a bias
    form("mixtral-8x7b", "full", "16h + 12 + A + 4E + 40K + 4h K + 8i K", "24 + 4E"),
    form("qwen3-30b-a3b", "full", "16h + 12 + A + 6q + 4a + 6kv + 4k + 4E + 38K + 4h K + 8i K", "24 + 4E"),
    form(
        "deepseek-v2-lite",
        "full",
        "20h + 12 + 8R + 4q + 2a nope + 2a v + 4a + 2a v + 8i_shared + 4E + 36K + 4h K + 8i K",
        "24",
        misses="the router's float32 input, 4h",
    ),
    form(
        "gpt-oss-20b",
        "full",
        "20h + 8 + 8q + 2a S + 2a + 8a + 44K + 2h K + 16i K",
        "0",
        misses="14K bytes of routing per token, float32 norm weights",
    ),
    # a mask per dropped input, one byte an element; 16-bit adapters then no longer share their inputs
    *[form("llama-3.1-8b", mode, LLAMA[mode] + " + 5h + q + i", lora_dropout=0.05) for mode in ("lora32", "lora-amp")],
    form("llama-3.1-8b", "lora16", "8h + 8 + 6i + A + 15h + 3q + 3i + 14r", lora_dropout=0.05),
    # eager attention: float32 softmax and its 16-bit copy, k and v as wide as q
    form("llama-3.1-8b", "full", "16h + 8 + 8i + 8q + 6a S", "0", attention="eager"),
    form("llama-3.1-8b", "lora16", "12h + 8 + 8q + 6a S + 8i + 14r", "0", attention="eager"),
    form("llama-3.1-8b", "lora32", "28h + 8 + 10q + 6a S + 10i + 28r", "0", attention="eager"),  # 2q less: o's input is copied anyway
    form("llama-3.1-8b", "lora-amp", "18h + 8 + 8q + 6a S + 8i + 14r", "0", attention="eager"),
    form("gemma-2-9b", "full", "36h + 16 + 8i + 8q + 8a S", "16h", attention="eager"),  # tanh of the soft-capping
    # padding: the memory-efficient kernel, with k and v as wide as q and a 16-bit bias made of the mask
    form("llama-3.1-8b", "full", "16h + 8 + 8i + A + 4q - 4kv + 2S", "16", attention="sdpa"),
]


def value(text, names):
    """A form as it is written: letters side by side are multiplied."""
    return sum(int(np.prod([_factor(f, names) for f in term.split()])) for term in text.replace(" - ", " + -").split(" + "))


def _factor(text, names):
    letter = text.lstrip("-0123456789")
    number = text.removesuffix(letter)
    return int(number + "1" if number in ("", "-") else number) * (names[letter] if letter else 1)


@pytest.mark.parametrize(("name", "fields", "per_token", "once"), FORMS)
def test_a_layer_keeps_what_the_closed_form_says(name, fields, per_token, once):
    run = memcore.Scenario(model=model(name), micro_batch_size=BATCH, sequence_length=LENGTH, **{"gradient_checkpointing": "none"} | fields)
    names = letters(run)
    assert kept_by_a_layer(run) == run.tokens * value(per_token, names) + value(once, names)


@pytest.mark.parametrize("kind", ["full", "full-reentrant"])
@pytest.mark.parametrize(
    ("mode", "width"),
    [
        ("full", 2),
        ("lora32", 2),
        ("lora-amp", 2),
        ("lora16", 2),
        ("qlora-amp", 2),
        ("full-amp", 4),
        ("qlora-prep", 4),
        ("qlora-prep-amp", 4),
    ],
)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "phi-4", "granite-3.0-8b"])
def test_a_checkpointed_layer_keeps_its_input_and_nothing_else(name, mode, width, kind):
    run = memcore.Scenario(model=model(name), micro_batch_size=BATCH, sequence_length=LENGTH, gradient_checkpointing=kind, **MODES[mode])
    assert kept_by_a_layer(run) == run.tokens * run.model.hidden_size * width


MEASURED_OTHERWISE = {
    # model: (which of its steps, why)
    "gpt-oss-20b": (lambda run: run.method != "full", "8K bytes of routing per token where the experts are frozen"),
}


def measured_layers():
    for step in STEPS:
        applies, reason = MEASURED_OTHERWISE.get(step.row["model"], (lambda run: False, ""))
        yield pytest.param(step, id=str(step), marks=pytest.mark.xfail(strict=True, reason=reason) if applies(step.run) else ())


@pytest.mark.parametrize("step", list(measured_layers()))
def test_a_layer_keeps_what_was_measured(step):
    assert kept_by_a_layer(step.run) == step["saved_per_layer"]


class TestAdapters:
    def test_llama_7b_with_rank_8_on_queries_and_values(self):
        # LoRA (Hu et al. 2021): r (in + out) per matrix; 4,194,304 is what PEFT prints for this run
        run = memcore.Scenario(model="meta-llama/Llama-2-7b-hf", method="lora", lora_rank=8, lora_target_modules=("q_proj", "v_proj"))
        assert memcore.estimate(run).trainable_parameters == 4_194_304

    @pytest.mark.parametrize("name", ["llama-3.1-8b", "phi-4", "gpt2-xl", "falcon-7b", "pythia-6.9b"])
    def test_an_adapter_is_rank_times_in_plus_out(self, name):
        run = memcore.Scenario(model=model(name), method="lora", lora_rank=5)
        linears = [m for block in run.model.layers for m in block.modules if isinstance(m, Linear)]
        assert memcore.estimate(run).trainable_parameters == sum(5 * (m.in_features + m.out_features) for m in linears)

    def test_modules_not_named_keep_less(self):
        def kept(targets):
            run = memcore.Scenario(
                model=model("llama-3.1-8b"), gradient_checkpointing="none", lora_target_modules=targets, **MODES["lora-amp"]
            )
            return kept_by_a_layer(run)

        h, r, tokens = 4096, RANK, 4 * 4096
        assert kept("all-linear") > kept(("q_proj", "v_proj")) > kept(("q_proj",))
        assert kept(("q_proj", "v_proj")) - kept(("q_proj",)) == tokens * (2 * h + 2 * r)  # each target keeps its own 16-bit input
