"""One GPU's part of a model: a tensor-parallel shard of every layer, a pipeline stage of some of them.

The part is a ModelArchitecture again, so parameters, adapters, quantization, activations and peaks of one GPU follow from
the same code as those of a whole model. Sources: Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053) for what is divided;
Korthikanti et al. 2022 (arXiv:2205.05198) for sequence parallelism and the micro batches a stage holds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .architecture import Attention, Block, Experts, Linear, ModelArchitecture, Module, Weight

COLUMN_ROLES = {"q", "k", "v", "qkv", "gate", "up", "gate_up", "q_b", "kv_b", "shared_gate", "shared_up", "shared_gate_up"}
"""Divided by output: each GPU makes its heads, or its part of the MLP's width, from the whole input."""
ROW_ROLES = {"o", "down", "shared_down"}
"""Divided by input: each GPU makes a partial sum of the whole output."""


class ParallelError(ValueError):
    """A model cannot be divided so; the message names the sizes."""


def check_tensor_parallel(model: ModelArchitecture, size: int) -> None:
    """Whether the heads can be divided among `size` GPUs; widths that do not divide are divided unevenly."""
    for block in model.distinct_layers:
        heads = block.attention.num_attention_heads if block.attention else size
        if heads % size:
            raise ParallelError(f"tensor_parallel_size ({size}) does not divide the {heads} attention heads of {model.name}")
        kv = block.attention.num_key_value_heads if block.attention else size
        if kv % size and size % kv:
            raise ParallelError(f"tensor_parallel_size ({size}) and the {kv} key-value heads of {model.name} do not divide each other")


@lru_cache(maxsize=256)
def tensor_parallel(model: ModelArchitecture, size: int) -> ModelArchitecture:
    """What one of `size` GPUs holds: heads, MLP widths and vocabulary divided, norms and the residual stream whole.

    Key-value heads are copied where there are fewer of them than GPUs.
    """
    if size == 1:
        return model
    check_tensor_parallel(model, size)
    shards = {block: _shard(block, size) for block in model.distinct_layers}
    vocabulary = -(-model.vocab_size // size)
    return replace(
        model,
        vocab_size=vocabulary,
        layers=tuple(shards[block] for block in model.layers),
        embed_tokens=replace(model.embed_tokens, num_embeddings=-(-model.embed_tokens.num_embeddings // size)),
        lm_head=replace(model.lm_head, out_features=-(-model.lm_head.out_features // size)),
    )


def _shard(block: Block, size: int) -> Block:
    attention = block.attention
    if attention is not None:
        attention = replace(
            attention,
            num_attention_heads=attention.num_attention_heads // size,
            num_key_value_heads=max(attention.num_key_value_heads // size, 1),
        )
    return replace(block, modules=tuple(_shard_module(m, attention, size) for m in block.modules), attention=attention)


def _shard_module(module: Module, attention: Attention | None, size: int) -> Module:
    if isinstance(module, Experts):
        return replace(module, intermediate_size=-(-module.intermediate_size // size))
    if isinstance(module, Weight) and module.name == "sinks":
        return replace(module, parameters=module.parameters // size)
    if not isinstance(module, Linear):
        return module
    if module.role in ROW_ROLES:
        return replace(module, in_features=-(-module.in_features // size))
    if module.role not in COLUMN_ROLES:
        return module
    if attention is not None:
        whole = {
            "k": attention.key_size,
            "v": attention.value_size,
            "qkv": attention.query_size + attention.key_size + attention.value_size,
        }
        if module.role in whole:
            return replace(module, out_features=whole[module.role])
    return replace(module, out_features=-(-module.out_features // size))


@lru_cache(maxsize=1024)
def stage(model: ModelArchitecture, index: int, of: int) -> ModelArchitecture:
    """The layers of pipeline stage `index`; which stages hold embedding and head, `program` knows."""
    return model if of == 1 else replace(model, layers=model.layers[slice(*stage_span(len(model.layers), index, of))])


def stage_span(layers: int, index: int, of: int) -> tuple[int, int]:
    """First layer of a stage and the one after its last; what does not divide evenly goes to the stages in the middle."""
    each, rest = divmod(layers, of)
    order = sorted(
        range(of), key=lambda i: (min(i, of - 1 - i) == 0, i)
    )  # first and last stage, which hold embedding and head, get extra layers last
    sizes = [each + (1 if i in order[:rest] else 0) for i in range(of)]
    return sum(sizes[:index]), sum(sizes[: index + 1])


def in_flight(index: int, of: int, micro_batches: int) -> int:
    """Micro batches whose activations a stage holds at once under the 1F1B schedule: the first stage the most."""
    return min(of - index, micro_batches)
