"""Log-probabilities of responses under a teacher behind vLLM servers, for on-policy distillation.

The servers of `rl.settings.teacher` read the tokens of the policy, so both need one tokenizer. They
score at temperature 1, and nothing of the teacher is on the devices of the run.
"""

import os
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.devices.exchange import all_hosts
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.remote.keys import require_urls
from gigpo_jax.learner.samples import join_continuations
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.methods.opd import is_served
from gigpo_jax.policy import Policy
from gigpo_jax.run import report


class ServedTeacher(Signal):
    """A model behind servers that scores responses."""

    batch_fields = MappingProxyType({"teacher": np.float32})

    def __init__(self, scorer: Any) -> None:
        """Keeps the scorer, an `engines.vllm.scorer.TextScorer`."""
        self._scorer = scorer

    @classmethod
    def is_needed(cls, config: ConfigDict) -> bool:
        """Whether `rl.settings.teacher` names servers."""
        return is_served(config.rl.settings.teacher)

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks the addresses and the temperature."""
        del run
        require_urls(config, "rl.settings.teacher")
        require(
            config.sampling.temperature == 1,
            config,
            "sampling.temperature",
            "servers of rl.settings.teacher score at temperature 1",
            "use 1.0, or a teacher from a folder",
        )

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Connects to the servers.

        Raises:
          InputError: A server does not answer, or has another tokenizer or another model than the
            first one; or the policy reads images.
        """
        del mesh
        key = "config.rl.settings.teacher"
        value = repr(config.rl.settings.teacher)
        if policy.config.vision is not None:
            raise InputError(
                "servers score text alone, and the policy reads images",
                key=key,
                value=value,
                fix="name a model folder",
            )
        with optional_imports("vllm", key=key, value=value):
            from gigpo_jax.engines.remote.protocol import Limits
            from gigpo_jax.engines.vllm.scorer import TextScorer
        servers = config.engine
        urls = [url.strip() for url in config.rl.settings.teacher.split(",")]
        # Each host begins with another server; all hosts may use all.
        first = jax.process_index() % len(urls)
        scorer = TextScorer(
            urls[first:] + urls[:first],
            key=os.environ.get("VLLM_API_KEY", ""),
            limits=Limits(
                start_s=servers.connect_timeout_s,
                connect_s=servers.connect_timeout_s,
                request_s=servers.request_timeout_s,
                push_s=servers.request_timeout_s,
                restarts=0,
            ),
            say=report.say,
        )
        sampling = config.sampling
        scorer.check(policy.tokenizer, sampling.max_prompt_tokens + sampling.max_response_tokens)
        return cls(scorer)

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """The teacher's log-probabilities of each response, [R] f32.

        Raises:
          EngineLost: The servers of a host gave no scores.
        """
        from gigpo_jax.engines.remote.protocol import ServerFault

        samples = credited.scored.samples
        # The calls of a conversation are one text: its last call has all responses.
        groups = join_continuations(samples)
        texts = []
        for group in groups:
            last = samples[group[-1]]
            texts.append(np.concatenate([last.prompt_tokens, last.response_tokens]))
        reason = ""
        rows: list[np.ndarray] = []
        try:
            rows = self._scorer.score(texts)
        except (ServerFault, InputError) as err:
            reason = f"rl.settings.teacher: {err}"
        # Together: hosts with scores would wait for the others in the update.
        if all_hosts(np.array([reason != ""])).any():
            raise EngineLost(reason or "rl.settings.teacher: another host got no scores")
        scores: list[np.ndarray] = [np.zeros(0, np.float32)] * len(samples)
        for group, row in zip(groups, rows, strict=True):
            for index in group:
                # Nothing precedes the first token, so row n belongs to token n + 1.
                first = len(samples[index].prompt_tokens) - 1
                scores[index] = row[first : first + len(samples[index].response_tokens)]
        return {"teacher": scores}
