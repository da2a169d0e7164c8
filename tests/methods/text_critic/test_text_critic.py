"""The critic on the host that reads text: what it learns, and that a restored one is the same."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.methods.text_critic import critic as text_critic
from gigpo_jax.methods.text_critic.critic import (
    TextCritic,
    features,
    fit,
    remaining_returns,
    state_words,
)
from gigpo_jax.modes import train
from gigpo_jax.run.newest import newest_record
from gigpo_jax.trajectory import Turn
from tests.turns import make_step

EMPTY = np.zeros(0)
OBJECTS = ("mug", "plate", "book", "fork")


def scored(steps):
    return ScoredSteps(steps, (None, None), None)


def _judged(critic, steps):
    """As in training: the values of an iteration's steps, before they are learnt from."""
    values = critic.values(steps)
    critic.learn_steps(scored(steps))
    return values


def _step(trajectory, step, anchor, reward=0.0, task="put mug in shelf", penalty=0.0):
    turn = Turn(
        EMPTY,
        EMPTY,
        EMPTY,
        "",
        "",
        "",
        True,
        None,
        "",
        anchor,
        reward,
        penalty,
        "stop",
        0,
        task=task,
    )
    return make_step(trajectory, step, turn, task=Task("task", "put", "train"))


def _episodes(rng, number, objects, first=0):
    """Two steps an episode; it wins with probability 0.9 if it sees its task's object, else 0.1."""
    steps = []
    chances = []
    for trajectory in range(first, first + number):
        target = rng.choice(objects)
        visible = rng.choice(objects)
        chance = 0.9 if target == visible else 0.1
        won = 10.0 * (rng.random() < chance)
        task = f"put {target} in shelf"
        steps += [
            _step(trajectory, 0, f"you see a {visible} 1", task=task),
            _step(trajectory, 1, "done", won, task),
        ]
        chances += [chance, None]
    return steps, chances


def test_values_of_a_world_where_they_are_known_also_for_objects_never_seen(monkeypatch):
    monkeypatch.setattr(text_critic, "PENALTY", 1.0)
    rng = np.random.default_rng(0)
    critic = TextCritic(max_steps=2)
    for _ in range(4):
        _judged(critic, _episodes(rng, 400, OBJECTS)[0])
    steps, chances = _episodes(rng, 100, ("lamp", "vase"))
    values = _judged(critic, steps)
    wrong = [abs(v - 10 * c) for v, c in zip(values, chances) if c is not None]
    assert max(wrong) < 1.5


def test_an_iteration_is_judged_before_it_is_learnt_from_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(text_critic, "ITERATIONS", 2)
    critic = TextCritic(max_steps=1)
    lost = [_step(0, 0, "a"), _step(1, 0, "a")]
    won = [_step(0, 0, "a", 10.0), _step(1, 0, "a", 10.0)]
    mixed = [lost[0], won[1]]
    assert _judged(critic, mixed).tolist() == [5.0, 5.0]  # the mean return, as nothing is known
    assert _judged(critic, won) == pytest.approx(5.0, abs=0.01)
    assert _judged(critic, lost) == pytest.approx(7.5, abs=0.3)
    assert _judged(critic, lost) == pytest.approx(
        5.0, abs=0.01
    )  # won and lost; the mixed ones are forgotten
    _judged(critic, lost)
    assert _judged(critic, won).tolist() == [0.0, 0.0]


def test_a_restored_critic_gives_the_same_values():
    rng = np.random.default_rng(1)
    critic = TextCritic(max_steps=2)
    for _ in range(2):
        _judged(critic, _episodes(rng, 50, OBJECTS)[0])
    restored = TextCritic(max_steps=2, memory=json.loads(json.dumps(critic.record())))
    for _ in range(2):
        steps = _episodes(rng, 50, OBJECTS)[0]
        np.testing.assert_array_equal(_judged(critic, steps), _judged(restored, steps))


