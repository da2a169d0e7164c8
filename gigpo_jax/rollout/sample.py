"""One episode of saved rollouts as Markdown, and its pictures."""

from collections.abc import Iterator
from itertools import count

from gigpo_jax.env_bridge.png import png_size
from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep
from gigpo_jax.run.loggers import verbatim

PICTURES = "rollout/pictures"  # what loggers call the pictures of a sample


def sample(rollouts: Rollouts) -> str:
    """An episode: each step with its response, reward and credit. A picture is its number, its size and its state."""
    shown, numbers = _shown(rollouts), count(1)
    if shown is None:
        return "no episode was finished"
    parts = [f"**{'won' if shown.won else 'lost'}**, score {shown.score:g}, {len(shown.steps)} steps", ""]
    parts += [verbatim(f"task {shown.task}\n{shown.words}")]
    for number, step in enumerate(shown.steps):
        parts += ["", f"### Step {number + 1}: {_credit(step)}", ""]
        parts += ["Observation" if number else "Prompt", "", verbatim(step.observation if number else step.prompt), ""]
        parts += list(_pictures(step, numbers))
        parts += ["Response" if step.valid else "Response (invalid)", "", verbatim(step.response)]
    return "\n".join(parts)


def sample_pictures(rollouts: Rollouts) -> list[bytes]:
    """The pictures of the same episode, PNG files in the order of its steps."""
    shown = _shown(rollouts)
    return [] if shown is None else [picture for step in shown.steps for picture in step.pictures]


def _shown(rollouts: Rollouts) -> SavedEpisode | None:
    """The first finished episode that was won, else the first finished one."""
    done = [episode for episode in rollouts.episodes if not (episode.aborted or episode.replaced)]
    return next((episode for episode in done if episode.won), done[0] if done else None)


def _pictures(step: SavedStep, numbers: Iterator[int]) -> Iterator[str]:
    for picture, number in zip(step.pictures, numbers):
        height, width = png_size(picture)
        yield f"Picture {number} of `{PICTURES}`, {width} x {height} pixels"
        yield ""
    if step.pictures:
        yield from ("Anchor state", "", verbatim(step.anchor), "")


def _credit(step: SavedStep) -> str:
    penalty = f" - penalty {step.penalty:g}" if step.penalty else ""
    return (
        f"reward {step.reward:g}{penalty}, advantage {step.advantage:+.3f} "
        f"(episode {step.episode_advantage:+.3f}, step {step.step_advantage:+.3f}; anchor group of "
        f"{step.anchor_group_size})"
    )
