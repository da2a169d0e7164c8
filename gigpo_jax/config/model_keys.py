"""Config keys of models that come from the Hub, or that are large, and of shared prefixes."""

from ml_collections import ConfigDict

from gigpo_jax.config.core_keys import DTYPE
from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE, one_of

KEYS = named_keys(
    # For a run that others repeat with the same files of the Hub.
    declare("model.revision", 'branch, tag or commit of a model of the Hub; "": its main branch'),
    # For Qwen3, whose template thinks unless it is told not to.
    declare(
        "model.enable_thinking",
        "switch of chat templates such as Qwen3's; False: prompts end with an empty reasoning "
        "block",
    ),
    # For mixtures of experts, where rounding moves a token to another expert.
    declare(
        "model.replay_routes",
        "whether updates send each token through the experts of its rollout (docs/scaling.md)",
    ),
    # For models whose weights fit in one device for training, sharded, and not for sampling.
    declare(
        "engine.tensor",
        "number of devices that split the weights; 0: mesh.tensor, or more if needed "
        "(docs/scaling.md)",
        NOT_NEGATIVE,
    ),
    # For models that fit with 14 bytes a parameter, and not with 16.
    declare("optim.moment_dtype", "type of the stored first moment; the second is float32", DTYPE),
    declare(
        "train.minibatch_by",
        "unit that is dealt into minibatches: single steps, or whole task groups "
        "(docs/performance.md)",
        one_of("step", "group"),
    ),
    declare(
        "batch.share_prefixes",
        "whether shared prefixes of prompts are computed once, in scores and, with "
        "train.minibatch_by=group, in updates (docs/performance.md)",
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that there is a folder of a model."""
    del trains
    model = config.model
    if model.path:
        return
    reason = "not read without model.path"
    require(not model.revision, config, "model.revision", reason, "leave it out")
    reason = "the word tokenizer of model.shape has no such switch"
    require(model.enable_thinking, config, "model.enable_thinking", reason, "leave it out")


KEY_SET = KeySet(KEYS, check=check)
