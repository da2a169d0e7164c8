"""Config keys of groups that end early or are replaced, and of tasks drawn by success."""

import math

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import NOT_NEGATIVE, POSITIVE_FRACTION, one_of
from gigpo_jax.rl.algorithms import BASE, find_algorithm

KEYS = named_keys(
    # For dynamic sampling, as in DAPO.
    declare(
        "train.refill_groups",
        "largest number of replacements of a group whose episodes all end alike by a group of "
        "another task",
        NOT_NEGATIVE,
    ),
    # For environments in which few episodes take most of the time.
    declare(
        "train.finish_fraction",
        "fraction of a group's episodes that must end; then the others are cancelled; 1: off "
        "(docs/scaling.md)",
        POSITIVE_FRACTION,
    ),
    # For tasks of which most are won, or lost, from the start.
    declare(
        "train.curriculum",
        "order of tasks: in turn (none), or more of the task types whose success is near 50% "
        "(success)",
        one_of("none", "success"),
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that a group keeps episodes to compare, and that success is measured in time."""
    del trains
    train = config.train
    algorithm = find_algorithm(config.rl.algorithm, config.rl.settings)
    # A wrapper's critic gives rewards, which its base compares.
    whitens = algorithm.critic_values > 0 and BASE not in algorithm.settings
    has_deviation = train.group_size > 1 or config.rl.normalize == "mean" or whitens
    reason = "a group of one has no standard deviation"
    fix = "use at least 2 (published: 8)"
    require(has_deviation, config, "train.group_size", reason, fix)
    reason = "a group of one has no second episode to differ from"
    fix = "use 0, or train.group_size of at least 2"
    has_others = train.group_size > 1
    require(has_others or not train.refill_groups, config, "train.refill_groups", reason, fix)
    # Rounded up, as in `EarlyEnd`.
    finished = math.ceil(train.finish_fraction * train.group_size)
    reason = f"leaves {finished} of the {train.group_size} episodes of a group"
    fix = "keep at least 2, which are compared"
    is_whole = train.finish_fraction == 1
    require(is_whole or finished > 1, config, "train.finish_fraction", reason, fix)
    reason = "tasks are drawn before the last success is measured"
    fix = "use none, or train.max_staleness=0"
    in_turn = train.curriculum == "none"
    require(in_turn or not train.max_staleness, config, "train.curriculum", reason, fix)


KEY_SET = KeySet(KEYS, check=check)
