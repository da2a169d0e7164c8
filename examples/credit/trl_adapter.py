"""Advantages of gigpo_credit in TRL: a `GRPOTrainer` with another advantage.

    trainer = CreditTrainer(model, reward_funcs, args=args, train_dataset=rows, algorithm="rloo")

A row of TRL is a whole completion, so without more it is an episode of one step, and its task group
is TRL's group of `num_generations` rows. Where a `rollout_func` returns the lists `group`,
`trajectory`, `step` and `anchor`, one value a completion, a row is one step of an episode. These
columns cannot come from the dataset: TRL copies each of its rows `num_generations` times, and
gigpo_credit refuses the copies, which would all be one step.
"""

from typing import Any

import gigpo_credit
import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

COLUMNS = ("group", "trajectory", "step", "anchor")


class CreditTrainer(GRPOTrainer):
    """A `GRPOTrainer` whose advantages come from an algorithm of gigpo_credit."""

    def __init__(
        self, *args: Any, algorithm: str = "rloo", settings: dict | None = None, **others: Any
    ) -> None:
        """Takes the arguments of `GRPOTrainer`.

        Args:
          *args: Its arguments.
          algorithm: Key of `gigpo_credit.ALGORITHMS`.
          settings: Keywords of `gigpo_credit.advantages`.
          **others: Its keywords.
        """
        self._algorithm = algorithm
        self._settings = settings or {}
        self._rewards = torch.zeros(0)
        super().__init__(*args, **others)

    def _calculate_rewards(self, inputs: Any, *args: Any) -> torch.Tensor:
        """Keeps the rewards of all processes, which the base class does not return."""
        rewards = super()._calculate_rewards(inputs, *args)
        weights = self.reward_weights.to(rewards.device)
        self._rewards = (rewards * weights).nansum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Generates and scores as the base class; only the advantages are others."""
        output = super()._generate_and_score_completions(inputs)
        rows = gather_object([{name: row.get(name) for name in COLUMNS} for row in inputs])
        generations = self.num_generations if self.model.training else self.num_generations_eval
        # As in TRL, a group is so many consecutive rows: two of them may have the same prompt.
        defaults = [
            {"group": number // generations, "trajectory": number, "step": 0, "anchor": "start"}
            for number in range(len(rows))
        ]
        named = {}
        for name in COLUMNS:
            values = [row[name] for row in rows]
            named[name] = [
                default[name] if value is None else value
                for value, default in zip(values, defaults, strict=True)
            ]
        advantages = gigpo_credit.advantages(
            self._algorithm, reward=self._rewards.cpu().numpy(), **named, **self._settings
        )
        first = self.accelerator.process_index * len(inputs)
        local_rows = torch.tensor(advantages[first : first + len(inputs)])
        output["advantages"] = local_rows.to(output["advantages"])
        return output
