"""Name -> environment: one literal dict. A new environment is one entry (docs/environments.md)."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.build import build, load
from gigpo_jax.env_bridge.prompts import Compact, Instruct, PromptTemplate
from gigpo_jax.envs.alfworld import prompt as alfworld_prompt
from gigpo_jax.envs.search import actions as search_actions
from gigpo_jax.envs.search import prompt as search_prompt
from gigpo_jax.envs.webshop import prompt as webshop_prompt
from gigpo_jax.errors import InputError


@dataclass(frozen=True)
class Environment:
    """What the rest of the program knows of an environment.

    Attributes:
      build: "module:function", called with the options of the config, returns a `TextEnv`; imported on first use.
      styles: how prompts are worded; "full" for language models, "compact" for tiny ones.
      parse: a response's text -> `Response`; must not raise.
      expert: "module:function", called with seed (and options), returns a `base.Expert`; None if there is none.
      max_steps: the published length of an episode.
      history: the published number of past steps in a prompt.
      invalid_penalty: the published penalty for a response that does not keep to the format, in units of reward.
      generate: "module:function", called with a cache folder (and options, and progress), makes data where there is
        none and returns the builder's `data` option; None if there is nothing to make.
      write: the response in which `parse` finds an action, for demonstrations; None: between `<action>` tags.
    """

    build: str
    styles: Mapping[str, PromptTemplate]
    parse: Callable[[str], Response]
    expert: str | None
    max_steps: int
    history: int
    invalid_penalty: float
    generate: str | None = None
    write: Callable[[str], str] | None = None


ENVIRONMENTS: dict[str, Environment] = {
    "alfworld": Environment(
        build="gigpo_jax.envs.alfworld.env:make",
        styles={"full": alfworld_prompt.FULL, "compact": alfworld_prompt.COMPACT},
        parse=partial(parse_tagged, fallback_chars=30),
        expert="gigpo_jax.envs.alfworld.expert.demonstrator:make_demonstrator",
        generate="gigpo_jax.envs.alfworld.data.generate:ensure_games",
        max_steps=50,
        history=2,
        invalid_penalty=0.1,
    ),
    "example": Environment(
        build="gigpo_jax.envs.example.env:TreasureEnv",
        styles={"full": Instruct("You look for a treasure in a row of drawers."), "compact": Compact()},
        parse=partial(parse_tagged, fallback_chars=30),
        expert="gigpo_jax.envs.example.env:TreasureExpert",
        max_steps=12,
        history=2,
        invalid_penalty=0.1,
    ),
    "search": Environment(
        build="gigpo_jax.envs.search.env:make",
        styles={"full": search_prompt.FULL, "compact": search_prompt.COMPACT},
        parse=search_actions.parse,
        expert="gigpo_jax.envs.search.expert.expert:make_expert",
        generate="gigpo_jax.envs.search.data.generate:ensure_world",
        write=search_actions.write_action,
        max_steps=4,
        history=4,
        invalid_penalty=0.01,
    ),
    "webshop": Environment(
        build="gigpo_jax.envs.webshop.env:make",
        styles={"full": webshop_prompt.FULL, "compact": webshop_prompt.COMPACT},
        parse=partial(parse_tagged, fallback_chars=20),
        expert="gigpo_jax.envs.webshop.expert.demonstrator:make_demonstrator",
        generate="gigpo_jax.envs.webshop.data.generate:ensure_catalogue",
        max_steps=15,
        history=2,
        invalid_penalty=0.1,
    ),
}


def spec(name: str) -> Environment:
    """The entry of an environment.

    Args:
      name: a key of `ENVIRONMENTS`, or "module:NAME" for an `Environment` that stands in a module of one's own.

    Raises:
      InputError: an unknown name; the message lists the known ones.
    """
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if ":" in name:
        found = load(name)
        if not isinstance(found, Environment):
            raise InputError(f'env.name="{name}": that is a {type(found).__name__}, not a registry.Environment')
        return found
    near = difflib.get_close_matches(name, ENVIRONMENTS, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise InputError(f'env.name="{name}": unknown; {hint}known are {", ".join(sorted(ENVIRONMENTS))}, or module:NAME')


def make(name: str, **options: Any) -> TextEnv:
    """Builds an environment.

    Args:
      name: as for `spec`.
      **options: what the environment's builder takes.

    Raises:
      InputError: an unknown name or option, or what the builder says of a wrong value.
    """
    return cast(TextEnv, build(spec(name).build, options))


def make_expert(name: str, seed: int, **options: Any) -> Expert:
    """A demonstrator for one episode of an environment.

    Args:
      name: as for `spec`.
      seed: decides whatever the expert leaves to chance.
      **options: what the expert's builder takes beside it.

    Raises:
      InputError: as `make`; or the environment has no expert.
    """
    reference = spec(name).expert
    if reference is None:
        raise InputError(f'env.name="{name}": this environment has no expert to imitate')
    return cast(Expert, build(reference, {"seed": seed, **options}, key="sft.demonstrator"))


def generate(name: str, cache: Path, **options: Any) -> str:
    """Makes an environment's data, or finds what was made before.

    Args:
      name: as for `spec`.
      cache: a folder of ours.
      **options: what the environment's generator takes.

    Returns:
      The value of the builder's `data` option.

    Raises:
      InputError: as `make`; or the environment has nothing to generate.
    """
    reference = spec(name).generate
    if reference is None:
        raise InputError(f"env.generate={sorted(options)}: {name} has nothing to generate; leave it empty")
    return str(build(reference, {"cache_root": cache, **options}, key="env.generate"))


def style(name: str, which: str) -> PromptTemplate:
    """The prompt template of an environment in one of its styles.

    Raises:
      InputError: an unknown name or style; the message lists the known ones.
    """
    styles = spec(name).styles
    if which not in styles:
        raise InputError(f'prompt style "{which}": the environment {name} has {", ".join(sorted(styles))}')
    return styles[which]


def panel_folder(name: str) -> Path:
    """The folder of the panels that come with an environment."""
    return Path(__file__).parent / name / "panels"
