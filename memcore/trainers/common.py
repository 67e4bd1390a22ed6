"""What the trainers built on Transformers share: DeepSpeed and FSDP, bitsandbytes, and in what precision a run stores its weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .. import catalog
from .errors import TrainerFileError, show
from .settings import Settings
from .table import shared

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario

STAGES = {0: "none", 1: "zero1", 2: "zero2", 3: "fsdp"}
"""DeepSpeed's ZeRO stages as a Scenario names them; its third is FSDP's full sharding."""
FSDP_SHARDING = {
    "full_shard": "fsdp", "1": "fsdp", "true": "fsdp", "hybrid_shard": "hsdp", "4": "hsdp", "hybrid_shard_zero2": "zero2", "5": "zero2",
    "shard_grad_op": "zero2", "2": "zero2", "false": "zero2", "no_shard": "none", "3": "none",
}  # fmt: skip
"""FSDP's strategies, by word or number, and FSDP2's reshard_after_forward."""


def sharding(s: Settings) -> tuple[dict[str, str], str]:
    """What the GPUs divide among them and what of it lives in host memory, and by which engine: "deepspeed", "fsdp" or ""."""
    deepspeed, fsdp = _deepspeed(s), _fsdp(s)
    if deepspeed and fsdp:
        raise TrainerFileError("deepspeed and fsdp are both set; keep one of them")
    if deepspeed:
        return deepspeed, "deepspeed"
    return (fsdp, "fsdp") if fsdp else ({"sharding": "none"}, "")


def _deepspeed(s: Settings) -> dict[str, str]:
    if stage := s.find("deepspeed.zero_optimization.stage"):
        if str(stage[1]) not in ("0", "1", "2", "3"):
            raise TrainerFileError(f"{stage[0]} ({show(stage[1])}) must be 0, 1, 2 or 3")
        s.get(stage[0])
        states, weights = (
            s.get(f"deepspeed.zero_optimization.offload_{part}.device") not in (None, "none") for part in ("optimizer", "param")
        )
        return _divided(STAGES[int(stage[1])], states, weights)
    for key in ("deepspeed", "config_file"):
        if key not in s.table.keys or not (given := s.find(key)):
            continue
        name = str(given[1]).rpartition("/")[2].lower()[:100]
        match = re.search(r"(?:z(?:ero)?|stage)[-_]?(?:stage[-_]?)?([0-3])", name)
        if match:
            s.get(key)
            s.note(f"{given[0]} ({show(given[1])}): ZeRO stage {match[1]} is read from the file's name; its contents are not here")
            return _divided(STAGES[int(match[1])], "offload" in name, "offload" in name)
        if key == "config_file" and "fsdp" in name:
            s.get(key)
            s.note(f"{given[0]} ({show(given[1])}): full sharding is read from the file's name; its contents are not here")
            return {}
        s.refuse(given[0], "is a file that is not here; write zero_optimization.stage below deepspeed, or choose the sharding yourself")
        s.note(f"{given[0]} ({show(given[1])}) is a file that is not here; no sharding is assumed")
    return {}


def _fsdp(s: Settings) -> dict[str, str]:
    words = s.get("fsdp")
    named = "config_file" in s.table.keys and (given := s.find("config_file")) and "fsdp" in str(given[1]).lower()
    if not words and not named and not any(key.startswith("fsdp_config.") for key in s.values):
        return {}
    text = " ".join(map(str, words)) if isinstance(words, (list, tuple)) else str(words or "")
    if text.lower() == "false":
        return {}
    found = [FSDP_SHARDING[word] for word in text.lower().replace(",", " ").split() if word in FSDP_SHARDING and not word.isdigit()]
    strategy = str(s.get("fsdp_config.reshard_after_forward") or "").lower()
    offload_key = "fsdp_config.cpu_offload" if "fsdp_config.cpu_offload" in s.table.keys else "fsdp_config.offload_params"
    offload = bool(s.get(offload_key)) or "offload" in text.lower()
    return _divided(FSDP_SHARDING.get(strategy) or (found[0] if found else "fsdp"), offload, offload)


def _divided(kind: str, states: bool, weights: bool) -> dict[str, str]:
    """The sharding, with optimizer states or also weights in host memory."""
    if kind == "fsdp" and weights:
        return {"sharding": "fsdp-offload"}
    return {"sharding": kind} | ({"offload": "optimizer"} if states and kind != "none" else {})


def activation_offload(s: Settings, key: str, checkpointing: str) -> dict[str, bool]:
    """Whether what is kept for the backward pass moves to host memory; a Scenario has that for the layer inputs of checkpointing."""
    if not s.get(key):
        return {}
    if checkpointing != "none":
        return {"activation_offload": True}
    s.refuse(
        s.find(key)[0], "activations that move to host memory without checkpointing are not in the estimate, which keeps them on the GPU"
    )  # type: ignore[index]
    return {}


def storage(method: str, dtype: str, half: str, engine: str) -> dict[str, Any]:
    """How weights are stored, and whether autocast runs, from the dtype they are loaded in and the 16-bit flag (Trainer's bf16, fp16).

    DeepSpeed casts the module to 16 bits and keeps float32 master copies and moments; it does not autocast. FSDP upcasts what
    trains to float32 where the flag is set (accelerate 1.15, fsdp_utils.py and accelerator.py).
    """
    if engine == "deepspeed":
        return {"precision": f"{half}-master" if half else "fp32", "autocast": False}
    if engine == "fsdp" and half and method == "full":
        return {"precision": "fp32", "autocast": True}
    return {"precision": dtype, "autocast": bool(half)}


def half_precision(s: Settings, bf16: bool, fp16: bool) -> str:
    """ "bf16", "fp16" or ""."""
    if bf16 and fp16:
        raise TrainerFileError("bf16 (true) and fp16 (true) are both set; keep one of them")
    return "bf16" if bf16 else "fp16" if fp16 else ""


def quantized(s: Settings, four: bool, eight: bool, kind: str, double: bool) -> str:
    """The quantization of bitsandbytes' flags."""
    if four and eight:
        raise TrainerFileError("load_in_4bit (true) and load_in_8bit (true) are both set; keep one of them")
    if eight:
        return "int8"
    if not four:
        return "none"
    name = {("nf4", True): "nf4-double-quant", ("nf4", False): "nf4", ("fp4", False): "fp4"}.get((kind.lower(), double))
    if name is None:
        s.note(f"{kind} with double quantization is not in the catalog; the estimate uses nf4-double-quant, whose size is the same")
        return "nf4-double-quant"
    return name


def attention(s: Settings, key: str, packed: bool) -> str:
    """The attention named, or PyTorch's SDPA: with a mask where a batch can hold padding."""
    legacy = "use_flash_attention_2"
    if chosen := s.choice(key):
        return chosen
    if legacy in s.table.keys and s.given(legacy) and s.get(legacy):
        return "flash-attn"
    return default_attention(s, key, packed)


def default_attention(s: Settings, key: str, packed: bool) -> str:
    """What Transformers does by itself."""
    mask = not packed and s.get(_key_of(s, "micro_batch_size")) > 1
    why = "sequences of different length are padded, which needs a mask" if mask else "one sequence, or packed ones, need no mask"
    s.assume(key, f"sdpa, {'with' if mask else 'without'} a mask", f"Transformers' default; {why}")
    return "sdpa" if mask else "flash"


def _key_of(s: Settings, field: str) -> str:
    return next(name for name, key in s.table.keys.items() if key.field == field)


def optimizer(s: Settings, key: str) -> str:
    """A row of optimizers.csv; SGD's momentum is among its arguments."""
    name = s.choice(key)
    arguments = s.values.get("optim_args")
    momentum = s.values.get("optim_args.momentum") or (isinstance(arguments, str) and re.search(r"momentum\s*=\s*0?\.\d*[1-9]", arguments))
    if name == "sgd" and momentum:
        if "optim_args" in s.values:
            s.get("optim_args")
        return "sgd_momentum"
    return name


def peft_targets(s: Settings, model: ModelArchitecture | None, key: str) -> str | tuple[str, ...] | None:
    """What PEFT adapts where no modules are named."""
    if model is None:
        s.note(f"{key} is not set: PEFT's default depends on the model, which is not known yet")
        return None
    default = shared()["peft_targets"].get(model.model_type)
    if default is None:
        raise TrainerFileError(f"{key} is not set, and PEFT has no default for {model.model_type}; name the modules, or write all-linear")
    s.assume(key, list(default), "https://github.com/huggingface/peft/blob/v0.21.2/src/peft/utils/constants.py")
    return tuple(name for name in default if name in model.lora_targets) or None


def written_precision(run: Scenario) -> tuple[str, dict[str, bool], str]:
    """The dtype to load in, Trainer's 16-bit flags, and the engine that stores weights as the run does."""
    dtype = {"fp32": "float32", "fp16": "float16", "fp16-master": "float16"}.get(run.precision, "bfloat16")
    engine = "deepspeed" if run.precision.endswith("-master") or run.sharding == "zero1" else "fsdp" if run.sharding != "none" else ""
    flag = "fp16" if dtype == "float16" else "bf16"
    half = run.precision != "fp32" if engine == "deepspeed" else run.autocast
    return dtype, {flag: True} if half else {"bf16": False}, engine


def written_sharding(run: Scenario, engine: str) -> dict[str, Any]:
    """DeepSpeed's or FSDP's keys, as Trainer takes them."""
    offload = run.sharding == "fsdp-offload"
    if engine == "deepspeed":
        stage = {"none": 0, "zero1": 1, "zero2": 2}.get(run.sharding, 3)
        zero: dict[str, Any] = {"stage": stage}
        if offload or run.offload == "optimizer":
            zero["offload_optimizer"] = {"device": "cpu"}
        if offload:
            zero["offload_param"] = {"device": "cpu"}
        auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        return {
            "deepspeed": {"zero_optimization": zero, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}} | dict.fromkeys(auto, "auto")
        }
    if engine == "fsdp":
        strategy = {"zero2": "shard_grad_op", "hsdp": "hybrid_shard"}.get(run.sharding, "full_shard")
        return {"fsdp": f"{strategy}{' offload' if offload else ''} auto_wrap"}
    return {}


def written_targets(run: Scenario, everything: object) -> Any:
    return everything if run.lora_target_modules == "all-linear" else list(run.lora_target_modules)


def written_attention(run: Scenario) -> str:
    return {"flash": "flash_attention_2", "flash-attn": "flash_attention_2"}.get(run.attention, run.attention)


def written_optimizer(run: Scenario, key: str) -> dict[str, Any]:
    """A Hugging Face `optim` name; nothing where the row has none."""
    if run.optimizer == "sgd_momentum":
        return {key: "sgd", "optim_args": "momentum=0.9"}
    name = catalog.optimizers()[run.optimizer].hf_optim
    return {key: name} if name else {}
