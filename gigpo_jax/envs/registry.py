"""Name -> environment: one literal dict. A new environment is one entry (docs/environments.md)."""

import numbers
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.base import Expert, TextEnv
from gigpo_jax.env_bridge.build import build
from gigpo_jax.env_bridge.prompts import TAGGED_THOUGHT, Compact, Instruct, PromptTemplate
from gigpo_jax.envs.alfworld import prompt as alfworld_prompt
from gigpo_jax.envs.blackjack import env as blackjack
from gigpo_jax.envs.cards import responses
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.ezpoints import env as ezpoints
from gigpo_jax.envs.games import observation_alone
from gigpo_jax.envs.numberline import env as numberline
from gigpo_jax.envs.points24 import env as points24
from gigpo_jax.envs.search import actions as search_actions
from gigpo_jax.envs.search import prompt as search_prompt
from gigpo_jax.envs.sokoban import prompt as sokoban_prompt
from gigpo_jax.envs.webshop import prompt as webshop_prompt
from gigpo_jax.errors import InputError
from gigpo_jax.references import find, load


@dataclass(frozen=True)
class Option:
    """An option of an environment, of its generator or of its expert: a key of the config."""

    kind: type  # the type of its values; `dict`: the user chooses the keys; `object`: several types
    default: Any  # the function's own default; None if there is none, or `help` tells it
    help: str  # what it means

    def takes(self, value: object) -> bool:
        """Whether a value is of its type: paths are texts, whole numbers are floats, lists are tuples."""
        if value is None:
            return self.default is None
        if isinstance(value, bool):
            return self.kind in (bool, object)
        wider: dict[type, Any] = {str: (str, os.PathLike), int: numbers.Integral, float: numbers.Real}
        wider |= {tuple: (tuple, list), dict: Mapping}
        return isinstance(value, wider.get(self.kind, self.kind))


@dataclass(frozen=True)
class ExampleGames:
    """Where the examples in prompts of agents come from: games that no panel has (docs/agents.md)."""

    generate: Mapping[str, Any]  # options of `Environment.generate`
    demonstrator: Mapping[str, Any] = field(default_factory=dict)  # options of `Environment.expert`


@dataclass(frozen=True)
class Environment:
    """What the rest of the program knows of an environment. A "module:function" is imported on first use."""

    build: str  # "module:function", called with the options of the config, returns a `TextEnv`
    styles: Mapping[str, PromptTemplate]  # how prompts are worded: "full" for language models, "compact" for tiny ones
    parse: Callable[[str], Response]  # a response's text -> `Response`; must not raise
    expert: str | None  # "module:function", called with seed and options, returns a `base.Expert`; None: no expert
    max_steps: int  # the published length of an episode
    history: int  # the published number of past steps in a prompt
    invalid_penalty: float  # the published penalty for a response that does not keep to the format, in units of reward
    # "module:function", called with a cache folder, options and progress, makes data where there is none and returns
    # the `data` option of `build`; None: nothing to make
    generate: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)  # of `build`: config.env.options
    generate_options: Mapping[str, Option] = field(default_factory=dict)  # of `generate`: config.env.generate
    expert_options: Mapping[str, Option] = field(default_factory=dict)  # of `expert`: config.sft.demonstrator
    write: Callable[[str], str] | None = None  # the response that `parse` reads as an action; None: <action> tags
    action_tags: tuple[str, ...] = ("action",)  # an action stands in one of these tags; (): in none
    answer_prefix: str = ""  # what stands before the answer in a response; "": its tasks have no `Task.answer`
    about: Instruct | None = None  # what agents say of it; None: as the first style that is an `Instruct`
    examples: ExampleGames | None = None  # None: the tasks of env.split that are not in the panel
    harness: bool = False  # `build` returns a `base.Harness`, which plays whole episodes by itself (docs/serve.md)


# Options that all games have (games.py).
_OBSERVATION = Option(str, "picture", "picture or text")
_REGRET = Option(bool, False, "metric episode/regret: actions that were wasted")
_RANDOM = Option(float, 0.0, "probability of a random action at a step")

_COMPAT = Option(bool, False, "formulas have the value that Python gives them: digits join, ** and // count")


