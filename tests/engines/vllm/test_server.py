"""One server over HTTP: the steps of a push in their order, and what every kind of answer means."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.remote.protocol import Limits, ResponseDiscarded, ServerFault
from gigpo_jax.engines.remote.server import PushedWeights
from gigpo_jax.engines.vllm.server import VllmServer

PROBE = (4, 7, 4)
WEIGHTS = PushedWeights(
    label="ab12:7",
    name="w",
    checksum="c0ffee",
    probe=PROBE,
    expected=np.float32([-1.5, -0.25]),
    tolerance=0.01,
)
LOADED = {"checksum": "c0ffee", "bytes": 12, "seconds": 0.5}
PUSH = ["pause wait", "label loading", "gigpo_load", "resume", "generate", "label ab12:7"]


class Answers:
    """Answers as vLLM 0.32.0 does; `changes` replaces what it says to one kind of request.

    Attributes:
      calls: what was asked for, in order.
      arguments: of the last call of a worker's method.
      bodies: the last body of every other kind of request.
      meanwhile: called while a request is answered.
    """

    def __init__(self, **changes: Any) -> None:
        rows = [None, {"7": {"logprob": -1.5}}, {"4": {"logprob": -0.25}}]
        self.says = {"rpc": {"results": [LOADED]}, "generate": {"prompt_logprobs": rows}} | changes
        self.calls: list[str] = []
        self.arguments: dict[str, Any] = {}
        self.bodies: dict[str, Any] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        body = await request.json() if request.can_read_body else {}
        if name == "collective_rpc":
            name, self.arguments = "rpc", body["kwargs"]
            self.calls.append(body["method"])
            if body["method"] == "gigpo_keep_entropies":
                name = "keep"
        elif name == "update_weight_version":
            self.calls.append(f"label {body['new_version']}")
        else:
            self.calls.append(" ".join([name, *request.query.values()]))
            self.bodies[name] = body
        self.meanwhile()
        said = self.says.get(name, {})
        if isinstance(said, web.Response):
            return said
        if said == "nothing":
            await asyncio.sleep(30)
        return web.json_response(said)


def talk(
    answers: Answers, work: Callable[[VllmServer], Awaitable[Any]], inflight: bool = False
) -> Any:
    """What `work` makes of a server that answers so; patient with one that means to."""
    limit_s = 1.0 if "nothing" in answers.says.values() else 60.0

    async def scenario() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answers)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            limits = Limits(start_s=1, connect_s=1, request_s=limit_s, push_s=limit_s, restarts=0)
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            server = VllmServer(url, session, limits, inflight=inflight)
            try:
                return await work(server)
            finally:
                await runner.cleanup()

    return asyncio.run(asyncio.wait_for(scenario(), 100))


def push(answers: Answers, weights: PushedWeights = WEIGHTS) -> dict[str, float]:
    return talk(answers, lambda server: server.push(weights))


def test_a_push_pauses_unlabels_loads_resumes_probes_and_labels_last() -> None:
    answers = Answers()
    assert push(answers) == {"bytes": 12.0, "seconds": 0.5, "probe_difference": 0.0}
    assert answers.calls == PUSH
    assert answers.arguments == {"name": "w", "checksum": "c0ffee"}


INFLIGHT = PushedWeights(**{**vars(WEIGHTS), "inflight": True})
RUNNING = ["pause keep", "label loading", "gigpo_load", "label ab12:7", "resume", "generate"]


def test_a_push_in_flight_names_its_weights_before_running_requests_go_on() -> None:
    answers = Answers()
    push(answers, INFLIGHT)
    assert answers.calls == RUNNING


WRONG = {"prompt_logprobs": [None, {"7": {"logprob": -1.4}}, {"4": {"logprob": -0.25}}]}


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (WRONG, ServerFault, "probe"),
        ({"prompt_logprobs": [None, {"7": {"logprob": None}}]}, ServerFault, "probe"),
        (web.json_response({"error": {"message": "no"}}, status=400), InputError, "refuses"),
    ],
    ids=["other numbers", "no numbers", "refused"],
)
def test_a_push_in_flight_that_fails_leaves_no_label_of_ours(
    answer: Any, kind: type, says: str
) -> None:
    answers = Answers(generate=answer)
    with pytest.raises(kind, match=says):
        push(answers, INFLIGHT)
    assert answers.calls == [*RUNNING, "label loading"]


class LateScores:
    """The learner's scores of the probe, which are there after `ready` is set, or fail then."""

    def __init__(self, *, fail: bool) -> None:
        self.ready = threading.Event()
        self._fail = fail

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        assert self.ready.wait(60)
        if self._fail:
            raise RuntimeError("out of memory")
        return WEIGHTS.expected


