"""What an iteration of training and an epoch of imitation have still to do."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.env_bridge.panels import Panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.samples import Sample
from gigpo_jax.modes import imitation, train
from gigpo_jax.modes.panel_evaluation import PanelEvaluation
from gigpo_jax.rollout.evaluator import Evaluator
from gigpo_jax.run.hosts import Hosts
from gigpo_jax.run.loggers.metrics import Timers
from gigpo_jax.trajectory import Trajectory
from tests.turns import make_turn


def make_trainer(every: int, iterations: int = 100) -> Any:
    """What the end of an iteration needs; metrics and saves are listed."""
    trainer: Any = object.__new__(train.Trainer)
    trainer.config = default_config()
    trainer.config.checkpoint.every, trainer.config.train.iterations = every, iterations
    trainer.hosts = Hosts()
    trainer.evaluation = None
    trainer.sources = {}
    trainer.writer = SimpleNamespace(step=0)
    trainer.learner = SimpleNamespace(checkpoint_record=dict, checkpoint_parts=dict)
    trainer.saves, trainer.metrics = [], []
    trainer.checkpoints = SimpleNamespace(
        save_parts=lambda iteration, parts, record: trainer.saves.append(iteration)
    )
    trainer.write_metrics = trainer.metrics.append
    trainer._saved_s = time.monotonic()
    return trainer


def finish_iterations(trainer: Any, first: int, last: int) -> None:
    for done in range(first, last + 1):
        trainer.done, trainer.pending = done, {"loss": float(done)}
        asyncio.run(trainer.finish_iteration())
        # A second call, as after a resume, has nothing left to write.
        asyncio.run(trainer.finish_iteration())


def test_every_third_iteration_is_saved_and_metrics_are_written_once() -> None:
    trainer = make_trainer(every=3)
    finish_iterations(trainer, 1, 7)
    assert trainer.saves == [3, 6]
    assert trainer.saved == 6
    assert trainer.metrics == [{"loss": float(done)} for done in range(1, 8)]


def test_an_iteration_is_saved_when_the_last_save_is_long_ago_and_the_next_one_is_not() -> None:
    trainer = make_trainer(every=100)
    trainer._saved_s -= train.SAVE_S + 1
    finish_iterations(trainer, 1, 3)
    assert trainer.saves == [1]


@pytest.mark.parametrize(
    ("every", "sampled", "greedy"), [(0, [5], [5]), (2, [2, 4, 5], [5]), (5, [5], [5])]
)
def test_a_panel_is_played_when_due_and_greedily_at_the_end_alone(
    every: int,
    sampled: list[int],
    greedy: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    trainer = make_trainer(every=100, iterations=5)
    trainer.config.eval.every, trainer.config.eval.greedy = every, True
    trainer.timers = Timers()
    trainer._engine_lock = asyncio.Lock()
    trainer.worker = None
    panel: Any = object.__new__(PanelEvaluation)
    panel._config, panel._folder = trainer.config, tmp_path
    panel._panel, panel._tasks = Panel("none", "example", "test", ()), ()
    trainer.evaluation = panel
    played: dict[bool, list[int]] = {False: [], True: []}

    async def play(self: Any, *, greedy: bool) -> dict[str, Any]:
        for is_greedy in {False, greedy}:
            played[is_greedy].append(trainer.done)
        return {}

    monkeypatch.setattr(Evaluator, "play", play)
    finish_iterations(trainer, 1, 5)
    assert (played[False], played[True]) == (sampled, greedy)
    files = [f"iteration_{done:06d}.json" for done in sampled]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    trainer.config.eval.greedy = False
    finish_iterations(trainer, 5, 5)
    assert (played[False][-1], played[True]) == (5, greedy)


def test_staleness_is_the_age_of_the_oldest_response() -> None:
    def episode(*versions: int) -> Trajectory:
        turns = [make_turn(version=version) for version in versions]
        return Trajectory(Task("a", "", "train"), 0, 0, turns)

    assert train.staleness([episode(5, 4), episode(3, 6)], 6) == 3.0
    assert train.staleness([episode(6)], 6) == 0.0
    assert train.staleness([episode()], 6) == 0.0


def make_imitation(done: int) -> Any:
    """A warm start of 3 epochs of 4 updates whose minibatches name their epoch and place."""
    warm_start: Any = object.__new__(imitation.Imitation)
    warm_start._config = default_config()
    warm_start._config.sft.epochs, warm_start.total, warm_start.done = 3, 12, done
    warm_start._samples = ()

    def stream(samples: Any, steps: int, seed: tuple[int, int]) -> Iterator[tuple[int, int]]:
        return ((seed[1], place) for place in range(4))

    warm_start._stream = stream
    return warm_start


@pytest.mark.parametrize("done", range(13))
def test_a_resumed_warm_start_learns_the_minibatches_that_are_left(done: int) -> None:
    minibatches = [(epoch, place) for epoch in range(3) for place in range(4)]
    assert list(make_imitation(done)._remaining_minibatches()) == minibatches[done:]


def test_a_prompt_is_learnt_from_its_second_token_on() -> None:
    tokens = np.arange(10, 17, dtype=np.int32)
    sample = Sample(tokens[:3], tokens[3:], np.zeros(4, np.float32))
    whole = imitation._learn_prompt(sample)
    np.testing.assert_array_equal(whole.input_tokens, sample.input_tokens)
    np.testing.assert_array_equal(whole.response_tokens, tokens[1:])
    assert whole.logprobs.shape == whole.response_tokens.shape
