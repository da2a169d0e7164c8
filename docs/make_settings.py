"""Writes docs/settings.md: the configs of published experiments beside the published settings."""

import runpy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigpo_jax.config import resolve

ROOT = Path(__file__).parents[1]
HEAD = """# Published settings, key by key

The configs of this project as they are resolved, compared with the authors' run scripts: verl-agent's
`examples/gigpo_trainer/`, and the defaults of its `ppo_trainer.yaml`. The scripts' settings are written
down in our keys in `docs/make_settings.py`, which writes this page. A cell shows the config's value,
and the script's or the paper's (arXiv 2505.10978) beside it if that is another one.
"""
ALIKE = """
## The same in all scripts

| key | value |
|---|---|
"""
DIFFERENT = """
## Of each experiment

"""

# Values of ppo_trainer.yaml and of every script, in the keys of our configs.
COMMON: Mapping[str, Any] = {
    "rl.algorithm": "gigpo",
    "rl.preset": "verl_agent",
    "rl.gamma": 0.95,
    "rl.step_weight": 1.0,
    "rl.anchor_match": "exact",
    "rl.clip_low": 0.2,
    "rl.clip_high": 0.2,
    "rl.dual_clip": 3.0,
    "rl.ratio": "token",
    "rl.loss_mean": "tokens",
    "rl.kl_coef": 0.01,
    "rl.kl_in": "loss",
    "rl.entropy_coef": 0.001,
    "rl.old_logprobs": "recompute",
    "rl.importance_correction": "none",
    "optim.lr": 1e-6,
    "optim.schedule": "constant",
    "optim.warmup_fraction": 0.0,
    "optim.b2": 0.999,
    "optim.weight_decay": 0.01,
    "optim.grad_clip": 1.0,
    "train.group_size": 8,
    "train.epochs": 1,
    "sampling.max_response_tokens": 512,
    "sampling.temperature": 1.0,
    "sampling.top_p": 1.0,
    "sampling.top_k": -1,
    "sampling.stop": (),
    "env.invalid_penalty": 0.1,
    "eval.every": 5,
    "eval.temperature": 0.4,
}
PICTURES: Mapping[str, Any] = {**COMMON, "rl.normalize": "mean", "sampling.max_prompt_tokens": 1024}


@dataclass(frozen=True)
class Experiment:
    """A published experiment.

    Attributes:
      config: Name of the file in configs/.
      variant: Variant of the config.
      script: Settings of the authors' script.
      paper: Settings that the paper names otherwise.
    """

    config: str
    variant: str
    script: Mapping[str, Any]
    paper: Mapping[str, Any] = field(default_factory=dict)


EXPERIMENTS = (
    Experiment(
        "alfworld",
        "1.5b",
        {
            **COMMON,
            "rl.normalize": "mean_std",
            "env.max_steps": 50,
            "env.history": 2,
            "sampling.max_prompt_tokens": 2048,
            "train.iterations": 150,
            "train.groups": 16,
            "train.minibatch": 256,
        },
    ),
    Experiment(
        "webshop",
        "1.5b",
        {
            **COMMON,
            "rl.normalize": "mean",
            "env.max_steps": 15,
            "env.history": 2,
            "sampling.max_prompt_tokens": 4096,
            "train.iterations": 150,
            "train.groups": 16,
            "train.minibatch": 64,
        },
        {"rl.normalize": "both"},
    ),
    Experiment(
        "search",
        "7b",
        {
            **COMMON,
            "rl.normalize": "mean_std",
            "rl.anchor_match": "similar",
            "rl.similarity": 0.9,
            "rl.kl_coef": 0.001,
            "rl.entropy_coef": 0.0,
            "optim.warmup_fraction": 0.1,
            "env.max_steps": 4,
            "env.history": 4,
            "env.invalid_penalty": 0.01,
            "sampling.max_prompt_tokens": 4096,
            "train.iterations": 662,  # total_epochs=1: 169,615 questions, 256 an iteration
            "train.groups": 256,
            "train.group_size": 5,
            "train.minibatch": 512,
            "eval.every": 50,
            "eval.temperature": 0.0,
        },
        {"train.iterations": 200},
    ),
    Experiment(
        "sokoban",
        "3b",
        {
            **PICTURES,
            "env.max_steps": 15,
            "train.iterations": 150,
            "train.groups": 32,
            "train.minibatch": 64,
        },
    ),
    Experiment(
        "ezpoints",
        "3b",
        {
            **PICTURES,
            "env.max_steps": 8,
            "train.iterations": 100,
            "train.groups": 16,
            "train.minibatch": 128,
        },
    ),
    Experiment(
        "numberline",
        "3b",
        {
            **PICTURES,
            "env.max_steps": 10,
            "train.iterations": 20,
            "train.groups": 16,
            "train.minibatch": 16,
        },
    ),
    Experiment(
        "blackjack",
        "3b",
        {
            **PICTURES,
            "env.max_steps": 15,
            "train.iterations": 200,
            "train.groups": 32,
            "train.minibatch": 32,
            "eval.every": 10,
        },
    ),
)