def _cards(name: str, rules: Rules, actions: Sequence[str], max_steps: int, **options: Option) -> Environment:
    """The entry of a card game; their modules have the same names."""
    return Environment(
        build=f"gigpo_jax.envs.{name}.env:make",
        styles={"full": rules, "compact": observation_alone},
        parse=partial(responses.parse, actions=actions),
        expert=f"gigpo_jax.envs.{name}.env:make_expert",
        about=Instruct(rules.text),
        write=responses.write,
        action_tags=(),
        max_steps=max_steps,
        history=0,
        invalid_penalty=0.1,
        options={
            "observation": _OBSERVATION,
            "max_steps": Option(int, max_steps, "length of an episode in the environment"),
            **options,
            "regret": _REGRET,
        },
        expert_options={"random_fraction": _RANDOM},
    )


ENVIRONMENTS: dict[str, Environment] = {
    "alfworld": Environment(
        build="gigpo_jax.envs.alfworld.env:make",
        styles={"full": alfworld_prompt.FULL, "tagged": alfworld_prompt.TAGGED, "compact": alfworld_prompt.COMPACT},
        parse=partial(parse_tagged, fallback_chars=30),
        expert="gigpo_jax.envs.alfworld.expert.demonstrator:Demonstrator",
        generate="gigpo_jax.envs.alfworld.data.generate:ensure_games",
        examples=ExampleGames({"splits": {"train": 48}, "size": "small", "seed": 1}),
        max_steps=50,
        history=2,
        invalid_penalty=0.1,
        options={
            "data": Option(str, "", "folder with the splits: generated games, or $ALFWORLD_DATA/json_2.1.1"),
            "engine": Option(str, "native", "native, or official: textworld (extra alfworld), a thousand times slower"),
            "max_steps": Option(int, 50, "length of an episode in the environment"),
            "anchor": Option(
                str, "feedback", "the anchor state: feedback, +inventory, +sticky, ... (docs/alfworld.md)"
            ),
            "task_types": Option(tuple, None, "the task types to list; all six by default"),
            "regret": Option(bool, False, "metric episode/regret: commands that the actions wasted (native engine)"),
        },
        generate_options={
            "splits": Option(dict, None, "games of each split, such as {'train': 512, 'valid_unseen': 128}"),
            "seed": Option(int, 0, "decides the games"),
            "size": Option(str, "full", "full or small rooms"),
            "receptacles": Option(object, None, "of a room, a number or (least, most); by default those of size"),
            "objects": Option(object, None, "of a room, likewise"),
            "task_types": Option(tuple, None, "the task types of the games; all six by default"),
        },
        expert_options={
            "random_fraction": Option(float, 0.0, "probability of a random admissible command at a step"),
            "detour_fraction": Option(float, 0.0, "probability of walking to another receptacle at a step"),
            "idle_fraction": Option(float, 0.0, "probability of looking at something at a step"),
            "forget_fraction": Option(float, 0.0, "probability of an object being put down unprepared"),
        },
    ),
    "blackjack": _cards("blackjack", blackjack.full, blackjack.ACTIONS, 15),
    "example": Environment(
        build="gigpo_jax.envs.example.env:TreasureEnv",
        styles={
            "full": Instruct("You look for a treasure in a row of drawers."),
            "tagged": Instruct("You look for a treasure in a row of drawers.", thought=TAGGED_THOUGHT),
            "compact": Compact(),
        },
        parse=partial(parse_tagged, fallback_chars=30),
        expert="gigpo_jax.envs.example.env:TreasureExpert",
        max_steps=12,
        history=2,
        invalid_penalty=0.1,
        options={"drawers": Option(int, 4, "drawers in the row"), "games": Option(int, 64, "tasks of a split")},
    ),
    "ezpoints": _cards("ezpoints", ezpoints.full, ezpoints.ACTIONS, 8, compat=_COMPAT),
    "numberline": _cards("numberline", numberline.full, numberline.ACTIONS, 10),
    "points24": _cards("points24", points24.full, points24.ACTIONS, 20, compat=_COMPAT),
    "search": Environment(
        build="gigpo_jax.envs.search.env:make",
        styles={"full": search_prompt.full, "compact": search_prompt.compact},
        parse=search_actions.parse,
        expert="gigpo_jax.envs.search.expert.expert:SearchExpert",
        generate="gigpo_jax.envs.search.data.generate:ensure_world",
        examples=ExampleGames({"people": 48, "seed": 1}),
        about=Instruct(f"{search_prompt.INTRO} {search_prompt.ACTIONS}"),
        write=search_actions.write_action,
        action_tags=("search", "answer"),
        answer_prefix="<think>Now there is enough information to answer.</think><answer>",
        max_steps=4,
        history=4,
        invalid_penalty=0.01,
        options={
            "data": Option(str, None, "folder of questions (docs/search.md); by default a synthetic world"),
            "url": Option(str, "", "of a retriever, such as http://127.0.0.1:8000/retrieve; by default index"),
            "index": Option(str, "", "index folder to search in the worker; by default the folder index in data"),
            "topk": Option(int, 3, "passages shown after a search"),
            "max_steps": Option(int, 4, "length of an episode in the environment, in turns"),
            "document_chars": Option(int, 4000, "longer passages are cut there"),
            "anchor": Option(
                str, "information", "the anchor state: information (the last one), or information+past (all of it)"
            ),
            "regret": Option(bool, False, "metric episode/regret: turns that were wasted (docs/search.md)"),
            "timeout_s": Option(float, 10.0, "limit for one request to url"),
            "limit_s": Option(float, 45.0, "limit for a search with all its retries; keep it below env.step_timeout_s"),
        },
        generate_options={
            "people": Option(int, 480, "of the synthetic world"),
            "questions": Option(int, 0, "most questions of a split; 0: all"),
            "seed": Option(int, 0, "decides the world"),
        },
        expert_options={
            "blind_fraction": Option(float, 0.0, "probability of an answer without a search"),
            "vague_fraction": Option(float, 0.0, "probability of a search that names half of its subject"),
            "hasty_fraction": Option(float, 0.0, "probability of answering with any name instead of searching on"),
            "max_steps": Option(int, 4, "turns of an episode; the last one is an answer"),
        },
    ),
    "sokoban": Environment(
        build="gigpo_jax.envs.sokoban.env:make",
        styles={"full": sokoban_prompt.full, "compact": observation_alone},
        parse=sokoban_prompt.parse,
        expert="gigpo_jax.envs.sokoban.env:make_expert",
        about=sokoban_prompt.ABOUT,
        max_steps=15,
        history=2,
        invalid_penalty=0.1,
        options={
            "observation": _OBSERVATION,
            "size": Option(int, 6, "rows and columns of a room, border included: 5 to 10"),
            "boxes": Option(int, 1, "boxes, and as many targets: 1 to 3"),
            "depth": Option(int, 30, "the most moves of the backward play that makes a room: 2 a box to 100"),
            "max_steps": Option(int, 15, "length of an episode in the environment"),
            "regret": _REGRET,
        },
        expert_options={"random_fraction": _RANDOM},
    ),
    "webshop": Environment(
        build="gigpo_jax.envs.webshop.env:make",
        styles={"full": webshop_prompt.FULL, "tagged": webshop_prompt.TAGGED, "compact": webshop_prompt.compact},
        parse=partial(parse_tagged, fallback_chars=20),
        expert="gigpo_jax.envs.webshop.expert.demonstrator:Demonstrator",
        generate="gigpo_jax.envs.webshop.data.generate:ensure_catalogue",
        examples=ExampleGames({"products": 200, "seed": 1}, {"brief": True}),
        max_steps=15,
        history=2,
        invalid_penalty=0.1,
        options={
            "data": Option(str, None, "folder of a catalogue (docs/webshop.md); by default a generated one"),
            "observation": Option(str, "text", "text, or text_rich: marks around buttons and chosen options"),
            "goals": Option(str, "synthetic", "synthetic or human instructions"),
            "max_steps": Option(int, 15, "length of an episode in the environment"),
            "show_attributes": Option(bool, False, "items have an Attributes page"),
            "draw_seed": Option(int, None, "all goals, with prices and caps that the original draws from this seed"),
            "seed": Option(int, 0, "decides prices and price caps"),
            "nouns": Option(str, None, "nouns of titles, for the reward: builtin (default), spacy, or a JSON file"),
            "num_products": Option(int, None, "only the first products of the catalogue"),
            "variant": Option(str, None, "which of several catalogues in data, such as _1000"),
            "anchor": Option(str, "page", "the anchor state: page, or page+options with the chosen options"),
            "regret": Option(bool, False, "metric episode/regret: actions that were wasted (docs/webshop.md)"),
        },
        generate_options={
            "products": Option(int, 1000, "of the catalogue"),
            "seed": Option(int, 0, "decides the products"),
        },
        expert_options={
            "max_steps": Option(int, 15, "steps the expert plans for"),
            "random_fraction": Option(float, 0.0, "probability of a random click at a step"),
            "vague_fraction": Option(float, 0.0, "probability of a search with three of the expert's words"),
            "forget_fraction": Option(float, 0.0, "probability of an option that is never chosen"),
            "brief": Option(bool, False, "searches name every word once"),
        },
    ),
}


