"""The names of a vision tower's tensors in published files."""

from gigpo_jax.models.vision.linears import VISION_LINEARS
from gigpo_jax.models.vision.vision_config import VL, VL3, VisionConfig

_LAYER = {"attention_norm": "norm1", "mlp_norm": "norm2"}
_TOP = {
    VL: {
        "patch": "patch_embed.proj",
        "merger_norm": "merger.ln_q",
        "merger_in": "merger.mlp.0",
        "merger_out": "merger.mlp.2",
    },
    VL3: {
        "patch": "patch_embed.proj",
        "positions": "pos_embed",
        "merger_norm": "merger.norm",
        "merger_in": "merger.linear_fc1",
        "merger_out": "merger.linear_fc2",
        # {} stands for the number of the merger.
        "deep_norm": "deepstack_merger_list.{}.norm",
        "deep_in": "deepstack_merger_list.{}.linear_fc1",
        "deep_out": "deepstack_merger_list.{}.linear_fc2",
    },
}


def tower_names(vision: VisionConfig, path: list[str], kind: str) -> tuple[tuple[str, ...], int]:
    """Returns the tensor names of a leaf of the tower and its number of stacked axes.

    Args:
      vision: shape of the tower.
      path: keys of the leaf under `params["vision"]`.
      kind: "weight" or "bias".
    """
    if path[0] == "layers":
        module = (VISION_LINEARS[vision.model_type] | _LAYER)[path[1]]
        return tuple(f"visual.blocks.{n}.{module}.{kind}" for n in range(vision.depth)), 1
    name = f"visual.{_TOP[vision.model_type][path[0]]}.{kind}"
    if path[0].startswith("deep_"):
        return tuple(name.format(n) for n in range(len(vision.deep_layers))), 1
    return (name,), 0
