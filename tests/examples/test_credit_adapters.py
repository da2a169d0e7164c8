"""The adapters of examples/credit, with verl and TRL themselves on the CPU (make test-trainers)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.interfaces
ROOT = Path(__file__).parents[2]

# Two tasks. Three episodes of the first one, two of the second; rows in no order.
ROWS = [
    ("b", 0, 1, "yard", 0.0),
    ("a", 0, 0, "hall", 0.0),
    ("a", 1, 0, "hall", 0.0),
    ("a", 0, 1, "kitchen", 0.0),
    ("a", 1, 1, "kitchen", 0.0),
    ("b", 0, 0, "street", 0.0),
    ("a", 0, 2, "pantry", 10.0),
    ("a", 2, 0, "hall", 10.0),
    ("b", 1, 0, "street", 10.0),
]


@pytest.mark.parametrize("algorithm", ["gigpo", "hgpo", "graph_values"])
@pytest.mark.parametrize("gamma", [0.9, None])
def test_estimators_of_verl_give_our_numbers(algorithm: str, gamma: float | None) -> None:
    pytest.importorskip("verl")
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from examples.credit.verl_adapter import make_uid
    from gigpo_jax.env_bridge.types import anchor_hash
    from gigpo_jax.rl.algorithms import make_advantages
    from gigpo_jax.rl.types import StepColumns

    tokens = np.random.default_rng(0).integers(1, 6, len(ROWS))
    mask = torch.arange(6)[None] < torch.tensor(tokens)[:, None]
    rewards = torch.zeros(len(ROWS), 6)
    rewards[torch.arange(len(ROWS)), torch.tensor(tokens) - 1] = torch.tensor(
        [row[4] for row in ROWS]
    )
    uid = np.array([make_uid(*row[:4]) for row in ROWS], object)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask.long()},
        non_tensors={"uid": uid},
    )
    config = OmegaConf.create({} if gamma is None else {"gamma": gamma})
    data = compute_advantage(data, adv_estimator=algorithm, gamma=0.5, config=config)
    make = make_advantages(
        algorithm, "paper", gamma=gamma or 0.95, step_weight=1.0, normalize="mean_std"
    )
    places = {row[:3]: n for n, row in enumerate(ROWS)}
    following = [places.get((group, number, step + 1)) for group, number, step, *_ in ROWS]
    anchor = np.array([anchor_hash(row[3]) for row in ROWS], np.uint32)
    columns = StepColumns(
        reward=np.array([row[4] for row in ROWS], np.float32),
        penalty=np.zeros(len(ROWS), np.float32),
        trajectory=np.array([row[1] for row in ROWS], np.int32),
        step=np.array([row[2] for row in ROWS], np.int32),
        group=np.array([ord(row[0]) for row in ROWS], np.int32),
        anchor=anchor,
        mask=np.ones(len(ROWS), bool),
        next_anchor=np.array([(0, 0) if n is None else anchor[n] for n in following], np.uint32),
        truncated=np.zeros(len(ROWS), bool),
    )
    expected = np.asarray(make(columns).total)
    assert np.unique(np.round(expected, 4)).size > 4
    for key in ("advantages", "returns"):
        got = data.batch[key].numpy()
        np.testing.assert_allclose(got, expected[:, None] * mask.numpy(), atol=1e-6)


def test_grpo_of_one_step_is_that_of_verl() -> None:
    pytest.importorskip("verl")
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from examples.credit.verl_adapter import make_estimator, make_uid

    scores = torch.tensor([3.0, 1.0, 2.0, 8.0, 4.0, 4.0])
    names = ["a", "a", "a", "b", "b", "c"]
    rewards = scores[:, None] * torch.tensor([[0.0, 1.0]])
    mask = torch.ones(6, 2)
    theirs, _ = compute_grpo_outcome_advantage(rewards, mask, np.array(names, object))
    uids = [make_uid(name, number, 0, "start") for number, name in enumerate(names)]
    ours, _ = make_estimator("grpo", singleton_episode="raw")(rewards, mask, index=uids)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


def reward_rows(completions: list[str], **others: Any) -> list[float]:
    """1, 2, 3, 1, ... in the order of rows."""
    del others
    return [float(row % 3 + 1) for row in range(len(completions))]


class Batches:
    """A trainer of TRL on a tiny model, and its rewards and advantages.

    Attributes:
      trainer: `CreditTrainer` with two prompts and four completions of each.
      batches: Rewards and advantages of each batch so far.
    """

    def __init__(self, folder: Path, dataset: list[dict[str, Any]], **settings: Any) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig

        from examples.credit.trl_adapter import CreditTrainer

        self.batches: list[tuple[np.ndarray, np.ndarray]] = []
        batches = self.batches

        class Recorder(CreditTrainer):
            def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
                output = super()._generate_and_score_completions(inputs)
                batches.append((self._rewards.numpy().copy(), output["advantages"].numpy().copy()))
                return output

        args = GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            temperature=5.0,  # equal completions would have no gradient
            max_steps=2,
            learning_rate=1e-3,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            seed=0,
        )
        path = ROOT / "models/sokoban_text_tiny"
        model = AutoModelForCausalLM.from_pretrained(path)
        self.trainer = Recorder(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(path),
            reward_funcs=reward_rows,
            args=args,
            train_dataset=Dataset.from_list(dataset),
            **settings,
        )

    def train(self) -> bool:
        """Trains for two updates; whether a parameter has changed."""
        parameters = dict(self.trainer.model.named_parameters())
        start = {name: value.detach().clone() for name, value in parameters.items()}
        self.trainer.train()
        return any(not value.equal(start[name]) for name, value in parameters.items())


PROMPTS = [{"prompt": "P _ O"}, {"prompt": "_ X # #"}]


@pytest.mark.parametrize("algorithm", ["max_rl", "grpo"])
def test_a_trainer_of_trl_trains_with_our_numbers(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    settings = {"normalize": "mean"}
    run = Batches(tmp_path, PROMPTS * 4, algorithm=algorithm, settings=settings)
    assert run.train()
    assert len(run.batches) == 2
    for rewards, advantages in run.batches:
        assert np.unique(rewards).size > 1
        mean = rewards.reshape(2, 4).mean(1).repeat(4)
        difference = rewards - mean
        expected = difference / mean if algorithm == "max_rl" else difference
        np.testing.assert_allclose(advantages, expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["gigpo", "graph_values"])
def test_steps_of_a_rollout_function_have_our_numbers(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    import gigpo_credit

    names = ("group", "trajectory", "step", "anchor")
    steps = {name: [row[place] for row in ROWS[:8]] for place, name in enumerate(names)}

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """One completion a prompt; all completions differ."""
        del trainer
        rows = range(len(prompts))
        return {
            "prompt_ids": [[1, 2] for _ in rows],
            "completion_ids": [[3, 4 + row] for row in rows],
            "logprobs": None,
            **steps,
        }

    run = Batches(tmp_path, PROMPTS * 4, algorithm=algorithm, rollout_func=roll_out)
    assert run.train()
    assert len(run.batches) == 2
    for rewards, advantages in run.batches:
        expected = gigpo_credit.advantages(algorithm, reward=rewards, **steps)
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
        # Rows as episodes of one step would have the three values of the rewards.
        assert np.unique(np.round(advantages, 4)).size > 3


def test_steps_of_a_dataset_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from gigpo_jax.core.errors import InputError

    rows = [
        prompt | {"group": "task", "trajectory": episode, "step": step, "anchor": "hall"}
        for episode in range(4)
        for step, prompt in enumerate(PROMPTS)
    ]
    run = Batches(tmp_path, rows, algorithm="gigpo")
    # TRL copies each row: four rows are one step.
    with pytest.raises(InputError, match="is of the same group, trajectory and step"):
        run.train()
