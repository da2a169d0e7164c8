"""Config keys of the critic: AdamW as the policy's, at a constant rate."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, is_default, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE, POSITIVE, one_of
from gigpo_jax.rl.algorithms import find_algorithm

KEYS = named_keys(
    declare(
        "critic.kind",
        "model: a model of its own; head: a value head on the policy; auto: model if it is needed",
        one_of("none", "model", "head"),
        auto=True,
    ),
    declare(
        "critic.path",
        'model folder or exported critic to start from; "": the weights of model.path',
    ),
    declare("critic.lr", "learning rate; a value head alone needs a higher one", POSITIVE),
    declare(
        "critic.clip",
        "limit of a value's distance to its old one in the loss; 0: off",
        NOT_NEGATIVE,
    ),
    # For a value head, which begins with random weights.
    declare(
        "critic.warmup_iterations",
        "number of iterations at the start in which only the critic learns",
        NOT_NEGATIVE,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that there is a critic where the algorithm has one, and nowhere else."""
    del trains
    critic = config.critic
    name = config.rl.algorithm
    if not find_algorithm(name, config.rl.settings).critic_values:
        reason = f"not used, because {name} has no critic"
        # All keys of the section: none of them would be read.
        for key in KEYS:
            require(is_default(config, key), config, key, reason, "leave the key out")
        return
    reason = f"{name} needs a critic"
    require(critic.kind != "none", config, "critic.kind", reason, "use model or head")
    if critic.kind == "head":
        reason = "not used, because critic.kind=head is on the policy's own model"
        require(not critic.path, config, "critic.path", reason, "use critic.kind=model")
    iterations = config.train.iterations
    learns = critic.warmup_iterations < iterations
    reason = "the policy would never learn"
    fix = f"use less than train.iterations={iterations}"
    require(learns, config, "critic.warmup_iterations", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
