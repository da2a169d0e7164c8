"""Client of an engine server (`gigpo engine`): its description, its requests and a push."""

import asyncio
import base64
import logging
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gigpo_jax import __version__
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.remote.protocol import ServerFault, check_served, generate_request
from gigpo_jax.engines.remote.server import PushedWeights, Server, summarise_answer
from gigpo_jax.models.vision.images import PromptImages

KEY = "GIGPO_API_KEY"
PIECE_BYTES = 8 << 20

log = logging.getLogger(__name__)


class JaxServer(Server):
    """A server of `gigpo engine`."""

    key_name = KEY
    fix = "start one with gigpo engine"

    def __init__(
        self,
        *args: Any,
        folder: pathlib.Path | None,
        device: str = "",
        keeps_entropies: bool = False,
    ) -> None:
        """Stores the address; other arguments as for `Server`.

        Args:
          folder: Folder of the weights that are sent; None: the server reads a shared one.
          device: Kind of the learner's devices, for a warning if the server has others; "": no
            warning.
          keeps_entropies: Whether responses have entropies.
        """
        super().__init__(*args)
        self._folder = folder
        self._device = device
        self._keeps_entropies = keeps_entropies
        self._ended_sessions: list[tuple[int, int]] = []

    def end_session(self, session: tuple[int, int]) -> None:
        """Implements `Server.end_session`: the next request carries it, and frees the slot."""
        self._ended_sessions.append(session)

    async def generate(self, body: dict[str, Any]) -> Any:
        """Implements `Server.generate`."""
        ended_sessions = self._ended_sessions
        self._ended_sessions = []
        return await super().generate(body | {"ended_sessions": ended_sessions})

    async def check(
        self, expected: dict[str, Any], *, max_length: int, rank: int, base: str
    ) -> None:
        """Implements `Server.check`."""
        answer = await self.call("GET", "/version")
        if not isinstance(answer, dict) or answer.get("version") != f"gigpo_jax {__version__}":
            raise InputError(
                f"not gigpo engine of version {__version__} (/version says "
                f"{summarise_answer(answer)})",
                key=self.url,
                fix=self.fix,
            )
        description = await self.call("GET", "/describe")
        fixes = {
            "dtype": "make engine.dtype of both the same",
            "adapter_rank": "make model.lora.rank of both the same",
            "weights": "set engine.weights_dir of both, or of none",
            "entropies": "make engine.entropies of both the same",
            "max_model_len": "start it with the learner's sampling.max_prompt_tokens and "
            "sampling.max_response_tokens",
        }
        expected = expected | {
            "adapter_rank": rank,
            "base": base,
            "weights": "folder" if self._folder is None else "pieces",
            "entropies": self._keeps_entropies,
        }
        check_served(self.url, description, expected, max_length=max_length, fixes=fixes)
        if self._device not in ("", description.get("device")):
            log.warning(
                "%s computes on %s, the learner on %s: with rl.old_logprobs=engine a training run "
                "takes the difference for a change of the policy; use rl.old_logprobs=recompute",
                self.url,
                description.get("device"),
                self._device,
            )

    async def push(self, weights: PushedWeights) -> dict[str, float]:
        """Implements `Server.push`."""
        # New weights leave nothing of any session.
        self._ended_sessions.clear()
        if self._folder is not None:
            await self._send_files(self._folder, weights.name)
        # In a thread: the learner may not have computed them yet.
        expected = await asyncio.to_thread(np.asarray, weights.expected)
        body = {
            "label": weights.label,
            "name": weights.name,
            "checksum": weights.checksum,
            "probe": list(weights.probe),
            "expected": expected.tolist(),
            "tolerance": weights.tolerance,
            "inflight": weights.inflight,
        }
        report = await self.call("POST", "/load", body, limit_s=self._limits.push_s)
        try:
            return {name: float(report[name]) for name in ("bytes", "seconds", "probe_difference")}
        except (KeyError, TypeError, ValueError) as err:
            raise ServerFault(f"/load: unexpected answer {summarise_answer(report)}") from err

    async def _send_files(self, folder: pathlib.Path, name: str) -> None:
        """Sends the files of a push in pieces, all of them within the limit of one step."""
        limit_s = self._limits.push_s
        try:
            async with asyncio.timeout(limit_s):
                for path, offset, piece in read_pieces(folder, name):
                    await self.call(
                        "PUT",
                        f"/weights/{path}?offset={offset}&crc32={zlib.crc32(piece):08x}",
                        data=piece,
                        # The limit of all pieces together always ends first.
                        limit_s=2 * limit_s,
                    )
        except TimeoutError as err:
            raise ServerFault(f"{name}: not sent within {limit_s:g} s") from err
        # The next push deletes the files of this one.
        except OSError as err:
            raise ServerFault(f"{name}: cannot be read ({err.strerror})") from err


def read_pieces(folder: pathlib.Path, name: str) -> Iterator[tuple[str, int, bytes]]:
    """Yields the pieces of a file or folder: path below `folder`, index of first byte, bytes."""
    path = folder / name
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            while piece := stream.read(PIECE_BYTES):
                yield str(file.relative_to(folder)), stream.tell() - len(piece), piece


def jax_request(
    tokens: np.ndarray,
    params: SamplingParams,
    stop_ids: Sequence[int],
    images: PromptImages | None = None,
) -> dict[str, Any]:
    """Returns the body of a request for one response, from arguments as `generate_request` has."""
    body = generate_request(tokens, params, stop_ids)
    # The whole key: a seed of vLLM has one bit less.
    body["sampling_params"] |= {"key": params.key, "session": params.session}
    if images is not None:
        body["images"] = [
            {"grid": image.grid, "patches": base64.b64encode(image.patches.tobytes()).decode()}
            for image in images.images
        ]
    return body
