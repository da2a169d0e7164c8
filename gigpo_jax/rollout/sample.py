"""One episode of saved rollouts as Markdown."""

from gigpo_jax.rollout.record import Rollouts, SavedStep
from gigpo_jax.run.loggers import verbatim


def sample(rollouts: Rollouts) -> str:
    """The first episode that was won, else the first: each step with its response, reward and credit."""
    done = [episode for episode in rollouts.episodes if not (episode.aborted or episode.replaced)]
    if not done:
        return "no episode was finished"
    shown = next((episode for episode in done if episode.won), done[0])
    parts = [f"**{'won' if shown.won else 'lost'}**, score {shown.score:g}, {len(shown.steps)} steps", ""]
    parts += [verbatim(f"task {shown.task}\n{shown.words}")]
    for number, step in enumerate(shown.steps):
        parts += ["", f"### Step {number + 1}: {_credit(step)}", ""]
        parts += ["Observation" if number else "Prompt", "", verbatim(step.observation if number else step.prompt), ""]
        parts += ["Response" if step.valid else "Response (invalid)", "", verbatim(step.response)]
    return "\n".join(parts)


def _credit(step: SavedStep) -> str:
    penalty = f" - penalty {step.penalty:g}" if step.penalty else ""
    return (
        f"reward {step.reward:g}{penalty}, advantage {step.advantage:+.3f} "
        f"(episode {step.episode_advantage:+.3f}, step {step.step_advantage:+.3f}; anchor group of "
        f"{step.anchor_group_size})"
    )
