"""The in-process engine behind HTTP, for a learner elsewhere; `client.JaxServer` is the other side.

    GET  /health                 alone needs no key
    GET  /version, /describe     model and settings, which the learner checks
    GET  /weight_info            {"weight_version": label of the weights}
    PUT  /weights/NAME?offset=N&crc32=X     a piece of a file of weights
    POST /load                   replaces the weights by such files, or by files of a shared folder
    POST /inference/v1/generate  a response, as from vLLM, with "key", "session", "images" and
                                 "ended_sessions"

Weights are used only if they have the checksum of the push and give the probe the learner's
log-probabilities. Until then the old ones stay, or the server has none. A load waits until no
request runs, unless its weights are in flight (`train.inflight`).
"""

import asyncio
import base64
import pathlib
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from aiohttp import web

from gigpo_jax import __version__
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.endpoint.requests import RequestError
from gigpo_jax.engines.endpoint.web import Site, read_body, read_bytes
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax_server.client import PIECE_BYTES
from gigpo_jax.engines.remote.probe import PROBE_TOKENS, make_probe_scorer
from gigpo_jax.engines.remote.protocol import LOADING
from gigpo_jax.engines.vllm.worker.extension import ADAPTER_TENSORS, locate_weights, open_verified
from gigpo_jax.models import lora
from gigpo_jax.models.decoder import Params
from gigpo_jax.models.files.adapter_file import load_adapter
from gigpo_jax.models.files.single_file import load_file
from gigpo_jax.models.vision.images import ImagePatches, PromptImages, locate_images
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig

MAX_BODY_BYTES = 2 * PIECE_BYTES
MAX_REQUESTS = 4096  # under way together
HEADER_BYTES = 16 << 20  # of files of weights, beside the tensors


@dataclass(frozen=True)
class ServerSettings:
    """Address and weights of an engine server.

    Attributes:
      host, port: Address to listen on; port 0 is any free one.
      key: Bearer token of all requests.
      folder: Folder of new weights.
      is_shared: Whether the learner writes into it; False: it sends pieces.
      description: Values that the learner checks.
      dtype: Dtype of the weights.
      adapter: Shape of the adapter that pushes replace; None: they replace all parameters.
      max_body: Largest number of bytes of a request.
    """

    host: str
    port: int
    key: str
    folder: pathlib.Path
    is_shared: bool
    description: dict[str, Any]
    dtype: str
    adapter: lora.LoraConfig | None = None
    max_body: int = MAX_BODY_BYTES