@pytest.mark.parametrize("failure", ["", "other weights", "no scores"])
def test_a_response_of_weights_in_flight_counts_if_they_pass_their_probe(failure: str) -> None:
    answers = Answers(**({"generate": WRONG} if failure == "other weights" else {}))
    scores = LateScores(fail=failure == "no scores")
    weights = PushedWeights(**{**vars(INFLIGHT), "expected": scores})

    async def work(server: VllmServer) -> tuple[bool, list[Any]]:
        push = asyncio.ensure_future(server.push(weights))
        while "generate" not in answers.calls:
            await asyncio.sleep(0.01)
        request = asyncio.ensure_future(server.generate({}))
        while answers.calls.count("generate") < 2:
            await asyncio.sleep(0.01)
        is_early = (await asyncio.wait([request], timeout=0.2))[0]
        scores.ready.set()
        return bool(is_early), await asyncio.gather(push, request, return_exceptions=True)

    is_early, (_, response) = talk(answers, work)
    assert not is_early
    if failure:
        assert isinstance(response, ResponseDiscarded)
        assert answers.calls[-1] == "label loading"
    else:
        assert response == answers.says["generate"]


def test_the_probe_of_weights_in_flight_has_a_place_behind_no_request() -> None:
    description = {"max_num_seqs": 3, "max_model_len": 96, "weights_dir": "w", "takes_seeds": True}
    description["logprobs_mode"] = "processed_logprobs"
    description |= {"head_dtype": "float32", "cache_dtype": None, "quantization": "none"}
    answers = Answers(version={"version": "0.32.0"}, rpc={"results": [description]})

    async def work(server: VllmServer) -> int:
        await server.check({}, max_length=96, rank=0, base="")
        answers.calls.clear()
        answers.says["generate"] = "nothing"
        requests = [asyncio.ensure_future(server.generate({})) for _ in range(5)]
        while answers.calls.count("generate") < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        sent = answers.calls.count("generate")
        answers.says["generate"] = Answers().says["generate"]
        answers.says["rpc"] = {"results": [LOADED]}
        await server.push(INFLIGHT)
        for request in requests:
            request.cancel()
        return sent

    # The other three wait at the client.
    assert talk(answers, work, inflight=True) == 2


@pytest.mark.parametrize("answer", [{}, web.Response(status=500), web.Response(status=401)])
def test_a_dropped_server_does_not_stay_paused(answer: Any) -> None:
    answers = Answers(resume=answer)
    talk(answers, lambda server: server.release())
    assert answers.calls == ["resume"]


def test_a_server_has_no_weights_in_flight_before_their_probe() -> None:
    label = {"weight_version": INFLIGHT.label}
    answers = Answers(weight_info=label, resume=web.Response(status=500))

    async def push_twice(server: VllmServer) -> list[str]:
        with pytest.raises(ServerFault, match="resume"):
            await server.push(INFLIGHT)
        labels = [await server.weights_label()]
        del answers.says["resume"]
        await server.push(INFLIGHT)
        return [*labels, await server.weights_label()]

    # Otherwise nobody would push again, and the server would stay paused.
    assert talk(answers, push_twice) == ["loading", INFLIGHT.label]


STAGED = {"results": [LOADED | {"folder": "/server/w"}]}
ADAPTER = PushedWeights(**{**vars(WEIGHTS), "base": "b0"})


