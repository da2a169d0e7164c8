"""Ids without a token, which a vLLM server's model scores all the same."""

from typing import Any


def mask_padding(model: Any, num_tokens: int) -> None:
    """Makes a model never sample ids from `num_tokens` on; it may be called again.

    Their probability is 0 in all that the server reports too.
    """
    compute = getattr(model.compute_logits, "unmasked", model.compute_logits)

    def compute_masked(*args: Any, **settings: Any) -> Any:
        logits = compute(*args, **settings)
        # Some workers of a model that is split over devices have no logits.
        if logits is not None:
            logits[..., num_tokens:] = float("-inf")
        return logits

    compute_masked.unmasked = compute  # type: ignore[attr-defined]
    model.compute_logits = compute_masked
