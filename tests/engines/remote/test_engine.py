"""What the learner's side makes of a response."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.engines.stopping import StopStrings
from tests.engines.test_stopping import Pieces


def test_a_response_that_is_cut_keeps_the_versions_of_its_tokens() -> None:
    engine: Any = object.__new__(RemoteEngine)
    engine._stops = StopStrings(Pieces("a", "</", "x>"), 3)
    tokens = np.array([0, 1, 2, 0], np.int32)
    versions = np.array([6, 6, 7, 7], np.int32)
    response = Completion(tokens, -0.5 * np.ones(4, np.float32), "length", 6, versions)
    cut = engine._cut_at_stop(response, SamplingParams(max_tokens=9, stop_strings=("</x>",)))
    assert (cut.tokens.tolist(), cut.versions.tolist()) == ([0, 1, 2], [6, 6, 7])
    assert (len(cut.logprobs), cut.finish_reason, cut.version) == (3, "stop", 6)