NOTES = """
## Beyond the tables

- The scripts evaluate on 128 tasks (WebShop 256, search all test questions); here `eval.panel` names them.
- `configs/webshop.py:1.5b_std` has the paper's other results, with `rl.normalize=mean_std`.
- NumberLine's script trains Qwen2-VL-2B-Instruct; this project has Qwen2.5-VL.
- Prompts with a picture show no past steps, so `env.history` does not matter there.
- With vLLM servers `rl.importance_correction` is a truncated correction by default; the scripts have none.
- Lengths and batches that only decide speed or memory (`batch.*`, `engine.*`, `mesh.*`) are not compared.
"""


def resolve_experiment(experiment: Experiment) -> Any:
    """The config of an experiment, with all defaults resolved."""
    path = ROOT / "configs" / f"{experiment.config}.py"
    return resolve(runpy.run_path(str(path))["get_config"](experiment.variant))


def get_value(config: Any, key: str) -> Any:
    """The value of a dotted key."""
    section, name = key.split(".")
    return config[section][name]


def list_differences() -> list[str]:
    """The settings in which a config is not its script's."""
    differences = []
    for experiment in EXPERIMENTS:
        config = resolve_experiment(experiment)
        for key, published in experiment.script.items():
            value = get_value(config, key)
            if value != published:
                differences.append(f"{experiment.config}: {key} is {value!r}, not {published!r}")
    return differences


def write_page() -> str:
    """The whole page."""
    configs = [resolve_experiment(experiment) for experiment in EXPERIMENTS]
    keys = sorted({key for experiment in EXPERIMENTS for key in experiment.script})
    common_rows = []
    rows = []
    for key in keys:
        cells = [
            format_cell(experiment, config, key)
            for experiment, config in zip(EXPERIMENTS, configs, strict=True)
        ]
        if len(set(cells)) == 1:
            common_rows.append(f"| `{key}` | {cells[0]} |")
        else:
            rows.append(f"| `{key}` | {' | '.join(cells)} |")
    names = [f"{experiment.config}:{experiment.variant}" for experiment in EXPERIMENTS]
    heading = f"| key | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}\n"
    return (
        HEAD + ALIKE + "\n".join(common_rows) + "\n" + DIFFERENT + heading + "\n".join(rows)
    ) + f"\n{NOTES}"


def format_cell(experiment: Experiment, config: Any, key: str) -> str:
    """A config's value of a key, and the published ones if they are others."""
    if key not in experiment.script:
        return ""
    value = get_value(config, key)
    cell = format_value(value)
    if value != experiment.script[key]:
        cell += f" (script: {format_value(experiment.script[key])})"
    if key in experiment.paper:
        cell += f" (paper: {format_value(experiment.paper[key])})"
    return cell


def format_value(value: Any) -> str:
    """A value as a user writes it."""
    if isinstance(value, str):
        return value
    return f"`{value!r}`".replace("1e-06", "1e-6")


if __name__ == "__main__":
    (ROOT / "docs" / "settings.md").write_text(write_page(), encoding="utf-8")
