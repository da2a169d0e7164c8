"""The linear layers of models: their names in our parameters, in published files, in settings."""

LINEARS = {  # key under `params["layers"]` -> module of a Hugging Face decoder layer
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# Linear layers of `delta_layer.make_mixer`.
DELTA_LINEARS = ("delta_inputs", "delta_gate", "delta_rate", "delta_decay", "delta_out")
MLP_LINEARS = ("gate", "up", "down")
# Keys of a layer with experts -> module; {} stands for the number of the expert.
EXPERT_LINEARS = {
    "expert_gate": "mlp.experts.{}.gate_proj",
    "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
}
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
# model_type of a model with a vision tower -> of its decoder
DECODERS = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
VISION_TARGETS = tuple(VISION_LINEARS["qwen2_5_vl"])  # keys of all towers
# The short names that PEFT and `model.lora.targets` use ("q_proj") -> key under `params["layers"]`.
TARGETS = {module.rpartition(".")[2]: linear for linear, module in LINEARS.items()}
