"""Reads config.json of a Hugging Face folder; refuses unsupported features."""

import pathlib
from typing import TYPE_CHECKING, Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.families.family import FAMILIES, TEXT_PARTS, Family, find_family
from gigpo_jax.models.files.json_values import FIX, JsonValues, check_folder, read_token_ids
from gigpo_jax.models.linear_names import DECODERS

if TYPE_CHECKING:
    from gigpo_jax.models.rope_scaling import Scaling

# A model with a value head in transformers: one label a token.
CRITIC = "ForTokenClassification"
_UNSUPPORTED = ("attention_bias", "mlp_bias", "quantization_config")


def read_config(path: str | pathlib.Path) -> DecoderConfig:
    """Reads config.json of a model folder.

    Raises:
      InputError: the file is missing, broken or of another architecture.
    """
    folder = check_folder(path)
    file = folder / "config.json"
    raw = read_object(file)
    stored_type = str(raw.get("model_type"))
    has_vision = stored_type in DECODERS
    if has_vision:
        from gigpo_jax.models.vision.vision_config import decoder_json, read_vision

        raw = decoder_json(raw)
    if stored_type in TEXT_PARTS:
        from gigpo_jax.models.files.text_config import text_config

        raw = text_config(raw, file)
    rope = _rope_settings(raw, file)
    _refuse_other_models(raw, file)
    family = find_family(raw["model_type"])
    # transformers 5 has rope_theta among the settings of the rotary embedding.
    content = {key: value for key, value in (raw | rope).items() if value is not None}
    values = JsonValues(family.defaults | content, file)
    heads = values.size("num_attention_heads")
    width = values.size("hidden_size")
    bos = read_token_ids(raw, "bos_token_id", file)
    eos = read_token_ids(raw, "eos_token_id", file)
    # A list stays one, so that the file can be written again as it was.
    lists_eos = isinstance(raw.get("eos_token_id"), list)
    try:
        return DecoderConfig(
            vocab_size=values.size("vocab_size"),
            hidden_size=width,
            intermediate_size=values.size("intermediate_size"),
            num_layers=values.size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=values.size("num_key_value_heads", heads),
            head_dim=values.size("head_dim", width // heads),
            # 10,000 and 1e-6 are the defaults of transformers for most types.
            rope_theta=values.number("rope_theta", 10_000.0),
            rms_norm_eps=values.number("rms_norm_eps", 1e-6),
            tie_word_embeddings=values.flag("tie_word_embeddings"),
            max_position_embeddings=values.size("max_position_embeddings", 32768),
            bos_token_id=bos[0] if bos else None,
            eos_token_id=eos if lists_eos else next(iter(eos), None),
            value_head=_count_values(raw, family),
            model_type=raw["model_type"],
            rope_scaling=_read_scaling(rope, values),
            vision=read_vision(stored_type, raw, rope, folder, width) if has_vision else None,
            **family.read_fields(values),
        )
    except ValueError as err:
        raise InputError(str(err), key=file, fix=FIX) from err


def _count_values(raw: dict[str, Any], family: Family) -> int:
    """Returns the number of a critic's values a token; 0 for a language model."""
    if raw.get("architectures") != [family.class_prefix + CRITIC]:
        return 0
    # transformers writes names of labels in place of their number.
    count = raw.get("num_labels", len(raw.get("id2label", "1")))
    return count if type(count) is int and count > 0 else 1


def _rope_settings(raw: dict[str, Any], file: pathlib.Path) -> dict[str, Any]:
    """Settings of the rotary embedding: rope_parameters, before transformers 5 rope_scaling."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if isinstance(rope, dict):
        # Models of several kinds of attention have settings for each.
        rope = rope.get("full_attention", rope)
    if not isinstance(rope, dict):
        raise InputError(
            f"rope_parameters={rope!r:.80} must be an object", key=file, fix="remove it"
        )
    return rope


def _read_scaling(rope: dict[str, Any], values: JsonValues) -> "Scaling | None":
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind == "default":
        return None
    # Imported here: few models have one.
    from gigpo_jax.models.rope_scaling import check_scaling, read_scaling

    check_scaling(kind, rope, values.file)
    context = values.size("max_position_embeddings", 32768)
    return read_scaling(kind, JsonValues(rope, values.file), context)


def _refuse_other_models(raw: dict[str, Any], file: pathlib.Path) -> None:
    if str(raw.get("model_type")) not in FAMILIES:
        model_type = raw.get("model_type", raw.get("architectures"))
        kinds = ", ".join((*FAMILIES, *TEXT_PARTS, *DECODERS))
        names = ", ".join(find_family(kind).title for kind in FAMILIES)
        fix = f"use a {names}, Qwen2.5-VL or Qwen3-VL model ({kinds})"
        raise InputError(f"model_type={model_type!r:.80} is not supported", key=file, fix=fix)
    family = find_family(raw["model_type"])
    # A feature that this code ignored would change the numbers without an error.
    window = raw.get(family.window_key, family.defaults.get(family.window_key))
    has_windows = window or "sliding_attention" in str(raw.get("layer_types"))
    if family.window_key and has_windows:
        raise InputError(
            f"sliding windows are not supported (sliding_window={raw.get('sliding_window')!r:.20})",
            key=file,
            fix="use a model without them: use_sliding_window=false, or sliding_window=null",
        )
    for key in ("hidden_act", "hidden_activation"):
        if raw.get(key, family.activation) != family.activation:
            raise InputError(
                f"{key}={raw[key]!r:.80} is not supported",
                key=file,
                fix=f"use a model with {family.activation}",
            )
    for key in (*_UNSUPPORTED, *family.unsupported):
        if raw.get(key):
            raise InputError(
                f"{key}={raw[key]!r:.80} is not supported", key=file, fix="use a model without it"
            )
