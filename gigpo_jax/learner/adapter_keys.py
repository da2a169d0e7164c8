"""Config keys of a trained low-rank adapter."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE, POSITIVE, Rule
from gigpo_jax.models.linear_names import TARGETS

LORA_TARGETS = tuple(TARGETS)

KEYS = named_keys(
    declare(
        "model.lora.rank",
        "rank of a trained low-rank adapter; 0: all parameters are trained",
        NOT_NEGATIVE,
    ),
    # For adapters that PEFT or another trainer reads: their scale is part of the result.
    declare(
        "model.lora.alpha",
        "scale of the adapter: its output is multiplied by alpha / rank",
        POSITIVE,
    ),
    # For servers that take adapters of some layers alone, and for less memory.
    declare(
        "model.lora.targets",
        "linear layers with an adapter",
        Rule(
            f"one or more of {', '.join(LORA_TARGETS)}, each once",
            lambda value: 0 < len(value) == len(set(value)) and set(value) <= set(LORA_TARGETS),
        ),
    ),
    # For vision models whose pictures are unlike those of their pretraining.
    declare(
        "model.lora.vision",
        "whether linear layers of the vision tower's blocks have an adapter too",
    ),
    # For a second run that continues the adapter of a first one.
    declare(
        "model.lora.path",
        'adapter in PEFT\'s layout to start from; "": one that changes nothing',
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that there is an adapter where its keys are set."""
    lora = config.model.lora
    if lora.rank:
        reason = "an adapter needs a model"
        fix = "name one in model.path, or use 0"
        require(config.model.path != "", config, "model.lora.rank", reason, fix)
        reason = "an adapter has no matrices of layers"
        fix = "use adamw, or train all parameters (model.lora.rank=0)"
        require(config.optim.name == "adamw", config, "optim.name", reason, fix)
        return
    reason = "set model.lora.rank to its rank"
    require(not lora.vision, config, "model.lora.vision", reason)
    require(not lora.path, config, "model.lora.path", reason)
    # An adapter is float32 whatever type the frozen model has.
    is_float32 = not trains or config.model.param_dtype == "float32"
    reason = "small updates are rounded away in bfloat16"
    fix = "use float32, or train an adapter (model.lora.rank)"
    require(is_float32, config, "model.param_dtype", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
