"""Overrides of a verl-agent script as flags of gigpo (gigpo keys --from verl-agent).

docs/from_verl_agent.md has the same table.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gigpo_jax.config.command_line import parse_value
from gigpo_jax.config.keys import KEYS
from gigpo_jax.core.errors import InputError

Flags = Mapping[str, str]  # key of the config -> value

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_ALGORITHMS = {
    "gae": "ppo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
# Their environments -> packaged configs, which have the settings of the authors' scripts.
_CONFIGS = {
    "alfworld": "alfworld",
    "webshop": "webshop",
    "search": "search",
    "sokoban": "sokoban",
    "ezpoints": "ezpoints",
    "numberline": "numberline",
    "blackjack": "blackjack",
}
_VARIANTS = {
    "alfworld": ("1.5b", "7b"),
    "webshop": ("1.5b", "7b"),
    "search": ("3b", "7b"),
}


class Counterpart(NamedTuple):
    """Settings of verl-agent and their counterpart.

    Attributes:
      theirs: Their keys.
      ours: Counterpart, as the page says it.
      translate: Their values by key, as far as given -> flags; None: for people alone.
    """

    theirs: tuple[str, ...]
    ours: str
    translate: Callable[[Mapping[str, str]], Flags] | None


def _is_on(value: str) -> bool:
    return value.lower() in ("true", "1")


def _row(theirs: str, *names: str, more: str = "") -> Counterpart:
    """A row of keys with equal values; `theirs` is split at spaces."""
    keys = tuple(theirs.split())
    pairs = dict(zip(keys, names, strict=True))
    text = ", ".join(f"`{name}`" for name in names) + more
    return Counterpart(
        keys, text, lambda values: {pairs[key]: value for key, value in values.items()}
    )


def _note(theirs: str, ours: str) -> Counterpart:
    """A row whose values are not translated."""
    return Counterpart(tuple(theirs.split()), ours, None)


def _switched(switch: str, coefficient: str, name: str) -> Counterpart:
    """A coefficient that a switch turns off."""

    def translate(values: Mapping[str, str]) -> Flags:
        if switch in values and not _is_on(values[switch]):
            return {name: "0"}
        return {name: values[coefficient]} if coefficient in values else {}

    return Counterpart((coefficient, switch), f"`{name}`", translate)


def _algorithm(values: Mapping[str, str]) -> Flags:
    (name,) = values.values()
    return {"rl.algorithm": _ALGORITHMS.get(name, name)}


def _translate_similarity(values: Mapping[str, str]) -> Flags:
    on, threshold = (values.get(f"algorithm.gigpo.{name}", "") for name in _SIMILARITY)
    if not _is_on(on):
        return {}
    return {"rl.anchor_match": "similar"} | ({"rl.similarity": threshold} if threshold else {})


_SIMILARITY = ("enable_similarity", "similarity_thresh")


def _devices(values: Mapping[str, str]) -> Flags:
    numbers = [values.get(f"trainer.{name}", "1") for name in ("n_gpus_per_node", "nnodes")]
    if not all(number.isdecimal() for number in numbers):
        return {}
    devices, hosts = map(int, numbers)
    return {"mesh.fsdp": str(devices * hosts)} | ({"distributed": "True"} if hosts > 1 else {})


def _loggers(values: Mapping[str, str]) -> Flags:
    names = re.findall(r"\w+", "".join(values.values()))
    ours = tuple(name for name in names if name in ("tensorboard", "wandb"))
    return {"log.to": ours[0] if len(ours) == 1 else repr(ours)}


ROWS = (
    Counterpart(
        ("algorithm.adv_estimator",), "`rl.algorithm` ([others](algorithms.md))", _algorithm
    ),
    _row("algorithm.gamma", "rl.gamma"),
    _row("algorithm.gigpo.step_advantage_w", "rl.step_weight"),
    Counterpart(
        ("algorithm.gigpo.mode",),
        "`rl.normalize`: `mean_norm` is `mean`, `mean_std_norm` is `mean_std`",
        lambda values: {"rl.normalize": "".join(values.values()).removesuffix("_norm")},
    ),
    Counterpart(
        tuple(f"algorithm.gigpo.{name}" for name in _SIMILARITY),
        "`rl.anchor_match=similar`, `rl.similarity`",
        _translate_similarity,
    ),
    Counterpart(
        ("algorithm.use_kl_in_reward",),
        "`rl.kl_in=reward`",
        lambda values: {"rl.kl_in": "reward"} if any(map(_is_on, values.values())) else {},
    ),
    _note("env.env_name", "the config, or `env.name`; Sokoban with `env.options.observation`"),
    _row("env.max_steps env.history_length", "env.max_steps", "env.history"),
    _row("env.rollout.n", "train.group_size"),
    _row("env.seed", "seed", more="; panels and the worlds of tasks do not depend on it"),
    _row("data.train_batch_size", "train.groups"),
    _row("data.val_batch_size", "eval.tasks", more=", of the panel `eval.panel`"),
    _row(
        "data.max_prompt_length data.max_response_length",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
    ),
    _row("actor_rollout_ref.model.path", "model.path"),
    _row(f"{_ACTOR}optim.lr", "optim.lr"),
    _row(f"{_ACTOR}ppo_mini_batch_size", "train.minibatch", more=", in steps as there"),
    _note(
        f"{_ACTOR}ppo_micro_batch_size_per_gpu",
        "`batch.rows` and `batch.row_length`: [rows](glossary.md) hold packed steps",
    ),
    _switched(f"{_ACTOR}use_kl_loss", f"{_ACTOR}kl_loss_coef", "rl.kl_coef"),
    _row(f"{_ACTOR}entropy_coeff", "rl.entropy_coef"),
    _row(
        f"{_ACTOR}clip_ratio_low {_ACTOR}clip_ratio_high {_ACTOR}clip_ratio_c",
        "rl.clip_low",
        "rl.clip_high",
        "rl.dual_clip",
    ),
    _note(f"{_ACTOR}loss_agg_mode", "`rl.loss_mean` ([names](loss.md#means))"),
    _switched(
        f"{_ACTOR}use_invalid_action_penalty",
        f"{_ACTOR}invalid_action_penalty_coef",
        "env.invalid_penalty",
    ),
    _note(
        f"{_ROLLOUT}name",
        "`engine.name=vllm` ([servers](scaling.md#vllm-servers)), or leave it out",
    ),
    _row(
        f"{_ROLLOUT}tensor_model_parallel_size",
        "engine.tensor",
        more=", for the engine in the process",
    ),
    _note(f"{_ROLLOUT}gpu_memory_utilization", "`engine.vllm.args=--gpu-memory-utilization=0.5`"),
    _row(
        f"{_ROLLOUT}temperature {_ROLLOUT}val_kwargs.temperature",
        "sampling.temperature",
        "eval.temperature",
    ),
    _row("trainer.total_epochs", "train.iterations", more="; an epoch there has one batch"),
    _row("trainer.test_freq trainer.save_freq", "eval.every", "checkpoint.every"),
    Counterpart(
        ("trainer.n_gpus_per_node", "trainer.nnodes"),
        "`mesh.fsdp`: all GPUs; on several nodes also `distributed=True`",
        _devices,
    ),
    Counterpart(("trainer.logger",), "`log.to`", _loggers),
)


def format_counterparts() -> str:
    """The table of the page."""
    lines = ["| verl-agent | here |", "|---|---|"]
    for row in ROWS:
        # The same section stands once.
        section = row.theirs[0].rpartition(".")[0] + "."
        theirs = [row.theirs[0], *(key.removeprefix(section) for key in row.theirs[1:])]
        lines.append(f"| {', '.join(f'`{key}`' for key in theirs)} | {row.ours} |")
    return "\n".join(lines) + "\n"


def translate(words: Sequence[str]) -> str:
    """Overrides of verl-agent as a command of ours, and what has no counterpart.

    Args:
      words: A script of verl-agent, or overrides KEY=VALUE.

    Raises:
      InputError: A word is neither a file nor an override, or there are none.
    """
    overrides: dict[str, str] = {}
    for word in words:
        if Path(word).is_file():
            try:
                overrides |= _read_script(Path(word).read_text(encoding="utf-8"))
            except (OSError, ValueError) as err:
                reason = f"not a shell script ({err})"
                raise InputError(reason, key="--from verl-agent", value=word) from err
        elif "=" in word:
            overrides |= dict(_read_override(word))
        else:
            fix = "give a script, or overrides such as algorithm.gamma=0.95"
            raise InputError("no such file", key="--from verl-agent", value=word, fix=fix)
    if not overrides:
        raise InputError("no overrides KEY=VALUE in it", key="--from verl-agent", value=words)
    known = {key for row in ROWS for key in row.theirs}
    flags: dict[str, str] = {}
    notes: list[str] = []
    for row in ROWS:
        given = {key: overrides[key] for key in row.theirs if key in overrides}
        unset = {key: value for key, value in given.items() if "$" in value}
        notes += [f"{key}={value}: a variable without a value" for key, value in unset.items()]
        given = {key: value for key, value in given.items() if key not in unset}
        if row.translate is not None:
            # None of them may be left: a switch that is off needs no flag.
            flags |= row.translate(given) if given else {}
        elif row.theirs != ("env.env_name",):
            text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", row.ours.replace("`", ""))
            notes += [f"{key}={value}: see {text}" for key, value in given.items()]
    notes += [
        f"{key}={value}: no counterpart" for key, value in overrides.items() if key not in known
    ]
    notes += list(_invalid(flags))
    lines = [f"gigpo train --config={_config_name(overrides)}"]
    lines += [shlex.quote(f"--config.{key}={value}") for key, value in flags.items()]
    text = " \\\n    ".join(lines)
    if notes:
        text += "\n\nnot translated:\n" + "\n".join(f"  {note}" for note in notes)
    return text


def _read_script(text: str) -> dict[str, str]:
    """The overrides in a shell script, with its variables."""
    variables: dict[str, str] = {}
    for name, value in re.findall(
        r"^\s*(?:export\s+)?(\w+)=(\S*)[ \t]*(?:#.*)?$", text, re.MULTILINE
    ):
        default = re.fullmatch(r"\$\{\w+:-(.*)\}", value)  # an argument of the script
        variables[name] = shlex.quote(default.group(1) if default else value)
    text = re.sub(
        r"\$\{?(\w+)\}?", lambda match: variables.get(match.group(1), match.group(0)), text
    )
    overrides: dict[str, str] = {}
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        overrides |= dict(_read_override(word))
    return overrides


def _read_override(word: str) -> Iterator[tuple[str, str]]:
    """The key and the value of an override of hydra; nothing for another word."""
    match = re.fullmatch(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", word, re.DOTALL)
    if match:
        yield match.group(1), match.group(2)


def _config_name(overrides: Mapping[str, str]) -> str:
    """The packaged config of an environment and a size of model."""
    environment = overrides.get("env.env_name", "alfworld").lower()
    config = next((config for name, config in _CONFIGS.items() if name in environment), "FILE")
    path = overrides.get("actor_rollout_ref.model.path", "").lower()
    variant = next((size for size in _VARIANTS.get(config, ()) if f"-{size}" in path), "")
    return f"{config}:{variant}" if variant else config


def _invalid(flags: Flags) -> Iterator[str]:
    """What the keys do not take, for people."""
    for name, value in flags.items():
        key = KEYS[name]
        try:
            complaint = key.complaint(parse_value(name, value, type(key.default)))
        except InputError as error:
            complaint = error.reason
        if complaint:
            yield f"config.{name}={value}: {complaint}"
