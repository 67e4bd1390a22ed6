"""How much memory a fine-tune needs, exactly, and whether it fits."""
