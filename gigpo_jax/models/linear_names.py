"""Names of linear layers in our parameters, in published files and in settings."""

LINEARS = {  # key under `params["layers"]` -> module of a Hugging Face decoder layer
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
MLP_LINEARS = ("gate", "up", "down")
# Keys of a layer with experts -> module; {} stands for the number of the expert.
EXPERT_LINEARS = {
    "expert_gate": "mlp.experts.{}.gate_proj",
    "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
}
# model_type of a model with a vision tower -> of its decoder
DECODERS = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3"}
# The short names that PEFT and `model.lora.targets` use ("q_proj") -> key under `params["layers"]`.
TARGETS = {module.rpartition(".")[2]: linear for linear, module in LINEARS.items()}