def harness(build: str, *, max_steps: int, **options: Option) -> Environment:
    """The entry of an agent program that plays whole episodes against the endpoint (docs/serve.md).

    Args:
      build: "module:NAME", called with the options of the config, returns a `base.Harness`.
      max_steps: the most calls of an episode.
      options: of `build`.
    """
    return Environment(
        build=build,
        styles={"full": observation_alone},
        parse=partial(Response, valid=True),
        expert=None,
        max_steps=max_steps,
        history=0,
        invalid_penalty=0.0,
        options=options,
        action_tags=(),
        harness=True,
    )


def spec(name: str) -> Environment:
    """A key of `ENVIRONMENTS`, or "module:NAME" for an `Environment` of one's own; InputError if there is none."""
    return find(name, ENVIRONMENTS, Environment, key="config.env.name")


def playable(name: str) -> Environment:
    """As `spec`, but InputError for a harness, which has no steps to play."""
    entry = spec(name)
    if entry.harness:
        raise InputError(f"config.env.name={name!r}: a harness plays whole episodes by itself; name an environment")
    return entry


def check_options(
    declared: Mapping[str, Option], options: Mapping[str, Any], *, key: str = "config.env.options"
) -> None:
    """Raises InputError for an option of another type than declared; `key` is where the user set them."""
    for name, value in options.items():
        if name in declared and not declared[name].takes(value):
            raise InputError(f"{key}.{name}={value!r}: must be of type {declared[name].kind.__name__}")


