"""The linear layers of vision towers: names in our parameters and in published files."""

# Model type -> key under `params["vision"]["layers"]` -> module of a block of the tower.
VISION_LINEARS = {
    "qwen2_5_vl": {
        "qkv": "attn.qkv",
        "out": "attn.proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    "qwen3_vl": {
        "qkv": "attn.qkv",
        "out": "attn.proj",
        "up": "mlp.linear_fc1",
        "down": "mlp.linear_fc2",
    },
}
VISION_TARGETS = tuple(VISION_LINEARS["qwen2_5_vl"])  # keys of all towers
