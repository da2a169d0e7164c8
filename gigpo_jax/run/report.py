"""Console lines of a run, a sample of its rollouts, and its throughput."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.config.command_line import joined
from gigpo_jax.config.mix import members
from gigpo_jax.errors import printable

# Dense bfloat16 peak of one device, FLOP/s, by the start of its kind (vendors' data sheets).
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA A100": 312e12,
    "TPU v6": 918e12,
    "TPU v5p": 459e12,
    "TPU v5": 197e12,
    "TPU v4": 275e12,
}


def say(text: str) -> None:
    """Prints lines on the first host, above progress bars, with control characters escaped."""
    if jax.process_index() == 0:
        tqdm.write(printable(text))


def start(config: ConfigDict, workdir: Path, tasks: int) -> None:
    """Prints what is about to run."""
    train = config.train
    device = jax.devices()[0].device_kind
    say(
        f"{config.rl.algorithm} on {config.env.name}: {train.iterations} iterations of {train.groups} tasks x "
        f"{train.group_size} episodes, from {tasks} tasks, on {jax.device_count()} x {device}"
    )
    say(f"logs, checkpoints and rollouts: {workdir}")
    if not has_panel(config):
        say("config.eval.panel is empty: nothing but the training episodes is measured")


class Remaining:
    """How long a run will still take: the mean of the iterations of this process, without compilation."""

    def __init__(self) -> None:
        self._iterations, self._seconds = 0, 0.0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Counts an iteration with its evaluation, if the metrics are of one."""
        if "time/iteration" in metrics:
            self._iterations += 1
            self._seconds += metrics["time/iteration"] + metrics.get("time/eval", 0) - metrics.get("time/compile", 0)

    def seconds(self, config: ConfigDict, done: int) -> float | None:
        """The time after so many iterations; None before the first one, and when all are done."""
        left = config.train.iterations - done
        return left * self._seconds / self._iterations if self._iterations and left else None


def duration(seconds: float) -> str:
    """A time span for people: 45 s, 7 min, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def iteration(config: ConfigDict, done: int, metrics: Mapping[str, float], left: float | None) -> None:
    """Prints one line for an iteration; `left` is what the run will still take, s."""
    parts = [f"iteration {done}/{config.train.iterations}"]
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
    absent = set() if config.rl.kl_coef and config.rl.kl_in == "loss" else {"policy/kl"}
    if metrics.get("time/compile", 0) < 0.05:
        absent.add("time/compile")
    shown = [column for column in columns if column[1] in metrics.keys() - absent]
    parts += [f"{label} {form.format(metrics[name])}" for label, name, form in shown]
    parts[2:2] = _environments(config, metrics, "episode/success_rate", "{:.0%}")
    if metrics.get("episode/aborted"):
        dependent = metrics.get("episode/aborted_policy_dependent", 0)
        parts.append(f"aborted {metrics['episode/aborted']:.0f} ({dependent:.0f} policy-dependent)")
    if metrics.get("rollout/refilled_groups"):
        parts.append(f"refilled {metrics['rollout/refilled_groups']:.0f} groups")
    panels = [name for name in metrics if name.startswith("val/") and name.endswith("/success_rate")]
    for name in panels:
        parts += [f"panel ({name.split('/')[1]}) {metrics[name]:.1%}", *_environments(config, metrics, name, "{:.1%}")]
    if left is not None:
        parts.append(f"left {duration(left)}")
    say("  ".join(parts))


def _environments(config: ConfigDict, metrics: Mapping[str, float], name: str, form: str) -> list[str]:
    """A metric of each environment of `env.mix`."""
    own = [(label, metrics.get(f"{name}/{label}")) for label in config.env.mix]
    return [f"{label} {form.format(value)}" for label, value in own if value is not None]


def has_panel(config: ConfigDict) -> bool:
    """Whether a run is evaluated."""
    return any(member.eval.panel for member in members(config).values())


def finish(config: ConfigDict, workdir: Path) -> None:
    """Prints where everything is, and the commands to type next."""
    flags = [flag for flag in joined(sys.argv[1:]) if flag.startswith("--config")]
    gigpo = [_program("gigpo")] if _ours("gigpo").exists() else [_program("python"), "-m", "gigpo_jax"]
    evaluate, export = (shlex.join([*gigpo, mode, f"--workdir={workdir}", *flags]) for mode in ("eval", "export"))
    board = shlex.join([_program("tensorboard"), "--logdir", f"{workdir}/tensorboard"])
    has_board = "tensorboard" in config.log.to
    lines = [
        "done.",
        f"  metrics      {workdir}/metrics.jsonl",
        *[f"  TensorBoard  {workdir}/tensorboard/"] * has_board,
        f"  rollouts     {workdir}/rollouts/ (docs/rollouts.md: prompts, responses, anchors, advantages)",
        f"  checkpoints  {workdir}/checkpoints/",
        "next:",
        *[f"  {board}"] * has_board,
        f"  {export}    (a Hugging Face folder)",
        *[f"  {evaluate}    (success by task type, with intervals)"] * has_panel(config),
    ]
    say("\n".join(lines))


def _ours(name: str) -> Path:
    return Path(sys.executable).parent / name


def _program(name: str) -> str:
    """What to type for a program of this Python environment: its name if the shell finds it there, else its path."""
    ours = _ours(name)
    found = shutil.which(name)
    if found and Path(found) == ours:
        return name
    return os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours)


def throughput(metrics: Mapping[str, float], flops: int, devices: int) -> dict[str, float]:
    """`throughput/*` of an iteration; the MFU only where the device's peak is known.

    Args:
      metrics: with `rollout/*`, `batch/tokens`, `time/rollout`, `time/update`.
      flops: to train on one token: 6 per parameter, 4 if it is frozen (Kaplan et al. 2020).
      devices: that train.
    """
    rates: dict[str, float] = {}
    if metrics.get("time/rollout") and "rollout/steps" in metrics:
        rates["throughput/generated_tokens_per_s"] = metrics["rollout/generated_tokens"] / metrics["time/rollout"]
        rates["throughput/env_steps_per_s"] = metrics["rollout/steps"] / metrics["time/rollout"]
    if metrics.get("time/update") and "batch/tokens" in metrics:
        trained = metrics["batch/tokens"] / metrics["time/update"]
        rates["throughput/trained_tokens_per_s"] = trained
        kind = jax.devices()[0].device_kind
        peak = next((flops for name, flops in PEAK_FLOPS.items() if kind.startswith(name)), None)
        if peak is not None:
            rates["throughput/mfu"] = flops * trained / (peak * devices)
    return rates