def make(name: str, **options: Any) -> TextEnv:
    """Builds an environment; `name` as for `spec`, InputError for a name, an option or a value that cannot be used."""
    entry = spec(name)
    check_options(entry.options, options)
    return cast(TextEnv, build(entry.build, options))


def make_expert(name: str, seed: int, **options: Any) -> Expert:
    """A demonstrator for one episode; InputError as `make`, or if the environment has no expert.

    Args:
      seed: of the expert's random choices.
    """
    entry, key = spec(name), "config.sft.demonstrator"
    if entry.expert is None:
        raise InputError(f'config.env.name="{name}": this environment has no expert to imitate')
    check_options(entry.expert_options, options, key=key)
    return cast(Expert, build(entry.expert, {"seed": seed, **options}, key=key))


def generate(name: str, cache: Path, **options: Any) -> str:
    """Makes an environment's data in a cache folder, or finds what was made before.

    Returns:
      The value of the builder's `data` option.

    Raises:
      InputError: as `make`; or the environment has nothing to generate.
    """
    entry, key = spec(name), "config.env.generate"
    if entry.generate is None:
        raise InputError(
            f"{key}={sorted(options.keys() - {'progress'})}: {name} has nothing to generate; leave it empty"
        )
    check_options(entry.generate_options, options, key=key)
    return str(build(entry.generate, {"cache_root": cache, **options}, key=key))


def style(name: str, which: str) -> PromptTemplate:
    """The prompt template of an environment in one of its styles, or "module:NAME"; InputError for an unknown one."""
    if not isinstance(which, str):
        raise InputError(f"prompt style {which!r}: must be of type str")
    if ":" in which:
        template = load(which, key="prompt style")
        if not callable(template):
            raise InputError(
                f"{which} is of type {type(template).__name__}, no function; name one from PromptInput to text"
            )
        return cast(PromptTemplate, template)
    styles = spec(name).styles
    if which not in styles:
        raise InputError(
            f'prompt style "{which}": the environment {name} has {", ".join(sorted(styles))}, or module:NAME'
        )
    return styles[which]


def about(name: str) -> Instruct:
    """What agents with prompts of their own say of an environment, and the actions that they do not list."""
    entry = spec(name)
    known = (style for style in entry.styles.values() if isinstance(style, Instruct))
    return entry.about or next(known, Instruct(""))


def panel_folder(name: str) -> Path:
    """The folder of the panels that come with an environment: `panels` beside the module of "module:NAME"."""
    if ":" not in name:
        return Path(__file__).parent / name / "panels"
    spec(name)
    return Path(str(sys.modules[name.partition(":")[0]].__file__)).parent / "panels"
