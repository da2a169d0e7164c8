"""Checks of settings that depend on the layers of the model."""

from absl import logging
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.vision.vision_config import VisionConfig


def check_model_settings(config: ConfigDict, shape: DecoderConfig, longest_tree: int) -> None:
    """Raises InputError for settings that the model does not take.

    Args:
      config: Resolved config.
      shape: Shape of the model.
      longest_tree: Tokens of the largest tree of texts that share prefixes; 0: none do.
    """
    check_vision(config, shape.vision)
    if config.batch.share_prefixes and not longest_tree:
        logging.warning(
            "batch.share_prefixes has no effect: tokens keep the experts of their rollout "
            "(model.replay_routes)"
        )
    if longest_tree:
        reason = ""
        if shape.delta is not None:
            reason = "the model has layers with states, which read one text after the other"
        elif shape.num_window_layers and shape.sliding_window < longest_tree:
            window = shape.sliding_window
            reason = f"the model has sliding windows of {window} tokens, trees of texts none"
        if reason:
            key = "config.batch.share_prefixes"
            raise InputError(reason, key=key, value="True", fix="leave it out")
    if shape.experts is None:
        if config.model.replay_routes:
            raise InputError(
                "the model has no experts",
                key="config.model.replay_routes",
                value="True",
                fix="leave it out",
            )
    elif config.model.lora.rank:
        from gigpo_jax.devices.adapter import check_expert_adapter

        check_expert_adapter(config, shape)


def check_vision(config: ConfigDict, vision: VisionConfig | None) -> None:
    """Raises InputError for an adapter of a vision tower that the model lacks."""
    if vision is None and config.model.lora.vision:
        raise InputError(
            "the model has no vision tower",
            key="config.model.lora.vision",
            value="True",
            fix="leave it out",
        )
