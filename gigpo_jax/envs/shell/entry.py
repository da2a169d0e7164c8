"""The entry of shell tasks."""

from functools import partial

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION
from gigpo_jax.envs.shell.prompt import COMPACT, FULL, TAGGED

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.shell.env:make",
    styles={"full": FULL, "tagged": TAGGED, "compact": COMPACT},
    # Without tags there is no command: the end of a thought is none.
    parse=partial(parse_tagged, fallback_chars=0, keeps_case=True),
    expert="gigpo_jax.envs.shell.expert:ShellExpert",
    max_steps=10,
    history=4,
    invalid_penalty=0.1,
    options={
        "kinds": Option(
            tuple, ("find", "count", "edit", "fix"), "kinds of tasks: find, count, edit, fix"
        ),
        "menu": Option(bool, False, "list of commands that fit the task; others run too"),
    },
    # A state is the folder and its cwd.
    anchor=one_of("observation", "state"),
    run_arguments=("max_steps", "anchor"),
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
