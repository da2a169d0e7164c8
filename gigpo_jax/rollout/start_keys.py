"""Config keys of episodes that begin in recorded states (docs/forks.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import DECAY, KeySet
from gigpo_jax.config.keys import declare, named_keys, value_of
from gigpo_jax.config.requirements import require, require_default
from gigpo_jax.core.settings import NOT_NEGATIVE, one_of
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import find_algorithm

KEYS = named_keys(
    declare(
        "train.forks",
        "number of a task's episodes that begin in states of its other episodes (docs/forks.md)",
        NOT_NEGATIVE,
    ),
    declare(
        "train.fork_choice",
        "states that forks begin in: those of the least certain values (uncertainty), of any visit "
        "(uniform), of the least certain responses (entropy)",
        one_of("uncertainty", "uniform", "entropy"),
    ),
    declare(
        "train.earlier_starts",
        "fraction of groups that begin in states of earlier iterations' episodes, rounded down; 0: "
        "off (docs/forks.md)",
        DECAY,
    ),
)
# Keys that begin episodes in recorded states; a run has one of them, or one of a method.
STARTS = ("train.forks", "train.earlier_starts")


def check_one_start(config: ConfigDict, name: str) -> None:
    """Checks that no other key of `STARTS` is set beside `name`, which is."""
    reason = "a task has one start for all of its episodes"
    for other in STARTS:
        is_free = other == name or not value_of(config, other)
        require(is_free, config, other, reason, f"use 0, or {name}=0")


def check(config: ConfigDict, trains: bool) -> None:
    """Checks which groups and episodes begin in recorded states."""
    del trains
    train = config.train
    if train.earlier_starts:
        check_one_start(config, "train.earlier_starts")
    _check_forks(config)
    if train.earlier_starts:
        name = "train.earlier_starts"
        reason = f"rounded down, no group of train.groups={train.groups}"
        is_enough = train.earlier_starts * train.groups + 1e-6 >= 1
        require(is_enough, config, name, reason, f"use at least {1 / train.groups:.3g}, or 0")
        reason = "rollouts that run ahead would begin before the states are known"
        fix = "use 0, or train.earlier_starts=0"
        require(not train.max_staleness, config, "train.max_staleness", reason, fix)


def _check_forks(config: ConfigDict) -> None:
    """Checks the number of forks, their states, and that the algorithm tells them apart."""
    train = config.train
    name = config.rl.algorithm
    algorithm = find_algorithm(name, config.rl.settings)
    if algorithm.fork_choice:
        reason = f"rl.algorithm={name} learns from episodes that begin in states of others"
        require(train.forks > 0, config, "train.forks", reason, "such as half of train.group_size")
        is_same = train.fork_choice == algorithm.fork_choice
        reason = f"rl.algorithm={name} chooses these states otherwise"
        require(is_same, config, "train.fork_choice", reason, f"use {algorithm.fork_choice}")
    if not train.forks:
        require_default(config, "train.fork_choice", "train.forks=0")
        return
    # States are compared, or whole episodes.
    fewest = 1 if algorithm.fork_choice else 2
    limit = train.group_size - fewest
    reason = "forks begin in states of the other episodes"
    if fewest == 2:
        reason = "the other episodes of a task are compared with each other"
    fix = f"at most {max(limit, 0)}, train.group_size less {fewest}"
    require(train.forks <= limit, config, "train.forks", reason, fix)
    reason = "forks begin when all other episodes of their task have ended"
    fix = "use 1, or train.forks=0"
    require(train.finish_fraction == 1, config, "train.finish_fraction", reason, fix)
    reason = f"rl.algorithm={name} does not tell forks from whole episodes"
    fix = "use 0, or an algorithm of docs/forks.md such as gigpo or graph_values"
    require(algorithm.takes_forks, config, "train.forks", reason, fix)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks that an environment can begin in recorded states."""
    for name in STARTS:
        if value_of(run, name):
            reason = "episodes would begin without the plan of their state"
            require(config.env.plan == "none", run, name, reason, "use 0, or env.plan=none")
            check_replay(config, run, name)


def check_replay(config: ConfigDict, run: ConfigDict, name: str) -> None:
    """Checks that actions of an environment can be replayed, as the key `name` needs."""
    env = config.env
    is_conversation = isinstance(registry.find_style(env.name, env.prompt), Conversation)
    reason = "a conversation has no responses for replayed actions"
    require(not is_conversation, run, name, reason, "use 0, or another env.prompt than chat")
    reason = "a program plays whole episodes of a harness, and cannot replay actions"
    require(not registry.spec(env.name).harness, run, name, reason, "use 0")


KEY_SET = KeySet(KEYS, check=check, check_member=check_member)