def test_hosts_learn_from_the_steps_of_all():
    rng = np.random.default_rng(2)
    first, second, third = (_episodes(rng, 50, OBJECTS, place)[0] for place in (0, 50, 0))
    whole = TextCritic(max_steps=2)
    whole.learn_steps(scored(first + second))
    rows_of_second = iter((state_words(second, 2), remaining_returns(second)))
    host = TextCritic(max_steps=2, join=lambda rows: np.concatenate([rows, next(rows_of_second)]))
    host.learn_steps(scored(first))
    np.testing.assert_array_equal(host.values(third), whole.values(third))


def test_a_word_that_the_task_names_is_its_place_in_the_task():
    def words(task, anchor, step=0):
        return state_words([_step(0, step, anchor, task=task)], max_steps=9)[0].tolist()

    assert words("put mug in shelf", "On the shelf 1: mug 2") == words(
        "put book in desk", "on the desk 3: book 1"
    )
    assert words("put mug in shelf", "a mug") != words("put mug in shelf", "a shelf")
    assert words("put mug in shelf", "a mug") != words("put mug in shelf", "a mug", step=5)
    assert 0 in words("put mug in shelf", "x " * 900)
    assert 0 not in words(
        "t", " ".join(f"{chr(97 + i)}{chr(97 + j)}" for i in range(9) for j in range(9))
    )


def test_features_are_words_and_pairs_and_rows_have_length_1():
    rows = np.zeros((2, text_critic.WORDS), np.uint32)
    rows[0, :3], rows[1, :3] = (11, 22, 33), (33, 22, 44)
    first, second = features(rows).toarray()
    assert np.count_nonzero(first) == 6  # 3 words, 3 pairs
    assert np.count_nonzero(first * second) == 3  # 22, 33 and their pair, whatever their order
    assert first @ first == pytest.approx(1.0)


def test_the_fit_is_the_minimum_of_the_penalised_cross_entropy(monkeypatch):
    monkeypatch.setattr(text_critic, "UPDATES", 200)
    rng = np.random.default_rng(3)
    steps = _episodes(rng, 60, OBJECTS)[0]
    words = state_words(steps, 2)
    target = remaining_returns(steps) / 10
    weights = fit(words, target)
    x = features(words)
    error = 1 / (1 + np.exp(-(x @ weights[:-1] + weights[-1]))) - target
    np.testing.assert_allclose(x.T @ error + text_critic.PENALTY * weights[:-1], 0, atol=2e-3)
    assert abs(error.sum()) < 2e-2


def test_returns_are_of_the_remaining_steps_penalties_taken_off():
    steps = [
        _step(0, 0, "a", 1.0),
        _step(0, 1, "a", penalty=0.1),
        _step(1, 0, "a"),
        _step(0, 2, "a", 10.0),
    ]
    assert remaining_returns(steps) == pytest.approx([10.9, 9.9, 0.0, 10.0])


@pytest.mark.slow
def test_a_stopped_run_continues_with_the_critic_that_it_had(tmp_path, monkeypatch):
    def metrics(folder):
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [
            {k: v for k, v in line.items() if not k.startswith(("time", "throughput", "compile"))}
            for line in lines
        ]

    config = runpy.run_path(str(Path(__file__).parents[2] / "configs" / "example.py"))[
        "get_config"
    ]().unlock()
    config.model.path = str(Path(__file__).parents[3] / "models" / "alfworld_tiny")
    config.batch.row_length, config.train.save_rollouts = 80, 0
    config.train.iterations, config.train.groups, config.checkpoint.every, config.eval.every = (
        3,
        2,
        1,
        0,
    )
    config.rl.algorithm = "text_critic"
    config = resolve(config)
    assert train.run(config, tmp_path / "whole", "") == 0
    play = train.Trainer.roll_out

    async def broken(self, iteration, worker):
        assert iteration < 2
        return await play(self, iteration, worker)

    monkeypatch.setattr(train.Trainer, "roll_out", broken)
    with pytest.raises(AssertionError):
        train.run(config, tmp_path / "stopped", "")
    monkeypatch.undo()
    assert train.run(config, tmp_path / "stopped", "") == 0
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    record = newest_record(tmp_path / "stopped" / "checkpoints")
    assert len(record["text_critic"]) == 3
