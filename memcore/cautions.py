"""What people trip over, said where it applies: one sentence each, with the number that makes it concrete.

A caution is a small function of a run, its estimate and its device that returns the sentence, or None where it does not
apply. Each is from a published thread, or one of the five common mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import catalog
from .architecture import Experts, Linear
from .catalog import Device
from .estimate import MemoryBreakdown, estimate
from .scenario import Scenario, ScenarioError
from .solver import largest
from .units import format_bytes, format_count, format_tokens

NOTICEABLE = 0.02
"""A difference below this share of what the run needs is not worth a sentence."""

LARGE_SHARE = 0.15
"""A term from this share of the peak on is called large."""

WINDOWS_BYTES = 1.0 * 2**30
"""About what a Windows desktop keeps of a card."""

WORDS_PER_TOKEN = 0.75
"""Of English text, a tokenizer maker's rule of thumb (OpenAI, "What are tokens and how to count them?")."""

SHORT_SEQUENCE = 512


@dataclass(frozen=True, slots=True)
class Caution:
    """One sentence to show."""

    key: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Case:
    """What a caution looks at."""

    run: Scenario
    now: MemoryBreakdown
    device: Device | None

    @property
    def needs(self) -> float:
        return float(self.now.device)

    @property
    def has(self) -> float:
        """What the run may take; endless where no device is given."""
        return self.device.usable_bytes if self.device else float("inf")

    @property
    def fits(self) -> bool:
        return self.needs <= self.has

    def needs_with(self, **changes: object) -> float | None:
        """What the run would need with other settings; None where they do not go with the rest."""
        try:
            return float(estimate(self.run.replace(**changes)).device)
        except ScenarioError:
            return None

    def largest_term(self, *terms: str) -> float:
        """The most bytes some terms hold together in any phase."""
        return max(sum(float(phase[term]) for term in terms) for phase in self.now.phases.values())


CAUTIONS: list[tuple[str, str, Callable[[Case], str | None]]] = []
"""Key, source and function of each, in the order they are shown."""


def caution(source: str) -> Callable:
    """Enter the function below into the table, under its own name."""

    def enter(function: Callable[[Case], str | None]) -> Callable:
        CAUTIONS.append((function.__name__, source if source.startswith("http") else f"https://github.com/{source}", function))
        return function

    return enter


def cautions(run: Scenario, device: Device | None = None) -> list[Caution]:
    """The sentences that apply to this run on this device."""
    case = Case(run, estimate(run), device)
    said = [(key, function(case), source) for key, source, function in CAUTIONS]
    return [Caution(key, text, source) for key, text, source in said if text]


# ---- the five common mistakes


@caution("https://huggingface.co/docs/transformers/en/model_memory_anatomy")
def download_size(case: Case) -> str | None:
    """Judging by the download size."""
    download = case.run.model.parameters * 2
    if case.fits or download > case.has:
        return None
    return (
        f"The 16-bit download of {format_bytes(download)} would fit, but training needs {format_bytes(case.needs)}: "
        "gradients, optimizer states and activations come on top of the weights."
    )


@caution("AlexsJones/llmfit/issues/754")
def shared_memory(case: Case) -> str | None:
    """Counting all of a shared-memory machine's RAM."""
    device = case.device
    if device is None or not device.unified or case.fits or case.needs > device.memory_bytes:
        return None
    more = " (on a Mac, sysctl iogpu.wired_limit_mb raises it, at the system's expense)" if device.vendor == "Apple" else ""
    return (
        f"This machine has {format_bytes(device.memory_bytes)}, but a run may take {format_bytes(device.usable_bytes)} of it: "
        f"the operating system needs the rest{more}."
    )


@caution("https://huggingface.co/docs/transformers/en/model_memory_anatomy")
def card_memory(case: Case) -> str | None:
    """Counting the PC's RAM instead of the card's memory."""
    if case.device is None or case.device.unified or case.fits:
        return None
    return (
        f"Only the card's own memory counts, {format_bytes(case.has)} here. The PC's RAM is no part of it, "
        "unless states are offloaded or paged, which is many times slower."
    )


@caution("hiyouga/LlamaFactory/issues/3631")
def longest_sample(case: Case) -> str | None:
    """Raising length or batch after a run fits, knowingly or by a longer sample that comes later."""
    if not case.fits or case.device is None:
        return None
    length = largest(case.run, "sequence_length", case.has)
    if length >= 2 * case.run.sequence_length:
        return None
    return (
        f"The longest sample sets the peak, however late it comes: up to {length:,} tokens fit, "
        f"twice {format_tokens(case.run.sequence_length)} would not. Truncate, and try the longest batch first."
    )


