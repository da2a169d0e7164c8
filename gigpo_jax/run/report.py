"""Console lines of a run, and its throughput."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_configs
from gigpo_jax.run.progress import format_duration, print_lines
from gigpo_jax.run.workdir_names import CHECKPOINTS, METRICS, ROLLOUTS


def say(text: str) -> None:
    """Prints lines on the first host above progress bars, with control characters escaped."""
    if jax.process_index() == 0:
        print_lines(text)


def print_start(config: ConfigDict, workdir: Path, tasks: int) -> None:
    """Prints algorithm, environment and size of a run."""
    train = config.train
    device = jax.devices()[0].device_kind
    say(
        f"{config.rl.algorithm} on {config.env.name}: {train.iterations} iterations of "
        f"{train.groups} tasks x {train.group_size} episodes, from {tasks} tasks, on "
        f"{jax.device_count()} x {device}"
    )
    say(f"logs, checkpoints and rollouts: {workdir}")
    if not has_panel(config):
        say("config.eval.panel is empty: nothing but the training episodes is measured")


class Remaining:
    """Estimate of the remaining time of a run, from this process's iterations without compilation.

    There is one after two iterations, because the first differs from the others.
    """

    def __init__(self) -> None:
        self._iterations = 0
        self._seconds = 0.0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Adds the seconds of an iteration and its evaluation; other metrics are skipped."""
        if "time/iteration" in metrics:
            self._iterations += 1
            seconds = (
                metrics["time/iteration"]
                + metrics.get("time/eval", 0)
                - metrics.get("time/compile", 0)
            )
            # Programs that compile at the same time take longer than the iteration.
            self._seconds += max(seconds, 0.0)

    def seconds(self, config: ConfigDict, done: int) -> float | None:
        """Returns the remaining seconds after `done` iterations; None at the end or if unknown."""
        remaining = config.train.iterations - done
        if self._iterations < 2 or not remaining:
            return None
        return remaining * self._seconds / self._iterations


def print_iteration(
    config: ConfigDict, done: int, metrics: Mapping[str, float], remaining: float | None
) -> None:
    """Prints one line for an iteration; `remaining` is the rest of the run, s."""
    words = [f"iteration {done}/{config.train.iterations}"]
    columns = (
        ("success", "episode/success_rate", "{:.0%}"),
        ("length", "episode/length", "{:.1f}"),
        ("valid", "action/valid_rate", "{:.0%}"),
        ("entropy", "policy/entropy", "{:.3f}"),
        ("kl", "policy/kl", "{:.4f}"),
        ("kl penalty", "credit/kl_penalty", "{:.4f}"),
        ("grad", "policy/grad_norm", "{:.2f}"),
        ("rollout", "time/rollout", "{:.1f} s"),
        ("update", "time/update", "{:.1f} s"),
        ("compilation", "time/compile", "{:.1f} s"),
    )
    # The metric is 0 without the KL term of the loss: the line would claim a measurement.
    absent = set() if config.rl.kl_coef and config.rl.kl_in == "loss" else {"policy/kl"}
    # It would be shown as 0.0 s.
    if metrics.get("time/compile", 0) < 0.05:
        absent.add("time/compile")
    present = metrics.keys() - absent
    for label, name, form in columns:
        if name in present:
            words.append(f"{label} {form.format(metrics[name])}")
    # The environments of a mix stand behind the success of all.
    words[2:2] = _environment_metrics(config, metrics, "episode/success_rate", "{:.0%}")
    if metrics.get("episode/aborted"):
        dependent = metrics.get("episode/aborted_policy_dependent", 0)
        words.append(f"aborted {metrics['episode/aborted']:.0f} ({dependent:.0f} policy-dependent)")
    if metrics.get("rollout/refilled_groups"):
        words.append(f"refilled {metrics['rollout/refilled_groups']:.0f} groups")
    panels = [
        name for name in metrics if name.startswith("val/") and name.endswith("/success_rate")
    ]
    for name in panels:
        words += [
            f"panel ({name.split('/')[1]}) {metrics[name]:.1%}",
            *_environment_metrics(config, metrics, name, "{:.1%}"),
        ]
    if remaining is not None:
        words.append(f"left {format_duration(remaining)}")
    say("  ".join(words))


