"""Step-level advantages of gigpo_credit in verl: an entry of its registry of advantage estimators.

    import examples.credit.verl_adapter  # in the process of the trainer
    # algorithm.adv_estimator=gigpo algorithm.gamma=0.95

`hgpo` and `graph_values` are registered too. The discount is `algorithm.gamma` of verl; its default
is 1.

verl hands an estimator the rewards of tokens, the response mask and the column `uid`, and nothing
else. So a row is one environment step, and its uid says all that identifies the step: `make_uid`.
Other estimators of verl group rows by `uid`, so they cannot be used on the same batch.
"""

import json
from collections.abc import Sequence
from typing import Any

import gigpo_credit
import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est


def make_uid(group: str, trajectory: int, step: int, anchor: str) -> str:
    """The uid of a step, for `DataProto.non_tensor_batch["uid"]`."""
    return json.dumps([group, trajectory, step, anchor])


def make_estimator(name: str, **settings: Any) -> Any:
    """An estimator of verl with an algorithm of gigpo_credit.

    Args:
      name: Key of `gigpo_credit.ALGORITHMS`.
      **settings: Keywords of `gigpo_credit.advantages`.
    """

    def estimate(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        config: Any = None,
        index: Sequence[str] = (),
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages and returns, [B, T] each: a step's advantage at each token of its response."""
        del others
        group, trajectory, step, anchor = zip(*map(json.loads, index), strict=True)
        gamma = None if config is None else config.get("gamma")
        discount = {} if gamma is None else {"gamma": gamma}
        values = gigpo_credit.advantages(
            name,
            reward=token_level_rewards.sum(-1).cpu().numpy(),
            trajectory=trajectory,
            step=step,
            group=group,
            anchor=anchor,
            **{**discount, **settings},
        )
        column = torch.as_tensor(np.array(values), device=token_level_rewards.device)
        advantages = column[:, None] * response_mask
        return advantages, advantages

    return estimate


register_adv_est("gigpo")(make_estimator("gigpo"))
register_adv_est("hgpo")(make_estimator("hgpo"))
register_adv_est("graph_values")(make_estimator("graph_values"))
