"""What the rest of the program knows of an environment: the types of an `entry.py`."""

import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.settings import Rule
from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.env_bridge.prompts import PromptTemplate

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.instructions import Instruct

# Types whose values a user may write in a wider form: a path for a text, a list for a tuple.
_ACCEPTED_TYPES: dict[type, Any] = {
    str: (str, os.PathLike),
    int: numbers.Integral,
    float: numbers.Real,
    tuple: (tuple, list),
    dict: Mapping,
}


@dataclass(frozen=True)
class Option:
    """Keyword argument of an environment, generator or expert.

    Attributes:
      kind: Type of its values. `dict`: the user chooses the keys; `object`: several types.
      default: Default of the function. None if there is none, or if `help` explains it.
      help: Meaning, in one line.
    """

    kind: type
    default: Any
    help: str

    def accepts(self, value: object) -> bool:
        """Whether a value is of the option's type."""
        if value is None:
            return self.default is None
        # bool is a subclass of int: without this line True would pass for a number.
        if isinstance(value, bool):
            return self.kind in (bool, object)
        return isinstance(value, _ACCEPTED_TYPES.get(self.kind, self.kind))


NO_CHOICE = Rule("left out: there is no choice", lambda value: False)
# Arguments of `build` that a run sets where an entry names them.
RUN_ARGUMENTS = {
    "max_steps": Option(int, None, "length of an episode: env.max_steps, or the entry's if longer"),
    "regret": Option(bool, False, "whether `info` has the regret of each action: env.regret"),
    "anchor": Option(str, "", "anchor states: env.anchor"),
}


def check_options(
    declared: Mapping[str, Option], options: Mapping[str, Any], *, key: str = "config.env.options"
) -> None:
    """Raises InputError for an option of the wrong type.

    Args:
      declared: Options of the environment. Unknown names are left to the function's signature.
      options: Values by name.
      key: Config key in the message.
    """
    for name, value in options.items():
        if name in declared and not declared[name].accepts(value):
            raise InputError(
                f"must be of type {declared[name].kind.__name__}",
                key=f"{key}.{name}",
                value=repr(value),
            )


@dataclass(frozen=True)
class ExampleGames:
    """Source of the examples in agents' prompts (docs/agents.md): games outside all panels.

    Attributes:
      generate: Options of `Environment.generate`.
      demonstrator: Options of `Environment.expert`.
    """

    generate: Mapping[str, Any]
    demonstrator: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """An environment's entry, of which a "module:function" is imported on first use.

    Attributes:
      build: "module:function", called with the options of the config, returns a `TextEnv`.
      styles: Prompt templates by name: "full" for language models, "compact" for tiny ones.
      parse: Function from the text of a response to a `Response`; it must not raise.
      expert: "module:function", called with a seed and options, returns a `experts.Expert`.
        None: there is no expert.
      max_steps: Published length of an episode.
      history: Published number of past steps in a prompt.
      invalid_penalty: Published penalty for an invalid response, in units of reward.
      generate: "module:function", called with a cache folder, options and progress. It makes the
        data unless the folder has them, and returns the `data` option of `build`.
        None: there is nothing to generate.
      options: Options of `build`, the keys of config.env.options.
      anchor: Values of env.anchor, the published one first.
      run_arguments: Arguments of `build` among `RUN_ARGUMENTS`.
      generate_options: Options of `generate`, the keys of config.env.generate.
      expert_options: Options of `expert`, the keys of config.sft.demonstrator.
      write: Function from an action to a response that `parse` reads as this action.
        None: the action between <action> tags.
      action_tags: Tags that an action stands in; empty if it stands in none.
      answer_prefix: Text before the answer in a response; "" if tasks have no `Task.answer`.
      about: Introduction in agents' prompts. None: as in the first style that is an `Instruct`.
      examples: Source of agents' examples. None: tasks of env.split outside the panel.
      plans: "module:NAME" of what a kind of plan needs of it, by values of `env.plan`. No worker
        imports it.
      harness: Whether `build` returns a `harnesses.Harness`, which plays whole episodes by itself
        (docs/serve.md).
    """

    build: str
    styles: Mapping[str, PromptTemplate]
    parse: Callable[[str], Response]
    expert: str | None
    max_steps: int
    history: int
    invalid_penalty: float
    generate: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    anchor: Rule = NO_CHOICE
    run_arguments: tuple[str, ...] = ()
    generate_options: Mapping[str, Option] = field(default_factory=dict)
    expert_options: Mapping[str, Option] = field(default_factory=dict)
    write: Callable[[str], str] | None = None
    action_tags: tuple[str, ...] = ("action",)
    answer_prefix: str = ""
    about: "Instruct | None" = None
    examples: ExampleGames | None = None
    plans: Mapping[str, str] = field(default_factory=dict)
    harness: bool = False
