"""Config keys of episodes that begin in states of others or of an expert (docs/forks.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import DECAY, Part
from gigpo_jax.config.keys import declare, part_keys
from gigpo_jax.config.requirements import require, require_default
from gigpo_jax.core.settings import NOT_NEGATIVE, one_of
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import find_algorithm

KEYS = part_keys(
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
        "train.expert_starts",
        "number of iterations after which episodes begin one action of an expert earlier, at first "
        "before its last one; 0: off (docs/forks.md)",
        NOT_NEGATIVE,
    ),
    declare(
        "train.earlier_starts",
        "fraction of groups that begin in states of earlier iterations' episodes, rounded down; 0: "
        "off (docs/forks.md)",
        DECAY,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks forks: their number, their states, and that the algorithm tells them apart."""
    del trains
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
    """Checks that an environment can begin in such states."""
    environment = registry.spec(config.env.name)
    is_conversation = isinstance(
        registry.find_style(config.env.name, config.env.prompt), Conversation
    )
    if run.train.forks:
        reason = "saved conversations have no replayed responses"
        fix = "use 0, or another env.prompt than chat"
        require(not is_conversation, run, "train.forks", reason, fix)
        reason = "a program plays whole episodes of a harness, and cannot replay actions"
        require(not environment.harness, run, "train.forks", reason, "use 0")
    if run.train.expert_starts:
        _check_expert_starts(config, run, is_conversation)
    if run.train.earlier_starts:
        _check_earlier_starts(config, run, is_conversation)


def _check_expert_starts(config: ConfigDict, run: ConfigDict, is_conversation: bool) -> None:
    """Checks that episodes can begin in states of an expert."""
    name = "train.expert_starts"
    fix = "use 0, or another environment"
    # A program of a harness has no expert either.
    has_expert = registry.spec(config.env.name).expert is not None
    require(has_expert, run, name, f"{config.env.name} has no expert", fix)
    reason = "an expert's actions are no responses of a conversation"
    require(not is_conversation, run, name, reason, "use 0, or another env.prompt than chat")
    # The policy's first step would be behind the limit.
    reason = "starts that move and a limit that grows are two orders of the same steps"
    require(not config.env.first_max_steps, config, "env.first_max_steps", reason, "use 0")
    reason = "a task has one start for all of its episodes"
    require(not run.train.forks, run, "train.forks", reason, "use 0, or train.expert_starts=0")
    reason = "a task that takes the place of another one has no start"
    require(not run.train.refill_groups, run, "train.refill_groups", reason, "use 0")


def _check_earlier_starts(config: ConfigDict, run: ConfigDict, is_conversation: bool) -> None:
    """Checks that episodes can begin in states of earlier ones."""
    train = run.train
    name = "train.earlier_starts"
    reason = f"rounded down, no group of train.groups={train.groups}"
    is_enough = train.earlier_starts * train.groups + 1e-6 >= 1
    require(is_enough, run, name, reason, f"use at least {1 / train.groups:.3g}, or 0")
    reason = "the states of a conversation have no responses"
    require(not is_conversation, run, name, reason, "use 0, or another env.prompt than chat")
    reason = "episodes would begin without the plan of their state"
    require(config.env.plan == "none", run, name, reason, "use 0, or env.plan=none")
    is_program = registry.spec(config.env.name).harness
    reason = "a program plays whole episodes of a harness, and cannot replay actions"
    require(not is_program, run, name, reason, "use 0")
    fix = "use 0, or train.earlier_starts=0"
    reason = "a task has one start for all of its episodes"
    require(not train.forks, run, "train.forks", reason, fix)
    require(not train.expert_starts, run, "train.expert_starts", reason, fix)
    reason = "a task that takes the place of another one has no start"
    require(not train.refill_groups, run, "train.refill_groups", reason, fix)
    reason = "rollouts that run ahead would begin before the states are known"
    require(not train.max_staleness, run, "train.max_staleness", reason, fix)


PART = Part(KEYS, check=check, check_member=check_member)
