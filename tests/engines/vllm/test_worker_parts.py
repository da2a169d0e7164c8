"""What the worker extension changes in vLLM, with stand-ins for vLLM's objects; the tests with a
real server use it as it is.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gigpo_jax.engines.vllm.worker.adapters import AdapterSwitch
from gigpo_jax.engines.vllm.worker.entropies import keep_entropies
from gigpo_jax.engines.vllm.worker.extension import WeightLoader

PROBABILITIES = np.float32([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]])
TOKENS = torch.tensor([1, 3])
ENTROPIES = [1.5 * np.log(2), 0.0]


def score(scores: Any, alternatives: int, *, token_ids: Any) -> tuple[Any, Any, str]:
    """As vLLM's samplers do."""
    found = torch.topk(scores, alternatives, dim=-1)
    ids = torch.cat((token_ids[:, None], found.indices), dim=1)
    return ids, scores.log_softmax(-1).gather(-1, ids), "ranks"


class OldSampler:
    def __init__(self) -> None:
        self.gather_logprobs = score


class NewSampler:
    """Its module has the function."""


@pytest.mark.parametrize("kind", [OldSampler, NewSampler])
def test_alternatives_become_the_entropy_of_the_distribution(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = kind()
    module: Any = ModuleType("sampler_module")
    if kind is NewSampler:
        module.compute_topk_scores = score
        monkeypatch.setattr(NewSampler, "__module__", "sampler_module")
        monkeypatch.setitem(sys.modules, "sampler_module", module)
    owner, name = module, "compute_topk_scores"
    if kind is OldSampler:
        owner, name = sampler, "gather_logprobs"
    keep_entropies(SimpleNamespace(sampler=sampler))
    changed = getattr(owner, name)
    # Every push asks for it.
    keep_entropies(SimpleNamespace(sampler=sampler))
    assert getattr(owner, name) is changed
    scores = torch.log(torch.tensor(PROBABILITIES))
    plain = score(scores, 1, token_ids=TOKENS)
    for mine, theirs in zip(changed(scores, 1, token_ids=TOKENS)[:2], plain[:2], strict=True):
        assert torch.equal(mine, theirs)
    ids, logprobs, rest = changed(scores, 2, token_ids=TOKENS)
    assert rest == "ranks"
    assert ids.tolist() == [[1, 2, 2], [3, 0, 0]]
    np.testing.assert_allclose(logprobs[:, 0], [np.log(0.25), 0.0], atol=1e-6)
    for column in (1, 2):
        np.testing.assert_allclose(-logprobs[:, column], ENTROPIES, atol=1e-6)


def test_a_sampler_of_another_kind_is_refused() -> None:
    with pytest.raises(AttributeError, match="compute_topk_scores"):
        keep_entropies(SimpleNamespace(sampler=NewSampler()))


class Manager:
    """vLLM's, as far as it reads adapters.

    Attributes:
      loaded: folder of each number.
    """

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}

    def _load_adapter(self, request: Any) -> str:
        return request.lora_path

    def add_adapter(self, request: Any) -> None:
        if request.load_inplace or request.lora_int_id not in self.loaded:
            self.loaded[request.lora_int_id] = self._load_adapter(request)


def test_a_replaced_adapter_is_read_from_its_newest_folder_for_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_request(name: str, number: int, path: str, load_inplace: bool = False) -> Any:
        return SimpleNamespace(
            lora_name=name, lora_int_id=number, lora_path=path, load_inplace=load_inplace
        )

    module: Any = ModuleType("vllm.lora.request")
    module.LoRARequest = make_request
    monkeypatch.setitem(sys.modules, "vllm.lora.request", module)
    manager = Manager()
    switch = AdapterSwitch(manager)
    manager.add_adapter(make_request("ours", 4, "/w/0"))
    manager.add_adapter(make_request("theirs", 5, "/t"))
    switch.replace("ours", "/w/1")
    assert manager.loaded == {4: "/w/1", 5: "/t"}
    # vLLM drops the one that was used least; a request of before the push brings it back.
    del manager.loaded[4]
    manager.add_adapter(make_request("ours", 4, "/w/0"))
    assert manager.loaded == {4: "/w/1", 5: "/t"}


def test_drafted_tokens_have_no_entropies() -> None:
    worker: Any = WeightLoader()
    worker.model_runner = SimpleNamespace(sampler=OldSampler())
    worker.vllm_config = SimpleNamespace(speculative_config=object())
    assert worker.gigpo_keep_entropies() == {"error": "speculative decoding has no entropies"}
    worker.vllm_config.speculative_config = None
    assert worker.gigpo_keep_entropies() == {}