def test_an_adapter_is_staged_loaded_under_a_new_name_and_alone() -> None:
    models = {"data": [{"id": "m"}, {"id": "old", "parent": "m"}]}
    answers = Answers(rpc=STAGED, models=models)
    push(answers, ADAPTER)
    load = ["models", "gigpo_check_adapter", "load_lora_adapter", "unload_lora_adapter"]
    assert answers.calls == [*PUSH[:2], *load, *PUSH[3:]]
    assert answers.arguments == {"name": "w", "checksum": "c0ffee", "base": "b0"}
    assert answers.bodies["load_lora_adapter"] == {"lora_name": "w.1", "lora_path": "/server/w"}
    assert answers.bodies["unload_lora_adapter"] == {"lora_name": "old"}
    assert answers.bodies["generate"]["model"] == "w.1"  # the probe is of the adapter


def test_an_adapter_in_flight_is_replaced_under_its_name_unless_the_server_lost_it() -> None:
    adapter = PushedWeights(**{**vars(ADAPTER), "inflight": True})
    models = {"data": [{"id": "m"}, {"id": "w.1", "parent": "m"}]}
    answers = Answers(rpc=STAGED)
    methods = []

    async def push_thrice(server: VllmServer) -> None:
        for served in ({"data": []}, models, {"data": []}):
            answers.says["models"] = served
            await server.push(adapter)
            methods.append((answers.arguments.get("adapter"), server.adapter))

    talk(answers, push_thrice)
    assert methods == [(None, "w.1"), ("w.1", "w.1"), (None, "w.2")]
    assert [call for call in answers.calls if "adapter" in call] == [
        *("gigpo_check_adapter", "load_lora_adapter", "gigpo_replace_adapter"),
        *("gigpo_check_adapter", "load_lora_adapter"),
    ]


@pytest.mark.parametrize("refusal", [{}, {"error": "samples otherwise"}])
def test_entropies_are_asked_of_the_workers_before_the_weights(refusal: dict[str, str]) -> None:
    alternatives = [{"token_id": 4, "logprob": -1.0}, {"token_id": 5, "logprob": -0.5}]
    content = [{"token_id": 4, "logprob": -1.0, "top_logprobs": alternatives}]
    answer = {"choices": [{"logprobs": {"content": content}}]}
    probe = Answers().says["generate"] | answer
    answers = Answers(generate=probe, keep={"results": [refusal]})

    async def work(server: VllmServer) -> Any:
        server._keeps_entropies = True
        await server.push(WEIGHTS)
        return await server.generate({"sampling_params": {"logprobs": 0}})

    if refusal:
        with pytest.raises(ServerFault, match="no entropies: samples otherwise"):
            talk(answers, work)
        return
    assert talk(answers, work)["choices"][0]["entropies"] == [0.5]
    assert answers.calls[2] == "gigpo_keep_entropies"
    assert answers.bodies["generate"] == {"sampling_params": {"logprobs": 2}}


def test_padding_of_the_vocabulary_is_masked_before_the_weights() -> None:
    answers = Answers()

    async def work(server: VllmServer) -> Any:
        server._num_tokens = 263
        await server.push(WEIGHTS)

    talk(answers, work)
    assert answers.calls[2:4] == ["gigpo_mask_padding", "gigpo_load"]


def test_a_response_counts_only_if_its_adapter_stayed_the_same() -> None:
    answers = Answers()

    async def work(server: VllmServer) -> None:
        server.adapter = "a"
        answers.meanwhile = lambda: setattr(server, "adapter", "b")
        await server.generate({})

    with pytest.raises(ServerFault, match="the adapter changed"):
        talk(answers, work)
    assert answers.bodies["generate"] == {"model": "a"}


@pytest.mark.parametrize(
    "answer", [{}, [], {"data": None}, {"data": ["m"]}, {"data": [{"parent": "m"}]}]
)
def test_a_list_of_adapters_that_is_none_is_a_fault_of_the_server(answer: Any) -> None:
    with pytest.raises(ServerFault, match="/v1/models: unexpected answer"):
        push(Answers(rpc=STAGED, models=answer), ADAPTER)


