"""Entropies of tokens in a vLLM server's answers, which vLLM itself does not compute.

A request with `logprobs=ALTERNATIVES` gets one alternative for each token, whose log-probability is
minus the entropy of the distribution that the token was sampled from. Its id is the token's
plus 1, modulo the vocabulary, so that it is never the token's own: vLLM's answers have one entry
for an id.
"""

import sys
from collections.abc import Callable
from typing import Any

# The first columns of vLLM's alternatives. One would not do: answers have so many entries, and the
# first is the token.
ALTERNATIVES = 2


def keep_entropies(model_runner: Any) -> None:
    """Makes the sampler of a model runner return entropies; it may be called twice.

    Raises:
      AttributeError: The sampler is of an unknown kind.
    """
    owner = model_runner.sampler
    name = "gather_logprobs"
    if not hasattr(owner, name):
        # The second generation of model runners: a function of the sampler's module.
        owner = sys.modules[type(owner).__module__]
        name = "compute_topk_scores"
    function = getattr(owner, name)
    if not hasattr(function, "keeps_entropies"):
        setattr(owner, name, _add_entropies(function))


def _add_entropies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a sampler's function of scores.

    Its arguments are scores [N, V], logits or log-probabilities, and a number of alternatives K. It
    returns the ids [N, 1 + K] of tokens and alternatives, their log-probabilities, and more.
    """

    def score_tokens(scores: Any, alternatives: int, *args: Any, **settings: Any) -> Any:
        result = function(scores, alternatives, *args, **settings)
        if alternatives >= ALTERNATIVES:
            import torch

            probability = scores.softmax(dim=-1, dtype=torch.float32)
            # Tokens that are cut have probability 0, for which `entr` is 0.
            entropy = torch.special.entr(probability).sum(dim=-1, keepdim=True)
            ids, logprobs, *_ = result
            columns = slice(1, 1 + ALTERNATIVES)
            ids[:, columns] = (ids[:, :1] + 1) % scores.shape[-1]
            logprobs[:, columns] = -entropy
        return result

    score_tokens.keeps_entropies = True  # type: ignore[attr-defined]
    return score_tokens
