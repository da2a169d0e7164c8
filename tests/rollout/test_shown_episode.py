"""An episode as Markdown."""

from dataclasses import replace

import numpy as np

from gigpo_jax.core.png import encode_png
from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep
from gigpo_jax.rollout.shown_episode import episode_markdown, episode_pictures

STEP = SavedStep(
    prompt="# Find the coin\nYou see a drawer.",
    response="<action>open</action>",
    action="open",
    valid=True,
    admissible=True,
    observation="You see a drawer.",
    anchor="a",
    reward=0.0,
    penalty=0.0,
    finish_reason="stop",
    version=0,
    prompt_length=3,
    tokens=(1,),
    logprobs=(0.0,),
    episode_advantage=0.5,
    step_advantage=-0.125,
    advantage=0.375,
    anchor_group_size=4,
)
LAST = replace(
    STEP, observation="<b>open</b> \x1b[31m", response="take", valid=False, reward=10.0, penalty=0.1
)
EPISODE = SavedEpisode(
    "id1", "find_coin", "train", "", 0, 0, True, 1.0, False, "", (STEP, LAST), words="find a coin"
)

MARKDOWN = """\
**won**, score 1, 2 steps

    task id1
    find a coin

### Step 1: reward 0, advantage +0.375 (episode +0.500, step -0.125; anchor group of 4)

Prompt

    # Find the coin
    You see a drawer.

Response

    <action>open</action>

### Step 2: reward 10 - penalty 0.1, advantage +0.375 (episode +0.500, step -0.125; anchor group of 4)

Observation

    <b>open</b> \\x1b[31m

Response (invalid)

    take"""


def test_the_sample_has_reward_and_credit_of_each_step_and_texts_as_they_are() -> None:
    lost = replace(EPISODE, won=False)
    aborted = replace(EPISODE, aborted=True)
    replaced = replace(EPISODE, replaced=True)
    assert episode_markdown(Rollouts(0, 1.0, (aborted, replaced, lost, EPISODE), {})) == MARKDOWN
    assert episode_markdown(Rollouts(0, 1.0, (aborted, lost), {})).startswith("**lost**")
    assert episode_markdown(Rollouts(0, 1.0, (aborted, replaced), {})) == "no episode was finished"


def test_a_summary_is_no_step_and_shows_its_prompt() -> None:
    summary = replace(STEP, prompt="Sum up.", observation="not shown", is_summary=True)
    episode = replace(EPISODE, steps=(STEP, summary, LAST))
    text = episode_markdown(Rollouts(0, 1.0, (episode,), {}))
    headings = [line.partition(":")[0] for line in text.splitlines() if line.startswith("###")]
    assert headings == ["### Step 1", "### Summary", "### Step 2"]
    assert "Prompt\n\n    Sum up.\n" in text
    assert "not shown" not in text
    assert text.startswith("**won**, score 1, 2 steps\n")


def test_pictures_of_the_sample_have_numbers_and_their_states_stand_in_the_text() -> None:
    first_picture, second_picture = (
        encode_png(np.full((28, 56, 3), value, np.uint8)) for value in (1, 2)
    )
    first = replace(STEP, observation="<image>", anchor="#P#\n#_#", pictures=(first_picture,))
    episode = replace(
        EPISODE, steps=(first, replace(first, pictures=(second_picture, first_picture)))
    )
    rollouts = Rollouts(0, 1.0, (replace(EPISODE, won=False), episode), {})
    assert episode_pictures(rollouts) == [first_picture, second_picture, first_picture]
    text = episode_markdown(rollouts)
    assert (
        "Picture 1 of `rollout/pictures`, 56 x 28 pixels\n\nAnchor state\n\n    #P#\n    #_#\n"
        in text
    )
    assert text.index("### Step 2") < text.index("Picture 2 of") < text.index("Picture 3 of")
    assert episode_pictures(Rollouts(0, 1.0, (), {})) == []