@caution("foundation-model-stack/fms-hf-tuning/issues/471")
def short_sequence(case: Case) -> str | None:
    """A maximum length below the typical sample, so that the model never sees the end of the answer."""
    length = case.run.sequence_length
    if length > SHORT_SEQUENCE:
        return None
    return (
        f"{length:,} tokens hold about {length * WORDS_PER_TOKEN:,.0f} English words, prompt and answer together: "
        "check that a typical sample is no longer, or the model never sees the end of the answer."
    )


# ---- adapters


@caution("huggingface/peft/issues/1514")
def lora_saves_little(case: Case) -> str | None:
    if case.run.method == "full":
        return None
    full = case.needs_with(method="full")
    if full is None or case.needs < (1 - LARGE_SHARE) * full:
        return None
    name = {"lora": "LoRA", "qlora": "QLoRA"}[case.run.method]
    kept = case.largest_term("activations", "checkpoints", "recomputed", "working", "attention_scores", "logits")
    return (
        f"{name} saves little here: full fine-tuning would need {format_bytes(full)}, this {format_bytes(case.needs)}. "
        f"Activations and logits, up to {format_bytes(kept)}, dominate, and adapters do not shrink them."
    )


@caution("unslothai/unsloth/issues/633")
def saved_modules(case: Case) -> str | None:
    if case.run.method == "full" or not case.run.modules_to_save:
        return None
    more = case.needs - case.needs_with(modules_to_save=())
    names = " and ".join(case.run.modules_to_save)
    return f"modules_to_save adds {format_bytes(more)}: {names}, trained in full, with gradients and states, beside the frozen original."


@caution("bitsandbytes-foundation/bitsandbytes/issues/407")
def eight_bit_optimizer_of_adapters(case: Case) -> str | None:
    if case.run.method == "full" or not catalog.optimizers()[case.run.optimizer].moments_8bit:
        return None
    saved = case.needs_with(optimizer="adamw_torch_fused") - case.needs
    if saved > NOTICEABLE * case.needs:
        return None
    states = f"only {format_count(float(case.now.trainable_parameters))} parameters train"
    return f"An 8-bit optimizer saves {format_bytes(max(saved, 0.0))} here: {states}, so its states are small in any width."


@caution("huggingface/peft/issues/1142")
def reentrant_checkpointing(case: Case) -> str | None:
    if case.run.method == "full" or case.run.gradient_checkpointing != "full-reentrant":
        return None
    without = case.needs_with(gradient_checkpointing="none")
    return (
        "Reentrant checkpointing of frozen layers needs model.enable_input_require_grads(), or nothing gets a gradient; "
        f"done right it takes this run from {format_bytes(without)} to {format_bytes(case.needs)}."
    )


# ---- quantization


@caution("bitsandbytes-foundation/bitsandbytes/issues/1569")
def qlora_above_lora(case: Case) -> str | None:
    if case.run.method != "qlora":
        return None
    lora = case.needs_with(method="lora", prepare_kbit="none")
    if case.needs <= lora:
        return None
    return f"QLoRA needs {format_bytes(case.needs - lora)} more than 16-bit LoRA here: upcasts and scratch take what weights save."


@caution("huggingface/peft/issues/816")
def kbit_preparation(case: Case) -> str | None:
    if case.run.method != "qlora" or case.run.prepare_kbit == "none":
        return None
    more = case.needs - case.needs_with(prepare_kbit="none")
    if more < NOTICEABLE * case.needs:
        return None
    what = {"norms-fp32": "norms", "all-fp32": "embedding, head and norms"}[case.run.prepare_kbit]
    return f"Preparation for k-bit training adds {format_bytes(more)}: {what} become float32, and the layers' inputs twice as wide."


@caution("huggingface/peft/issues/1149")
def kbit_preparation_without_bits(case: Case) -> str | None:
    if case.run.method != "lora" or case.run.prepare_kbit != "all-fp32":
        return None
    more = case.needs - case.needs_with(prepare_kbit="none")
    return f"k-bit preparation of a model that is not quantized makes every weight float32: {format_bytes(more)} more than without it."


