"""torchtune: what its keys mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import activation_offload
from .errors import TrainerFileError, show
from .models import by_roles, roles_of
from .settings import Settings

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario

ATTENTION_ROLES = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "output_proj": "o"}
MLP_ROLES = ("gate", "up", "down")


def builder(component: str) -> tuple[str, str]:
    """A builder of torchtune/models without its prefix, and that prefix: "lora", "qlora" or ""."""
    family, _, name = component.removeprefix("torchtune.models.").rpartition(".")
    prefix = name.split("_")[0] if name.startswith(("lora_", "qlora_")) else ""
    return f"{family}.{name[len(prefix) + 1 :] if prefix else name}", prefix


def model_name(s: Settings) -> str:
    """The catalog's model for the builder a file names."""
    component = s.get("model._component_")
    if component is None:
        raise TrainerFileError("model._component_ is missing; name the builder, such as torchtune.models.llama3_1.lora_llama3_1_8b")
    known = s.table.values["builders"].get(builder(component)[0])
    if known is None:
        s.note(f"model._component_ ({show(component)}) is not a builder memcore knows; the model is taken from checkpointer.checkpoint_dir")
        return str(s.get("checkpointer.checkpoint_dir") or component)
    return known


def read_torchtune(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """Weights and adapters are in dtype, without autocast; NF4 with double quantization where the base is quantized."""
    _, prefix = builder(s.get("model._component_"))
    quantized = prefix == "qlora" or s.get("model.quantize_base")
    adapters = bool(prefix) or s.given("model.lora_attn_modules")
    if quantized and not adapters:
        raise TrainerFileError("model.quantize_base (true) needs a builder with adapters; write lora_ before its name")
    dtype = s.choice("dtype")
    fields = {
        "method": "qlora" if quantized else "lora" if adapters else "full",
        "quantization": "nf4-double-quant" if quantized else "none",
        "precision": dtype,
        "autocast": False,
        "optimizer": _optimizer(s),
        "gradient_checkpointing": "full" if s.get("enable_activation_checkpointing") else "none",
        "attention": "flash",
        "loss": s.choice("loss._component_"),
        "kernels": "torch",
    }
    fields |= activation_offload(s, "enable_activation_offloading", fields["gradient_checkpointing"])
    if s.get("fsdp_cpu_offload"):
        fields["sharding"] = "fsdp-offload"
    if adapters:
        fields["adapter_precision"] = "fp32" if dtype == "fp32" else "bf16"
        fields["lora_target_modules"] = _targets(s, model)
    return fields


def _optimizer(s: Settings) -> str:
    name = s.choice("optimizer._component_")
    fused, momentum = s.given("optimizer.fused") and s.get("optimizer.fused"), s.given("optimizer.momentum") and s.get("optimizer.momentum")
    if name == "adamw_torch" and fused:
        return "adamw_torch_fused"
    return "sgd_momentum" if name == "sgd" and momentum else name


def _targets(s: Settings, model: ModelArchitecture | None) -> str | tuple[str, ...]:
    names = s.get("model.lora_attn_modules") or ()
    wrong = [name for name in names if name not in ATTENTION_ROLES]
    if wrong:
        raise TrainerFileError(f"model.lora_attn_modules ({show(wrong[0])}) must be some of {', '.join(ATTENTION_ROLES)}")
    roles = tuple(ATTENTION_ROLES[name] for name in names) + (MLP_ROLES if s.get("model.apply_lora_to_mlp") else ())
    if not roles:
        raise TrainerFileError("model.lora_attn_modules is empty and apply_lora_to_mlp is false; name the modules adapters go on")
    if s.get("model.apply_lora_to_output"):
        s.refuse("model.apply_lora_to_output", "adapters on the head are not in the estimate; a Scenario has them inside the layers only")
        s.note("model.apply_lora_to_output: adapters on the head are not in the estimate")
    found = by_roles(roles, model)
    if model is not None and found == model.lora_targets or model is None and len(roles) == 7:
        return "all-linear"
    if not found and model is not None:
        raise TrainerFileError(f"model.lora_attn_modules: {model.name} has {', '.join(model.lora_targets)}, none of which is named")
    return found


def write_torchtune(run: Scenario) -> dict[str, Any]:
    """A file of `tune run`."""
    from .table import trainers

    builders = {id: name for name, id in reversed(trainers()["torchtune"].values["builders"].items())}
    if run.model.name not in builders:
        raise TrainerFileError(
            f"torchtune has no builder that memcore knows for {run.model.name}; it has them for {', '.join(list(builders)[:4])} and others"
        )
    family, _, name = builders[run.model.name].rpartition(".")
    keys: dict[str, Any] = {"model._component_": f"torchtune.models.{family}.{'' if run.method == 'full' else 'lora_'}{name}"}
    if run.method != "full":
        keys |= _written_targets(run)
        keys |= {"model.apply_lora_to_output": False, "model.lora_alpha": 2 * run.lora_rank}
        keys |= {"model.quantize_base": True} if run.method == "qlora" else {}
    keys["dtype"] = {"fp32": "fp32", "fp16": "fp16"}.get(run.precision, "bf16")
    optimizers = {ours: theirs for theirs, ours in reversed(TORCH_NAMES.items())}
    keys["optimizer._component_"] = optimizers.get(run.optimizer, "torch.optim.AdamW")
    keys |= (
        {"optimizer.fused": True}
        if run.optimizer == "adamw_torch_fused"
        else {"optimizer.momentum": 0.9}
        if run.optimizer == "sgd_momentum"
        else {}
    )
    keys["optimizer.lr"] = 2.0e-5 if run.method == "full" else 3.0e-4
    keys["loss._component_"] = (
        "torch.nn.CrossEntropyLoss" if run.loss == "full-logits" else "torchtune.modules.loss.CEWithChunkedOutputLoss"
    )
    keys["enable_activation_checkpointing"] = run.gradient_checkpointing != "none"
    if run.activation_offload:
        keys["enable_activation_offloading"] = True
    return keys | ({"fsdp_cpu_offload": True} if run.sharding == "fsdp-offload" else {})


TORCH_NAMES = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "torch.optim.RMSprop": "rmsprop",
    "torch.optim.Adafactor": "adafactor",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.Lion8bit": "lion_8bit",
    "bitsandbytes.optim.Lion32bit": "lion_32bit",
    "bitsandbytes.optim.PagedLion32bit": "paged_lion_32bit",
    "bitsandbytes.optim.PagedLion8bit": "paged_lion_8bit",
}
"""As Python spells them; the table compares without regard to case."""


def _written_targets(run: Scenario) -> dict[str, Any]:
    if run.lora_target_modules == "all-linear":
        return {"model.lora_attn_modules": list(ATTENTION_ROLES), "model.apply_lora_to_mlp": True}
    roles = {roles_of(run.model)[name] for name in run.lora_target_modules}
    if "qkv" in roles:
        roles |= {"q", "k", "v"}
    names = [name for name, role in ATTENTION_ROLES.items() if role in roles]
    return {"model.lora_attn_modules": names, "model.apply_lora_to_mlp": not names or bool(roles & {*MLP_ROLES, "gate_up"})}
