"""Optional columns: tags and their rewards, log-probabilities of known answers."""

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.token_logprobs import TokenLogprobs
from gigpo_jax.methods.igpo.known_answers import KnownAnswers
from gigpo_jax.methods.rlvmr.tags import tag_columns
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.trajectory import Trajectory, Turn, finished_steps

PROMPT = np.arange(40, dtype=np.int32)


def turn(response: str, action: str, *, valid: bool = True, admissible: bool | None = True) -> Turn:
    none = np.zeros(0, np.int32)
    return Turn(
        PROMPT, none, none, "", response, action, valid, admissible, "", "", 0.0, 0.0, "stop", 0
    )


def thought(tag: str) -> str:
    return f"<think><{tag}>so</{tag}></think><action>go</action>"


def test_tags_and_rewards_by_hand() -> None:
    two_tags = "<think><reflection>a</reflection><explore>b</explore></think>"
    task = Task("t", "", "train")
    won = Trajectory(
        task,
        0,
        0,
        [
            turn(thought("planning"), "go north"),  # the episode is won
            turn(thought("explore"), "go north"),  # taken before
            turn(
                thought("explore"), "go south", valid=False
            ),  # invalid: no tag, and the action counts as not taken
            turn(two_tags, "go south"),  # explore comes first
            turn(thought("reflection"), "go east"),  # nothing failed
            turn(thought("explore"), "go west", admissible=False),
            turn(thought("reflection"), "go west"),  # the same action again
            turn(thought("monitor"), "go west"),
            turn(thought("explore"), "up", admissible=False),
            turn(thought("reflection"), "down"),
        ],
        won=True,
    )
    lost = Trajectory(
        task, 0, 1, [turn(thought("reflection"), "go"), turn(thought("planning"), "go")]
    )
    steps = finished_steps([won, lost])
    columns = tag_columns(steps)
    assert columns["tag"].tolist() == [1, 2, 0, 2, 3, 2, 3, 0, 2, 3, 3, 1]
    assert columns["step_reward"].tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0]
    order = np.random.default_rng(0).permutation(len(steps))
    again = tag_columns([steps[row] for row in order])
    for name in columns:
        np.testing.assert_array_equal(again[name], columns[name][order])


def test_answers_are_scored_behind_the_prompts_of_their_steps() -> None:
    config = default_config()
    config.env.name = "search"
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 40, 20
    tokenizer = word_tokenizer(["now there is enough information to answer the red house"])
    trajectories = [
        Trajectory(Task("t", "", "train", "0", answer), 0, member, [turn("", "")])
        for member, answer in enumerate(("red house", "red " * 50))
    ]
    scored_samples: list[Sample] = []

    def score(trained, frozen, samples) -> TokenLogprobs:
        del trained, frozen
        scored_samples.extend(samples)
        return TokenLogprobs([np.array([-1.0, -2.0])] * len(samples), [np.zeros(2)] * len(samples))

    scored = ScoredSteps(finished_steps(trajectories), (None, None), score)
    columns = KnownAnswers(config, tokenizer).compute_columns(scored)
    assert {name: column.tolist() for name, column in columns.items()} == {
        "answer_logprob": [-1.5, -1.5]
    }
    short, long = scored_samples
    prefix = tokenizer.encode(registry.spec("search").answer_prefix)
    assert short.prompt_tokens.tolist() == [*PROMPT.tolist(), *prefix][-58:]
    assert short.response_tokens.tolist() == tokenizer.encode("red house")
    assert len(long.prompt_tokens) == len(long.response_tokens) == 30


def test_tasks_of_search_know_their_answer_through_the_check_of_what_environments_return() -> None:
    from gigpo_jax.env_bridge.task_lists import validate_tasks

    tasks = validate_tasks(registry.make("search").tasks("train")[:20])
    assert all(task.answer for task in tasks)


@pytest.mark.parametrize(
    ("algorithm", "changed", "message"),
    [
        (
            "rlvmr",
            {},
            "config.env.prompt='full': rlvmr compares responses by their tags; use tagged",
        ),
        ("igpo", {}, "config.env.name='alfworld': igpo needs tasks with a known answer"),
        (
            "serl",
            {"name": "blackjack", "max_steps": 15},
            "config.env.name='blackjack': its responses have no tags",
        ),
        (
            "hgpo",
            {"history": 1},
            "config.rl.settings.history=2: more past steps than a prompt shows; at most env.his",
        ),
    ],
)
def test_what_an_algorithm_lacks_is_named_before_a_run(
    algorithm: str, changed: dict, message: str
) -> None:
    config = default_config()
    config.rl.algorithm = algorithm
    config.env.update(changed)
    with pytest.raises(InputError) as error:
        resolve(config)
    assert str(error.value).startswith(message)


def test_the_environments_have_what_the_algorithms_need() -> None:
    config = default_config()
    config.rl.algorithm, config.env.prompt = "rlvmr", "tagged"
    for name in ("alfworld", "webshop", "example"):
        config.env.name, config.env.max_steps = name, 12
        assert resolve(config).rl.algorithm == "rlvmr"
        assert "<planning>" in registry.find_style(name, "tagged").thought
    config.env.name, config.env.prompt, config.env.max_steps, config.rl.algorithm = (
        "search",
        "full",
        4,
        "igpo",
    )
    assert resolve(config).rl.gamma == 1.0