class EngineServer:
    """Serves an engine until it is cancelled."""

    def __init__(
        self,
        engine: JaxEngine,
        params: Params,
        settings: ServerSettings,
        say: Callable[[str], None],
    ) -> None:
        """Serves nothing yet.

        Args:
          engine: Engine that answers; it is not closed.
          params: Parameters of the engine, which pushes replace.
          settings: Address and weights.
          say: Function that takes progress messages.
        """
        self._engine = engine
        self._settings = settings
        self._say = say
        self._site = Site(settings.host, settings.port, settings.key, max_body=settings.max_body)
        self._score_probe = make_probe_scorer(engine.config, params, settings.dtype)
        leaves = jax.tree.leaves(params)
        self._max_bytes = sum(leaf.nbytes for leaf in leaves) + HEADER_BYTES
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
        # An adapter's pushes leave the model below it as it is.
        self._frozen = params if settings.adapter is not None else None
        self._label = ""
        # Labels of the versions that the engine counts.
        self._labels: list[str] = [""]
        self._running = 0
        self._idle = asyncio.Condition()
        # Held during a load: one comes after the other, and requests wait.
        self._loading = asyncio.Lock()
        self._responses = 0
        router = self._site.application.router
        router.add_get("/health", self._get_health)
        router.add_get("/version", self._get_version)
        router.add_get("/describe", self._get_description)
        router.add_get("/weight_info", self._get_weight_info)
        router.add_put("/weights/{name:.+}", self._put_piece)
        router.add_post("/load", self._post_load)
        router.add_post("/inference/v1/generate", self._post_generate)

    async def serve(self) -> None:
        """Serves until this coroutine is cancelled.

        Raises:
          InputError: The address cannot be used.
        """
        async with self._site.listen() as url:
            self._say(f"serving on {url}")
            await asyncio.Event().wait()

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "running": self._running})

    async def _get_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": f"gigpo_jax {__version__}"})

    async def _get_description(self, request: web.Request) -> web.Response:
        return web.json_response(self._settings.description)

    async def _get_weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._label})

    async def _put_piece(self, request: web.Request) -> web.Response:
        """Appends a piece to a file; offset 0 begins it."""
        name = request.match_info["name"]
        folder = self._settings.folder
        if "\0" in name:
            raise RequestError("a name of weights has no zero bytes")
        path = (folder / name).resolve()
        # `resolve` follows links and "..", so that neither leads out of the folder. An adapter is a
        # folder of files.
        if self._settings.is_shared or folder not in (path.parent, path.parent.parent):
            raise RequestError(f"{name}: no place for weights")
        try:
            offset = int(request.query["offset"])
            crc32 = int(request.query["crc32"], 16)
        except (KeyError, ValueError) as err:
            raise RequestError("offset and crc32 must be numbers") from err
        if offset < 0:
            raise RequestError("offset and crc32 must be numbers from 0")
        piece = await read_bytes(request)
        if zlib.crc32(piece) != crc32:
            raise RequestError(f"{name}: a piece is damaged", status=409)
        if offset + len(piece) > self._max_bytes:
            raise RequestError(
                f"{name}: {offset + len(piece)} bytes, the model has at most {self._max_bytes}",
                status=413,
            )
        # A push that took longer than its client waits may still be loading this file: one that is
        # cut short while it is mapped ends the process.
        async with self._loading:
            await asyncio.to_thread(self._write_piece, path, offset, piece)
        return web.json_response({"bytes": offset + len(piece)})

    def _write_piece(self, path: pathlib.Path, offset: int, piece: bytes) -> None:
        if offset == 0:
            # Files of other pushes: memory holds one.
            for other in self._settings.folder.iterdir():
                if other not in (path, path.parent):
                    _delete_path(other)
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab" if offset else "wb") as file:
                if file.tell() != offset:
                    raise RequestError(
                        f"{path.name}: {file.tell()} bytes are there, not {offset}", status=409
                    )
                file.write(piece)
        except OSError as err:
            raise RequestError(f"{path}: cannot be written ({err.strerror})", status=507) from err

    async def _post_load(self, request: web.Request) -> web.Response:
        # A task, because a load cannot be interrupted: another one must not begin beside it if the
        # client goes away.
        load = asyncio.create_task(self._replace_weights(await read_body(request)))
        return web.json_response(await asyncio.shield(load))

    async def _replace_weights(self, body: dict[str, Any]) -> dict[str, float]:
        """Loads weights and returns the report, once no request runs unless they are in flight."""
        async with self._loading:
            if not body.get("inflight"):
                async with self._idle:
                    await self._idle.wait_for(lambda: self._running == 0)
            start = time.monotonic()
            try:
                report = await asyncio.to_thread(self._load, body)
            except (InputError, OSError) as err:
                raise RequestError(str(err), status=409) from err
            self._label = self._labels[-1]
        seconds = time.monotonic() - start
        self._say(
            f"weights {self._label}: {report['bytes'] / 1e6:.1f} MB in {seconds:.1f} s; "
            f"{self._responses} responses, {self._engine.generated_tokens} tokens so far"
        )
        return report | {"seconds": seconds}

    def _load(self, body: dict[str, Any]) -> dict[str, float]:
        """Loads and verifies weights, then gives them to the engine.

        Raises:
          InputError: The files or their probe differ from the push.
        """
        try:
            name = str(body["name"])
            label = body["label"]
            if not isinstance(label, str) or "\0" in name:
                raise ValueError("label and name must be texts")
            checksum = str(body["checksum"])
            probe = np.asarray(body["probe"], np.int32)
            expected = np.asarray(body["expected"], np.float32)
            tolerance = float(body["tolerance"])
        except (KeyError, TypeError, ValueError, OverflowError) as err:
            raise RequestError(f"a field of the push is missing or wrong ({err!r})") from err
        if (
            probe.ndim != 1
            or not 1 < probe.size <= PROBE_TOKENS
            or expected.shape != (probe.size - 1,)
        ):
            raise RequestError(f"the probe has 2 to {PROBE_TOKENS} tokens and their scores")
        path = locate_weights(self._settings.folder, name)
        file = path / ADAPTER_TENSORS if self._settings.adapter is not None else path
        with open_verified(file, checksum) as (entries, _):
            size = sum(entry.end - entry.start for entry in entries.values())
        self._label = LOADING
        # The old weights and the cache are freed first: the devices may hold no second ones.
        # Requests that run need them; none begins during a load.
        if not self._running:
            self._engine.free_memory()
        params = self._read_params(path)
        scores = np.asarray(self._score_probe(params, probe))
        difference = float(np.mean(np.abs(scores - expected)))
        # In this form NaN is refused too.
        if not difference <= tolerance:
            raise InputError(
                f"computes with other weights than the learner: the probe's log-probabilities "
                f"differ by {difference:.2g} nats on average (allowed {tolerance:g})",
                key=name,
            )
        # Before the update: a response of the new version may end at once. If the push is not in
        # flight, no request runs.
        self._labels.append(label)
        self._engine.update_weights(params, len(self._labels) - 1, inflight=True)
        if not self._settings.is_shared:
            _delete_path(path)
        return {"bytes": float(size), "probe_difference": difference}

    def _read_params(self, path: pathlib.Path) -> Params:
        config = self._engine.config
        if self._settings.adapter is None:
            return load_file(path, config, dtype=self._settings.dtype, shardings=self._shardings)
        assert self._frozen is not None
        pairs = load_adapter(path, config, self._settings.adapter)
        shardings = lora.detach_adapter(self._shardings)
        return lora.insert_pairs(self._frozen, jax.device_put(pairs, shardings))

    async def _post_generate(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        if self._running >= MAX_REQUESTS:
            raise RequestError(f"{MAX_REQUESTS} requests are under way", status=503)
        # A request that waits for a load starts with the new weights.
        async with self._loading:
            if self._label == LOADING:
                raise RequestError("no weights: the last push failed; push again", status=503)
            self._running += 1
        try:
            prompt, params, images = self._read_request(body)
            for session in _read_sessions(body):
                self._engine.end_session(session)
            completion = await self._engine.generate(prompt, params, images)
        except InputError as err:
            raise RequestError(str(err)) from err
        finally:
            self._running -= 1
            async with self._idle:
                self._idle.notify_all()
        self._responses += 1
        return web.json_response(self._answer(completion))

    def _read_request(
        self, body: dict[str, Any]
    ) -> tuple[np.ndarray, SamplingParams, PromptImages | None]:
        try:
            tokens = np.asarray(body["token_ids"], np.int32)
            sampling = body["sampling_params"]
            session = sampling["session"]
            params = SamplingParams(
                temperature=float(sampling["temperature"]),
                top_p=float(sampling["top_p"]),
                top_k=int(sampling["top_k"]),
                max_tokens=int(sampling["max_tokens"]),
                stop_token_ids=tuple(map(int, sampling["stop_token_ids"])),
                stop_strings=tuple(map(str, sampling["stop"])),
                key=_read_pair(sampling["key"]),
                session=None if session is None else _read_pair(session),
            )
            return tokens, params, self._read_images(tokens, body.get("images", ()))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as err:
            raise RequestError(f"a field is missing or wrong ({err!r})") from err

    def _read_images(self, tokens: np.ndarray, fields: Any) -> PromptImages | None:
        vision = self._engine.config.vision
        if vision is None or not fields:
            return None
        images = []
        for image in fields:
            rows, columns = _read_pair(image["grid"])
            patches = np.frombuffer(base64.b64decode(image["patches"]), np.uint8)
            shape = (rows * columns * MERGE * MERGE, vision.patch_values)
            images.append(ImagePatches(patches.reshape(shape), (rows, columns)))
        layout = locate_images(vision, tokens, [image.grid for image in images])
        return PromptImages(layout, tuple(images), vision.patch_values)

    def _answer(self, completion: Completion) -> dict[str, Any]:
        tokens = completion.tokens.tolist()
        content = [
            {"token_id": token, "logprob": logprob}
            for token, logprob in zip(tokens, completion.logprobs.tolist(), strict=True)
        ]
        versions = completion.versions
        if versions is None:
            versions = np.full(len(tokens), completion.version)
        # The index of the first token of each version.
        starts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist()]
        spans = [
            {"version": self._labels[versions[start]], "start": start, "end": end}
            for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)
        ]
        choice = {
            "token_ids": tokens,
            "logprobs": {"content": content},
            "weight_versions": spans,
            "finish_reason": completion.finish_reason,
        }
        if completion.entropies is not None:
            choice["entropies"] = completion.entropies.tolist()
        return {"choices": [choice]}


def largest_body(vision: VisionConfig | None, max_length: int) -> int:
    """Most bytes of a request full of images."""
    if vision is None:
        return MAX_BODY_BYTES
    patches = max_length * MERGE**2 * vision.patch_values
    # base64 has 4 bytes for 3.
    return MAX_BODY_BYTES + patches * 4 // 3


def _read_pair(value: Any) -> tuple[int, int]:
    """Reads two numbers of 32 bits."""
    first, second = map(int, value)
    if not (0 <= first < 2**32 and 0 <= second < 2**32):
        raise ValueError(f"{value!r:.80} are not two numbers of 32 bits")
    return first, second


def _read_sessions(body: dict[str, Any]) -> list[tuple[int, int]]:
    try:
        return [_read_pair(session) for session in body.get("ended_sessions", ())]
    except (TypeError, ValueError, OverflowError) as err:
        raise RequestError(f"ended_sessions: {err!r}") from err


def _delete_path(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