@caution("meta-pytorch/torchtune/issues/2255")
def little_to_quantize(case: Case) -> str | None:
    run = case.run
    quantization = catalog.quantizations()[run.quantization]
    if run.method != "qlora" or quantization.quantizes_embedding:
        return None
    quantized = sum(
        count * m.weight_parameters
        for block, count in run.model.distinct_layers.items()
        for m in block.modules
        if isinstance(m, Linear) and m.kind == "linear"
    )
    share = quantized / run.model.parameters
    if share > 0.75 or _fused_experts(run):
        return None
    wide = (run.model.parameters - quantized) * catalog.precisions()[run.precision].weight_bytes
    return f"Only {share:.0%} of the parameters are in matrices that quantize; {format_bytes(wide)} of embedding and the like stay wide."


@caution("bitsandbytes-foundation/bitsandbytes/issues/1849")
def experts_not_quantized(case: Case) -> str | None:
    experts = _fused_experts(case.run)
    if case.run.method != "qlora" or not experts:
        return None
    size = experts * catalog.precisions()[case.run.precision].weight_bytes
    return f"The experts are one tensor per layer, which bitsandbytes does not quantize: {format_bytes(size)} of weights stay unquantized."


def _fused_experts(run: Scenario) -> int:
    return sum(
        c * m.weight_parameters for b, c in run.model.distinct_layers.items() for m in b.modules if isinstance(m, Experts) and m.fused
    )


@caution("unslothai/unsloth/issues/2504")
def all_experts_resident(case: Case) -> str | None:
    model = case.run.model
    idle = sum(
        count * m.weight_parameters * (1 - m.experts_per_token / m.num_experts)
        for block, count in model.distinct_layers.items()
        for m in block.modules
        if isinstance(m, Experts)
    )
    if not idle:
        return None
    active = format_count(model.parameters - idle)
    return f"All {format_count(model.parameters)} parameters must be in memory, though only {active} work on any one token."


# ---- logits, attention, activations


@caution("unslothai/unsloth/issues/824")
def vocabulary(case: Case) -> str | None:
    logits = case.largest_term("logits")
    if case.run.loss not in ("full-logits", "triton") or logits < LARGE_SHARE * case.needs:
        return None
    entries = case.run.model.vocab_size
    one = float(case.run.tokens) * entries * 4
    return (
        f"The vocabulary has {entries:,} entries: one float32 copy of the logits is {format_bytes(one)}, "
        f"all copies at the peak are {format_bytes(logits)}. A fused linear loss makes none of them."
    )


@caution("huggingface/transformers/issues/32309")
def eager_attention(case: Case) -> str | None:
    scores = case.largest_term("attention_scores")
    if scores < LARGE_SHARE * case.needs:
        return None
    why = " Soft-capped scores need flash-attn 2.6 or newer." if _softcapped(case.run) else ""
    return f"Attention scores take {format_bytes(scores)}; at twice the length they take four times that.{why}"


def _softcapped(run: Scenario) -> bool:
    return any(block.attention is not None and block.attention.softcap for block in run.model.distinct_layers)


@caution("https://huggingface.co/docs/transformers/en/grad_checkpointing")
def no_checkpointing(case: Case) -> str | None:
    if case.run.gradient_checkpointing != "none":
        return None
    saved = case.needs - case.needs_with(gradient_checkpointing="full")
    if saved < LARGE_SHARE * case.needs:
        return None
    return f"Gradient checkpointing is off: with it this run would need {format_bytes(saved)} less."


@caution("AnswerDotAI/ModernBERT/pull/40")
def padded_batch(case: Case) -> str | None:
    if case.run.attention != "sdpa":
        return None
    more = case.needs - case.needs_with(attention="flash")
    if more < NOTICEABLE * case.needs:
        return None
    return f"A mask for padding keeps PyTorch from its flash kernel: {format_bytes(more)} more than with packed samples."


# ---- full fine-tuning and several GPUs


@caution("huggingface/transformers/issues/9742")
def float32_weights(case: Case) -> str | None:
    run = case.run
    if run.method != "full" or catalog.precisions()[run.precision].weight_bytes < 4:
        return None
    sixteen = case.needs_with(precision="bf16")
    return (
        f"Weights are float32{', with 16-bit copies for autocast' if run.autocast else ''}: {format_bytes(case.needs)} "
        f"where the model loaded in bf16 needs {format_bytes(sixteen)}. "
        "A 16-bit flag of the trainer does not change how weights are stored."
    )


@caution("https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html")
def foreach_temporaries(case: Case) -> str | None:
    temporaries = float(case.now.phases["optimizer_step"]["optimizer_temporaries"])
    if case.now.peak_phase != "optimizer_step" or temporaries < LARGE_SHARE / 2 * case.needs:
        return None
    return f"The peak is the optimizer step, and {format_bytes(temporaries)} of it are temporaries; adamw_torch_fused has none."


