"""Vision and audio towers with their projectors: counted from their own config."""

from __future__ import annotations

from ..architecture import Tower
from .reading import ConfigError, Keys


def transformer_layer(h: int, i: int, bias: bool = True, norms: int = 4) -> int:
    """Four square projections, two MLP matrices and `norms` vectors."""
    return 4 * h * h + 2 * h * i + bias * (4 * h + h + i) + norms * h


def siglip(keys: Keys) -> tuple[int, int]:
    """Parameters, and tokens per image, of a SigLIP vision model."""
    h, i = keys.size("hidden_size"), keys.size("intermediate_size")
    side, patch, channels = keys.size("image_size"), keys.size("patch_size"), keys.size("num_channels")
    patches = (side // patch) ** 2
    total = channels * patch * patch * h + h + patches * h  # patches, positions
    total += keys.layers() * transformer_layer(h, i) + 2 * h
    if keys.flag("vision_use_head", True):
        total += h + 4 * h * h + 4 * h + 2 * h + 2 * h * i + i + h
    return total, patches
