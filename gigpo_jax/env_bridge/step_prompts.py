"""Prompts of steps: of a conversation, or each by itself."""

from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.env_bridge.conversations import Conversation, SummaryLimits
from gigpo_jax.env_bridge.prompts import History, Prompt, PromptTemplate, build_prompt
from gigpo_jax.env_bridge.types import Observation


def build_step_prompt(
    template: PromptTemplate,
    observation: Observation,
    history: History,
    *,
    encode: Callable[..., Sequence[int]],
    limit: int,
    show_admissible: bool = True,
    template_images: Sequence[np.ndarray] = (),
    summaries: SummaryLimits | None = None,
) -> Prompt:
    """Builds the prompt of a step or a summary.

    A template that is no `Conversation` is for `build_prompt`. A conversation goes on from
    `history.exchanges`. If it would have more than `limit` tokens, the oldest exchanges are dropped
    until half of `limit` is enough for the rest, or all of them; the system message stays. The
    first message that is left is then cut as in `build_prompt`.

    With `summaries` nothing is dropped. A prompt always leaves room for a response and a request
    for a summary after it. Where the next message does not, the request takes its place, and the
    prompt after that starts from `history.summary`.

    Args:
      template: See `build_prompt`.
      observation: See `build_prompt`.
      history: See `build_prompt`.
      encode: See `build_prompt`. For a conversation it takes two more arguments: `system`, text of
        a system message before the user message, or `response`, ids of the response that the user
        message follows; then it returns the ids after the response.
      limit: See `build_prompt`.
      show_admissible: See `build_prompt`.
      template_images: See `build_prompt`.
      summaries: Limits of a conversation with summaries; None: the oldest exchanges are dropped.

    Raises:
      InputError: As `build_prompt`, or the chat template cannot continue a conversation.
      NoSummaryRoom: `limit` is too small for summaries of this task.
    """
    if isinstance(template, Conversation):
        from gigpo_jax.env_bridge.conversation_prompts import build_conversation_prompt

        return build_conversation_prompt(
            template,
            observation,
            history,
            encode=encode,
            limit=limit,
            show_admissible=show_admissible,
            template_images=template_images,
            summaries=summaries,
        )
    return build_prompt(
        template,
        observation,
        history,
        encode=encode,
        limit=limit,
        show_admissible=show_admissible,
        template_images=template_images,
    )
