"""How one family of models differs from Llama, as a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..architecture import Attention, Module
from .reading import Keys

LLAMA_NORMS = {"input": "input_layernorm", "pre_mlp": "post_attention_layernorm"}
Flag = bool | str
"""Fixed, or the name of the key that decides; with "!" before it, its opposite (see `Keys.on`)."""


class Layer(NamedTuple):
    """What one layer is, before it is built: a mixer, a feed-forward part, and keys that differ in this layer."""

    mixer: str
    mlp: str = "dense"
    changes: tuple[tuple[str, object], ...] = ()


class Mixer(NamedTuple):
    """A layer's token mixer, built: its tag in `Block.mixers`, its modules, and the attention's shape where it is one."""

    tags: tuple[str, ...]
    modules: tuple[Module, ...]
    attention: Attention | None = None


@dataclass(frozen=True)
class MoE:
    """A mixture of experts: which keys say how many there are and how wide."""

    num_experts: str = "num_experts"
    experts_per_token: str = "num_experts_per_tok"
    intermediate_size: str = "moe_intermediate_size"
    router: str = "gate"
    router_kind: str = "router"
    router_bias: Flag = False
    expert_bias: Flag = False
    gated: bool = True
    shared_size: Callable[[Keys], int] | None = None
    """Width of the shared expert, 0 for none; None where the family has none."""
    shared_router: bool = False
    """The shared expert's output passes a gate of its own (Qwen2-MoE)."""
    latent_size: str = ""
    """The key that says how wide the experts' input is, where it is projected to a narrower one."""
    extra: Callable[[Keys], tuple[Module, ...]] = lambda keys: ()
    """What else a sparse part holds, such as a bias that steers the routing."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family. Every default is Llama's, so a row says only what is different."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """memcore's name of a key → the family's own."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Role of a module (see architecture.LINEAR_ROLES, NORM_ROLES) → its name, where it is not Llama's."""

    derive: Callable[[Keys], Mapping[str, object]] = lambda keys: {}
    """memcore's keys computed from the family's own, where renaming is not enough."""

    required: tuple[str, ...] = ("hidden_size", "num_hidden_layers", "vocab_size")
    """What a config.json has to say itself; anything else may be left to the class default."""

    # attention
    fused_qkv: bool = False
    qkv_bias: Flag = False
    o_bias: Flag = False
    gated_query: bool = False
    """The query projection is twice as wide: its second half gates the attention's output (Qwen3-Next)."""
    qk_norm: Flag = False
    qk_norm_all_heads: bool = False
    """One weight for each element of all heads together, not one per element of a head."""
    attention_extra: Callable[[Keys, Attention], tuple[Module, ...]] = lambda keys, attention: ()
    attention: Callable[[Keys, Family, Layer], Mixer] | None = None
    """Builds the attention layers; None: the usual one."""
    value_head_dim: str = ""
    """The key that says how wide a value head is, where it is not as wide as a key's."""
    rotary: str = "half"
    partial_rotary: float = 1.0
    """Share of a head that is rotated where no key says so."""
    sliding: bool = True
    """`sliding_window` is honoured at all."""
    attention_dropout: str = "attention_dropout"

    # norms
    norm: str = "rms"
    norm_weight: Flag = True
    norm_bias: Flag | None = None
    """None: as LayerNorm (yes) and RMSNorm (no) have it."""
    qk_norm_kind: str = ""
    qk_norm_bias: Flag | None = None
    norms: Mapping[str, str] | Callable[[Keys], Mapping[str, str]] = field(default_factory=lambda: LLAMA_NORMS)
    """Place → name."""
    final_norm: Flag = True

    # feed-forward
    gated: Flag = True
    fused_gate_up: bool = False
    mlp_bias: Flag = False
    activation: str = "hidden_act"
    default_activation: str = "silu"
    mlp_extra: Callable[[Keys], tuple[Module, ...]] = lambda keys: ()
    moe: MoE | None = None
    mlp: Callable[[Keys, Family, Layer], tuple[Module, ...]] | None = None
    """Builds the feed-forward part of every layer; None: by the layer's kind."""

    # wiring
    layers: Callable[[Keys, Family], Sequence[Layer]] | None = None
    """What each layer is; None: by `layer_types`, else all alike."""
    mixers: Mapping[str, Callable[[Keys, Family, Layer], Mixer]] = field(default_factory=dict)
    """Builders for layer types that are not attention."""
    shared: str = ""
    """The modules whose names begin so are one copy that several layers use."""
    block_extra: Callable[[Keys], tuple[Module, ...]] = lambda keys: ()
    parallel: Flag = False
    hidden_dropout: str = ""
    linear_kind: str = "linear"

    # outside the layers
    embed_tokens: str = "embed_tokens"
    embedding_size: str = "hidden_size"
    spare_embeddings: int = 0
    """Rows of the embedding beyond the vocabulary."""
    embedding_dropout: str = ""
    extra: Callable[[Keys], tuple[Module, ...]] = lambda keys: ()
    tied: Flag = "tie_word_embeddings"
    head_bias: Flag = False
    final_softcap: str = ""
    measured: bool = False
    """A training step of the family was measured, to the byte."""
    uncertain: tuple[str, ...] = ()
    """What else is not known about the memory of a step."""


def like(family: Family, **changes: object) -> Family:
    """A family that differs from another one in a few points; what was measured of one is not of the other."""
    return replace(family, **{"measured": False, **changes})
