"""What a person sees of a run: lines on the console, a sample of the rollouts, and throughput."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.config.command_line import joined
from gigpo_jax.errors import printable
from gigpo_jax.trajectory import Trajectory

# Dense bfloat16 peak of one device in FLOP/s, by the beginning of its kind (vendors' data sheets).
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
    """Prints lines of the first host, above any progress bar; environments and servers may have a part in them."""
    if jax.process_index() == 0:
        tqdm.write(printable(text))


def start(config: ConfigDict, workdir: Path, tasks: int) -> None:
    """What is about to run."""
    train = config.train
    device = jax.devices()[0].device_kind
    say(
        f"{config.rl.algorithm} on {config.env.name}: {train.iterations} iterations of {train.groups} tasks x "
        f"{train.group_size} episodes, from {tasks} tasks, on {jax.device_count()} x {device}"
    )
    say(f"logs, checkpoints and rollouts: {workdir}")
    if not config.eval.panel:
        say("config.eval.panel is empty: nothing but the training episodes is measured")


def iteration(done: int, of: int, metrics: Mapping[str, float]) -> None:
    """One line for an iteration."""
    parts = [f"iteration {done}/{of}"]
    columns = (
        ("success", "episode/success_rate", "{:.0%}"),
        ("length", "episode/length", "{:.1f}"),
        ("valid", "action/valid_rate", "{:.0%}"),
        ("entropy", "policy/entropy", "{:.3f}"),
        ("kl", "policy/kl", "{:.4f}"),
        ("grad", "policy/grad_norm", "{:.2f}"),
        ("rollout", "time/rollout", "{:.1f} s"),
        ("update", "time/update", "{:.1f} s"),
    )
    parts += [f"{label} {form.format(metrics[name])}" for label, name, form in columns if name in metrics]
    if metrics.get("episode/aborted"):
        dependent = metrics.get("episode/aborted_policy_dependent", 0)
        parts.append(f"aborted {metrics['episode/aborted']:.0f} ({dependent:.0f} policy-dependent)")
    panels = {name: value for name, value in metrics.items() if name.endswith("/success_rate") and name[:4] == "val/"}
    parts += [f"panel ({name.split('/')[1]}) {value:.1%}" for name, value in panels.items()]
    say("  ".join(parts))


def finish(workdir: Path) -> None:
    """Where everything is, and what to type next: the same command line in another mode."""
    flags = [flag for flag in joined(sys.argv[1:]) if not flag.startswith(("--mode", "--out", "--workdir"))]
    again = shlex.join([_program("python"), "-m", "gigpo_jax.main", f"--workdir={workdir}", *flags])
    say(
        "\n".join(
            [
                "done.",
                f"  metrics      {workdir}/metrics.jsonl",
                f"  TensorBoard  {workdir}/tensorboard/",
                f"  rollouts     {workdir}/rollouts/ (docs/rollouts.md: prompts, responses, anchors, advantages)",
                f"  checkpoints  {workdir}/checkpoints/",
                "next:",
                f"  {shlex.join([_program('tensorboard'), '--logdir', f'{workdir}/tensorboard'])}",
                f"  {again} --mode=eval      (success by task type, with intervals)",
                f"  {again} --mode=export    (a Hugging Face folder)",
            ]
        )
    )


def _program(name: str) -> str:
    """What to type for a program of the environment that runs now: its name if the shell finds that very one."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found) == ours:
        return name
    return os.path.relpath(ours) if ours.is_relative_to(Path.cwd()) else str(ours)


def sample(trajectories: Sequence[Trajectory]) -> str:
    """One episode as text: the first that was won, else the first."""
    done = [trajectory for trajectory in trajectories if not trajectory.aborted]
    if not done:
        return "no episode was finished"
    shown = next((trajectory for trajectory in done if trajectory.won), done[0])
    lines = [f"task {shown.task.id}, {'won' if shown.won else 'lost'}"]
    for turn in shown.turns:
        lines += ["", turn.prompt, "> " + turn.response]
    return "\n".join(lines)


def throughput(metrics: Mapping[str, float], flops: int) -> dict[str, float]:
    """Rates of an iteration from its counts and times.

    Args:
      metrics: with `rollout/*`, `batch/tokens`, `time/rollout`, `time/update`.
      flops: of training on one token, 6 for each parameter, 4 where it is frozen (Kaplan et al. 2020).

    Returns:
      `throughput/*`; the MFU where the device's peak is known.
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
            rates["throughput/mfu"] = flops * trained / (peak * jax.device_count())
    return rates
