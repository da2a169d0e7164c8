"""Environments by name: one literal table of the entries (docs/environments.md)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import ReferenceTable, find_entry
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.processes.build import build_object
from gigpo_jax.env_bridge.prompts import PromptTemplate
from gigpo_jax.envs.entry_types import RUN_ARGUMENTS, Environment, check_options

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.experts import Expert

ENVIRONMENTS: ReferenceTable[Environment] = ReferenceTable(
    {
        "alfworld": "gigpo_jax.envs.alfworld.entry:ENVIRONMENT",
        "blackjack": "gigpo_jax.envs.blackjack.entry:ENVIRONMENT",
        "example": "gigpo_jax.envs.example.entry:ENVIRONMENT",
        "ezpoints": "gigpo_jax.envs.ezpoints.entry:ENVIRONMENT",
        "frozenlake": "gigpo_jax.envs.frozenlake.entry:ENVIRONMENT",
        "numberline": "gigpo_jax.envs.numberline.entry:ENVIRONMENT",
        "points24": "gigpo_jax.envs.points24.entry:ENVIRONMENT",
        "search": "gigpo_jax.envs.search.entry:ENVIRONMENT",
        "shell": "gigpo_jax.envs.shell.entry:ENVIRONMENT",
        "sokoban": "gigpo_jax.envs.sokoban.entry:ENVIRONMENT",
        "webshop": "gigpo_jax.envs.webshop.entry:ENVIRONMENT",
    }
)

# Environments of other packages: the text before the colon of their names -> maker of an entry.
INCOMING: ReferenceTable[Callable[[str], Environment]] = ReferenceTable(
    {
        "gymnasium": "gigpo_jax.envs.gymnasium.entry:gymnasium_entry",
        "mcp": "gigpo_jax.envs.mcp.entry:mcp_entry",
        "openenv": "gigpo_jax.envs.openenv.entry:openenv_entry",
        "verifiers": "gigpo_jax.envs.verifiers.entry:verifiers_entry",
    }
)


def spec(name: str) -> Environment:
    """Finds an environment's entry.

    Args:
      name: Key of `ENVIRONMENTS`, key of `INCOMING` with a source, such as "gymnasium:ID", or
        "module:NAME" of an `Environment`.

    Raises:
      InputError: there is none of that name.
    """
    origin, colon, source = name.partition(":")
    if colon and origin in INCOMING:
        return INCOMING[origin](source)
    return find_entry(name, ENVIRONMENTS, Environment, key="config.env.name")


def make(name: str, **options: Any) -> TextEnv:
    """Builds an environment; `name` is as in `spec`.

    Args:
      options: Values of `Environment.options` and `Environment.run_arguments`.

    Raises:
      InputError: a name, an option or a value that cannot be used.
    """
    entry = spec(name)
    return cast(TextEnv, build_object(entry.build, builder_options(entry, options)))


def builder_options(entry: Environment, options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the options of `make`; returns those that the environment's builder takes."""
    check_options({**RUN_ARGUMENTS, **entry.options}, options)
    arguments = dict(options)
    if "anchor" not in entry.options:
        check_anchor(entry, options.get("anchor", ""))
        # The only anchor of an environment is no argument of its builder.
        if "anchor" not in entry.run_arguments:
            arguments.pop("anchor", None)
    return arguments


def check_anchor(entry: Environment, anchor: str) -> None:
    """Raises InputError for a value of `env.anchor` that an environment has not."""
    if anchor and not entry.anchor.accepts(anchor):
        reason = f"must be {entry.anchor.requirement}"
        raise InputError(reason, key="config.env.anchor", value=repr(anchor))


def make_expert(name: str, seed: int, **options: Any) -> "Expert":
    """Builds a demonstrator for one episode, given values of `Environment.expert_options`.

    `seed` is the seed of its random choices. Raises InputError as `make`, or if the environment has
    no expert.
    """
    entry = spec(name)
    key = "config.sft.demonstrator"
    if entry.expert is None:
        raise InputError(
            "this environment has no expert to imitate", key="config.env.name", value=f'"{name}"'
        )
    check_options(entry.expert_options, options, key=key)
    return cast("Expert", build_object(entry.expert, {"seed": seed, **options}, key=key))


def generate_data(name: str, cache: Path, **options: Any) -> str:
    """Generates an environment's data in a cache folder, once.

    Args:
      name: Name of the environment, as in `spec`.
      cache: Cache folder; data of an earlier call are used again.
      options: Values of `Environment.generate_options`, and `progress`.

    Returns:
      Value of the environment's option `data`.

    Raises:
      InputError: as `make`, or the environment has nothing to generate.
    """
    entry = spec(name)
    key = "config.env.generate"
    # `progress` is given by the program, not by the user.
    if entry.generate is None:
        raise InputError(
            f"{name} has nothing to generate",
            key=key,
            value=str(sorted(options.keys() - {"progress"})),
            fix="leave it empty",
        )
    check_options(entry.generate_options, options, key=key)
    return str(build_object(entry.generate, {"cache_root": cache, **options}, key=key))


def find_style(name: str, style: str) -> PromptTemplate:
    """Finds a prompt template.

    Args:
      name: Name of the environment, as in `spec`.
      style: Key of `Environment.styles`, or "module:NAME" of a function. "chat" is a conversation
        with the words of "full", "chat_STYLE" one with the words of another style.

    Raises:
      InputError: there is no such template.
    """
    styles = spec(name).styles
    if isinstance(style, str) and style in styles:
        return styles[style]
    from gigpo_jax.envs.styles import find_other_style

    return find_other_style(name, style, styles)
