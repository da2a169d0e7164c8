"""Saved episodes as plain text, for a terminal."""

from pathlib import Path

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import SUFFIX, SavedEpisode
from gigpo_jax.tools.inspect.data import list_rollouts


def format_episodes(run: Path, count: int) -> str:
    """Formats the first episodes of a run's newest saved rollouts, or of one file.

    Args:
      run: Workdir, or a file of saved rollouts such as gigpo eval writes.
      count: Largest number of episodes.

    Raises:
      InputError: There are no saved rollouts, or the file is damaged.
    """
    path = run if run.is_file() else _find_newest(run)
    rollouts = read_rollouts(path)
    episodes = [episode for episode in rollouts.episodes if not episode.replaced]
    texts = [_format_episode(episode) for episode in episodes[:count]]
    heading = f"{path}: {min(count, len(episodes))} of {len(episodes)} episodes"
    return "\n\n".join([heading, *texts])


def _find_newest(run: Path) -> Path:
    paths = list_rollouts(run) or sorted(run.glob(f"eval_*{SUFFIX}"))
    if not paths:
        raise InputError(
            "there are no saved rollouts", key="RUN", value=run, fix="give the workdir of a run"
        )
    return paths[0]


def _format_episode(episode: SavedEpisode) -> str:
    outcome = "won" if episode.won else "lost"
    if episode.aborted:
        outcome = "aborted"
    task = escape_controls(episode.task)
    lines = [f"== {task}: {outcome} after {episode.length} steps =="]
    for number, step in enumerate(episode.steps):
        # The first prompt has the instructions; later ones repeat them.
        lines += _indent("sees", step.observation if number else step.prompt)
        lines += _indent("writes" if step.valid else "writes (invalid)", step.response)
        credit = "" if step.advantage is None else f", advantage {step.advantage:+.2f}"
        lines.append(f"    reward {step.reward - step.penalty:+.2f}{credit}")
    return "\n".join(lines)


def _indent(title: str, text: str) -> list[str]:
    return [f"  {title}:", *(f"    {escape_controls(line)}" for line in text.splitlines())]
