"""Where new weights wait for the servers: one safetensors file at a time, in a folder or behind an address."""

import contextlib
import hmac
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from aiohttp import web

from gigpo_jax.errors import InputError
from gigpo_jax.models.adapter_file import write_adapter
from gigpo_jax.models.qwen2 import Params, Qwen2Config, param_count
from gigpo_jax.models.safetensors_file import OnTensor
from gigpo_jax.models.weights import write_tensors
from gigpo_jax.sampling.vllm.worker.adapter import STAGED
from gigpo_jax.sampling.vllm.worker.extension import SUFFIX, Checksum

PREFIX = "gigpo_jax-weights"
TMPFS = pathlib.Path("/dev/shm")


class WeightStore:
    """Writes the newest weights and keeps nothing older.

    Attributes:
      folder: where the files are; only this user can read it if it was made here.
    """

    def __init__(self, folder: str | os.PathLike[str] = ""):
        """Makes the folder.

        Args:
          folder: shared with the servers; "" makes one in memory (tmpfs) or, without one, in the temporary folder.

        Raises:
          InputError: it cannot be written.
        """
        self._own = not folder
        try:
            if self._own:
                base = TMPFS if os.access(TMPFS, os.W_OK) else pathlib.Path(tempfile.gettempdir())
                _remove_leftovers(base)
                self.folder = base / f"{PREFIX}.{os.getpid()}.{secrets.token_hex(4)}"
                self.folder.mkdir(mode=0o700)
            else:
                self.folder = pathlib.Path(folder).resolve()
                self.folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.folder):
                    pass
        except OSError as err:
            raise InputError(
                f"config.engine.vllm.weights_dir={str(folder)!r}: cannot be written ({err.strerror})"
            ) from err
        self._newest: pathlib.Path | None = None

    def write(self, config: Qwen2Config, params: Params, *, dtype: Any, name: str) -> tuple[pathlib.Path, str]:
        """Writes parameters under a name never used before, and deletes the file before.

        Args:
          config: their shape.
          params: gathered one array at a time; with several processes all must call this, each writes its own file.
          dtype: to store them in.
          name: of the file, without its ending.

        Returns:
          The file and the checksum of its tensors.

        Raises:
          InputError: there is no room for it.
        """
        needed = param_count(config) * np.dtype(dtype).itemsize
        return self._write(
            name, needed, lambda file, add: write_tensors(file, config, params, dtype=dtype, on_tensor=add)
        )

    def write_adapter(self, adapter: Params, *, dtype: Any, name: str) -> tuple[pathlib.Path, str]:
        """As `write`, of an adapter alone."""
        needed = sum(leaf.size for leaf in jax.tree.leaves(adapter)) * np.dtype(dtype).itemsize
        return self._write(name, needed, lambda file, add: write_adapter(file, adapter, dtype=dtype, on_tensor=add))

    def _write(
        self, name: str, needed: int, write: Callable[[pathlib.Path, OnTensor], None]
    ) -> tuple[pathlib.Path, str]:
        self.discard()
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise InputError(
                f"config.engine.vllm.weights_dir: {self.folder} has {free / 2**30:.1f} GiB free, a push needs "
                f"{needed / 2**30:.1f}; name a folder with more room"
            )
        target, checksum = self.folder / (name + SUFFIX), Checksum()
        temporary = target.with_suffix(".part")
        try:
            write(temporary, checksum.add)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        self._newest = target
        return target, checksum.hexdigest()

    def discard(self) -> None:
        """Deletes the newest file; the servers have it by then."""
        if self._newest is not None:
            self._newest.unlink(missing_ok=True)
        self._newest = None

    def close(self, servers: Iterable[str] = ()) -> None:
        """Deletes what is left, and the adapters that servers have put there; may be called twice.

        Args:
          servers: `Server.staged_as` of those that ended with this run.
        """
        self.discard()
        for name in servers:
            for folder in [*self.folder.glob(f"{STAGED}.{name}.*"), *self.folder.glob(f".{STAGED}.{name}.*")]:
                shutil.rmtree(folder, ignore_errors=True)
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)


async def serve(store: WeightStore, host: str, port: int, key: str) -> tuple[web.AppRunner, int]:
    """Lets servers that share no folder pull the newest file over HTTP, with the key as bearer token.

    Args:
      store: whose files.
      host: address to listen on.
      port: 0 for any.
      key: who sends another one gets 401.

    Returns:
      What `cleanup()` ends, and the port.

    Raises:
      InputError: the address cannot be used.
    """

    async def send(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return web.Response(status=401)
        name = request.match_info["name"]
        if store._newest is None or name != store._newest.name:
            return web.Response(status=404, text="not the newest weights")
        return web.FileResponse(store._newest)

    application = web.Application()
    application.router.add_get("/weights/{name}", send)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as err:
        await runner.cleanup()
        raise InputError(
            f"config.engine.vllm.weights_host={host!r}: cannot listen on port {port} ({err.strerror})"
        ) from err
    return runner, runner.addresses[0][1]


def _remove_leftovers(base: pathlib.Path) -> None:
    """Folders of processes that were killed hold memory until somebody deletes them."""
    for folder in base.glob(f"{PREFIX}.*.*"):
        number = folder.name.split(".")[1]
        with contextlib.suppress(OSError):
            if number.isdigit() and folder.stat().st_uid == os.getuid() and not _alive(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