def _environment_metrics(
    config: ConfigDict, metrics: Mapping[str, float], name: str, form: str
) -> list[str]:
    """A metric of each environment of `env.mix`."""
    values = {label: metrics.get(f"{name}/{label}") for label in config.env.mix}
    return [f"{label} {form.format(value)}" for label, value in values.items() if value is not None]


def has_panel(config: ConfigDict) -> bool:
    """Whether a run is evaluated."""
    return any(member.eval.panel for member in member_configs(config).values())


def print_end(config: ConfigDict, workdir: Path) -> None:
    """Prints where the results are, and the next commands."""
    gigpo = [_program("python"), "-m", "gigpo_jax"]
    if _environment_program("gigpo").exists():
        gigpo = [_program("gigpo")]
    evaluate, export = (
        shlex.join([*gigpo, mode, f"--workdir={workdir}"]) for mode in ("eval", "export")
    )
    inspect = shlex.join([*gigpo, "inspect", str(workdir)])
    board = shlex.join([_program("tensorboard"), "--logdir", f"{workdir}/tensorboard"])
    has_board = "tensorboard" in config.log.to
    lines = [
        "done.",
        f"  metrics      {workdir}/{METRICS}",
        *[f"  TensorBoard  {workdir}/tensorboard/"] * has_board,
        f"  rollouts     {workdir}/{ROLLOUTS}/ "
        "(docs/rollouts.md: prompts, responses, anchors, advantages)",
        f"  checkpoints  {workdir}/{CHECKPOINTS}/",
        "next:",
        f"  {inspect}    (the credit of every step, as one HTML page)",
        *[f"  {board}"] * has_board,
        f"  {export}    (a Hugging Face folder)",
        *[f"  {evaluate}    (success by task type, with intervals)"] * has_panel(config),
    ]
    say("\n".join(lines))


def _environment_program(name: str) -> Path:
    return Path(sys.executable).parent / name


def _program(name: str) -> str:
    """Returns the words to call a program of this Python environment: its name, or its path.

    The name is enough if the shell finds the program there.
    """
    path = _environment_program(name)
    shell_path = shutil.which(name)
    if shell_path and Path(shell_path) == path:
        return name
    if path.is_relative_to(Path.cwd()):
        return os.path.relpath(path)
    return str(path)


def throughput_metrics(metrics: Mapping[str, float], flops: int, devices: int) -> dict[str, float]:
    """Returns the metrics `throughput/*` of an iteration, with MFU if the device's peak is known.

    Args:
      metrics: Metrics of the iteration: `rollout/*`, `batch/tokens`, `time/rollout`, `time/update`.
      flops: FLOP to train on one token: 6 per parameter, 4 if it is frozen (Kaplan et al. 2020).
      devices: Number of devices that train.
    """
    rates: dict[str, float] = {}
    if metrics.get("time/rollout") and "rollout/steps" in metrics:
        rates["throughput/generated_tokens_per_s"] = (
            metrics["rollout/generated_tokens"] / metrics["time/rollout"]
        )
        rates["throughput/env_steps_per_s"] = metrics["rollout/steps"] / metrics["time/rollout"]
    if metrics.get("time/update") and "batch/tokens" in metrics:
        tokens_per_s = metrics["batch/tokens"] / metrics["time/update"]
        rates["throughput/trained_tokens_per_s"] = tokens_per_s
        if jax.default_backend() != "cpu":
            from gigpo_jax.run.peak_flops import measure_utilization

            rates |= measure_utilization(flops * tokens_per_s / devices)
    return rates
