"""One episode of saved rollouts as Markdown, and its pictures."""

from itertools import count

from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep
from gigpo_jax.run.loggers.loggers import as_code_block

PICTURES = "rollout/pictures"  # name in loggers


def episode_markdown(rollouts: Rollouts) -> str:
    """Returns an episode as Markdown, with the response, reward and credit of each step.

    A picture appears as its number, its size and its state.
    """
    episode = _choose_episode(rollouts)
    if episode is None:
        return "no episode was finished"
    picture_numbers = count(1)
    outcome = "won" if episode.won else "lost"
    lines = [
        f"**{outcome}**, score {episode.score:g}, {episode.length} steps",
        "",
        as_code_block(f"task {episode.task}\n{episode.words}"),
    ]
    actions = 0
    for number, step in enumerate(episode.steps):
        actions += not step.is_summary
        heading = "Summary" if step.is_summary else f"Step {actions}"
        lines += ["", f"### {heading}: {_credit_text(step)}", ""]
        # The first prompt stands for the template of all; later steps show what is new.
        if number == 0 or step.is_summary:
            lines += ["Prompt", "", as_code_block(step.prompt), ""]
        else:
            lines += ["Observation", "", as_code_block(step.observation), ""]
        if step.pictures:
            from gigpo_jax.rollout.saved_pictures import picture_lines

            lines += picture_lines(step.pictures, step.anchor, picture_numbers, PICTURES)
        lines += [
            "Response" if step.valid else "Response (invalid)",
            "",
            as_code_block(step.response),
        ]
    return "\n".join(lines)


def episode_pictures(rollouts: Rollouts) -> list[bytes]:
    """Returns the pictures of the same episode as PNG files, in the order of its steps."""
    episode = _choose_episode(rollouts)
    if episode is None:
        return []
    return [picture for step in episode.steps for picture in step.pictures]


def _choose_episode(rollouts: Rollouts) -> SavedEpisode | None:
    """The first won finished episode, else the first finished one."""
    # Other episodes have no credit to show.
    finished = [
        episode for episode in rollouts.episodes if not (episode.aborted or episode.replaced)
    ]
    won = [episode for episode in finished if episode.won]
    return next(iter(won + finished), None)


def _credit_text(step: SavedStep) -> str:
    penalty = f" - penalty {step.penalty:g}" if step.penalty else ""
    return (
        f"reward {step.reward:g}{penalty}, advantage {step.advantage:+.3f} "
        f"(episode {step.episode_advantage:+.3f}, step {step.step_advantage:+.3f}; anchor group of "
        f"{step.anchor_group_size})"
    )