@caution("deepspeedai/DeepSpeed/issues/4093")
def gpus_that_do_not_help(case: Case) -> str | None:
    gpus = int(case.run.data_parallel_size)
    if gpus < 2 or catalog.shardings()[case.run.sharding].shards_weights:
        return None
    sharded = case.needs_with(sharding="fsdp")
    if case.needs - sharded < NOTICEABLE * case.needs:
        return None
    return (
        f"Each of the {gpus} GPUs holds {format_bytes(case.largest_term('weights'))} "
        f"of weights whole; sharded with FSDP or ZeRO-3 a GPU would need {format_bytes(sharded)} in place of {format_bytes(case.needs)}."
    )


@caution("https://www.answer.ai/posts/2024-03-06-fsdp-qlora.html")
def host_memory(case: Case) -> str | None:
    host = float(case.now.host) * float(case.run.gpus)
    if not host:
        return None
    return f"What is offloaded needs {format_bytes(host)} of the host's RAM, for all GPUs together."


@caution("QwenLM/Qwen/issues/852")
def every_rank_loads(case: Case) -> str | None:
    gpus, checkpoint = int(case.run.data_parallel_size), 2 * case.run.model.parameters
    if gpus < 2 or gpus * checkpoint < 64e9:
        return None
    return (
        f"If each of {gpus} processes loads the checkpoint, the host needs {format_bytes(gpus * checkpoint)} of RAM while loading; "
        "load it on one rank and on the meta device elsewhere."
    )


@caution("huggingface/transformers/issues/23307")
def merging(case: Case) -> str | None:
    merged = 2 * case.run.model.parameters
    if case.run.method == "full" or merged <= case.has:
        return None
    return f"Merging the adapters needs the model in 16 bits, {format_bytes(merged)}, which this device does not have: merge on the CPU."


# ---- preferences


@caution("hiyouga/LlamaFactory/issues/4810")
def preference_pairs(case: Case) -> str | None:
    if not case.run.objective.startswith("dpo"):
        return None
    reference = case.largest_term("reference")
    held = f"; with full fine-tuning the reference model is held as well, {format_bytes(reference)}" if reference else ""
    supervised = format_bytes(case.needs_with(objective="sft"))
    return f"Each sample is a pair: {float(case.run.tokens):,.0f} tokens in one forward pass{held}. Supervised it would need {supervised}."


# ---- models and devices


@caution("modelscope/ms-swift/issues/2010")
def images(case: Case) -> str | None:
    towers = case.run.model.towers
    if not towers:
        return None
    size = sum(tower.parameters for tower in towers)
    tokens = max(tower.tokens_per_image for tower in towers)
    each = f"{tokens:,} tokens" if tokens else "up to thousands of tokens"
    return (
        f"Only text is estimated. The encoder's {format_count(size)} parameters are counted, but an image adds {each}, "
        "which a maximum text length does not cap."
    )


@caution("tensorflow/tensorflow/issues/22623")
def windows(case: Case) -> str | None:
    device = case.device
    if device is None or device.unified or device.kind not in ("consumer", "laptop"):
        return None
    spare = case.has - case.needs
    if not 0 <= spare < WINDOWS_BYTES:
        return None
    return f"Windows and the screen keep about 1 GB of a card; only {format_bytes(spare)} are spare here."


@caution("https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions")
def no_bf16(case: Case) -> str | None:
    device = case.device
    dtype = catalog.precisions()[case.run.precision].compute_dtype
    if device is None or device.bf16_supported or dtype != "bf16":
        return None
    return f"{device.label} has no bf16 arithmetic: use fp16, which takes as many bytes ({format_bytes(case.needs)}) but can overflow."


@caution("https://ml-explore.github.io/mlx/build/html/usage/unified_memory.html")
def no_cuda(case: Case) -> str | None:
    device, quantization = case.device, catalog.quantizations()[case.run.quantization]
    if device is None or device.vendor != "Apple" or quantization.family in ("none", "mlx"):
        return None
    mlx = case.needs_with(quantization="mlx-4bit")
    return (
        f"{quantization.label}, is made for GPUs other than Apple's. MLX, which Macs train with, has its own 4-bit format: "
        f"this run would need {format_bytes(mlx)} in it."
    )


@caution("https://arxiv.org/abs/2306.15595")
def positions(case: Case) -> str | None:
    limit, length = case.run.model.max_position_embeddings, int(case.run.sequence_length)
    if not limit or length <= limit:
        return None
    return f"{length:,} tokens are more than the {limit:,} this model was made for: the memory is estimated, but positions need stretching."