@pytest.mark.parametrize(
    ("changes", "says", "steps"),
    [
        (
            {"rpc": {"results": [LOADED, {"error": "cut short"}]}},
            "did not load version ab12:7: cut short",
            3,
        ),
        ({"rpc": {"results": [LOADED | {"checksum": "other"}]}}, "did not load version ab12:7", 3),
        ({"rpc": {"results": []}}, "gigpo_load: unexpected answer", 3),
        ({"rpc": {"results": [None]}}, "gigpo_load: unexpected answer", 3),
        ({"rpc": "nothing"}, "no answer within 1 s", 3),
        ({"pause": "nothing"}, "no answer within 1 s", 1),
        (
            {
                "generate": {
                    "prompt_logprobs": [None, {"7": {"logprob": -1.4}}, {"4": {"logprob": -0.3}}]
                }
            },
            "0.075 nats",
            5,
        ),
        (
            {
                "generate": {
                    "prompt_logprobs": [
                        None,
                        {"7": {"logprob": float("nan")}},
                        {"4": {"logprob": 0}},
                    ]
                }
            },
            "nan",
            5,
        ),
        ({"generate": {}}, "unexpected answer to the probe", 5),
    ],
)
def test_a_push_that_fails_leaves_no_label_of_ours(
    changes: dict[str, Any], says: str, steps: int
) -> None:
    answers = Answers(**changes)
    with pytest.raises(ServerFault, match=says):
        push(answers)
    assert answers.calls == PUSH[: len(answers.calls)]
    assert len(answers.calls) == steps or (
        len(answers.calls) < steps and "no answer" in says
    )  # on a busy machine


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (web.Response(status=401), InputError, "refuses the key .* set VLLM_API_KEY"),
        (web.Response(status=403), InputError, "refuses the key"),
        (
            web.json_response({"error": {"message": "too\nlong"}}, status=400),
            InputError,
            "refuses the request: too long",
        ),
        (web.Response(status=503, text="busy"), ServerFault, "status 503: busy"),
        (
            web.Response(status=302, headers={"Location": "/other"}),
            ServerFault,
            "status 302: nothing",
        ),
        (web.Response(text="{", content_type="application/json"), ServerFault, "JSONDecodeError"),
        ("nothing", ServerFault, "no answer within 1 s"),
    ],
)
def test_every_answer_that_is_none_is_one_of_two_errors(answer: Any, kind: type, says: str) -> None:
    with pytest.raises(kind, match=says) as error:
        talk(Answers(generate=answer), lambda server: server.generate({}))
    assert "\n" not in str(error.value)


def test_a_server_without_the_extension_or_of_another_kind_is_refused() -> None:
    for text in ("0.32.0", "0.33.1rc1+cpu"):
        version = {"version": text}
        answers = Answers(version=version, rpc={"results": [{"dtype": "float32"}]})
        assert talk(answers, lambda s: s.describe()) == {"dtype": "float32"}
    with pytest.raises(InputError, match="worker extension is missing"):
        talk(Answers(version=version, rpc=web.Response(status=500)), lambda s: s.describe())
    with pytest.raises(InputError, match=r"not vLLM 0\.32 for train\.inflight"):
        talk(Answers(version=version), lambda s: s.describe(), inflight=True)
    for other in (
        [],
        {"version": 3},
        {},
        *({"version": text} for text in ("0.31.9", "0.320.0", "0.3", "1.0")),
    ):
        with pytest.raises(InputError, match=r"not vLLM 0\.32 or 0\.33 .* launch/vllm_sidecar\.sh"):
            talk(Answers(version=other), lambda s: s.describe())


def test_a_label_is_read_from_whatever_comes() -> None:
    for info, label in (({"weight_version": "ab12:7"}, "ab12:7"), ({}, ""), ([], "")):
        assert talk(Answers(weight_info=info), lambda s: s.weights_label()) == label
