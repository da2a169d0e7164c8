"""The folder that servers take new weights from: one safetensors file, or one adapter in PEFT's layout, per push."""

import contextlib
import os
import pathlib
import secrets
import shutil
import tempfile
from typing import Any

from gigpo_jax.errors import InputError
from gigpo_jax.models import lora
from gigpo_jax.models.adapter_file import write_adapter
from gigpo_jax.models.checksum import Checksum
from gigpo_jax.models.qwen2 import Params, Qwen2Config
from gigpo_jax.models.weights import write_tensors

PREFIX = "gigpo_jax-weights"
TMPFS = pathlib.Path("/dev/shm")


class WeightStore:
    """Writes weights under a new name each time and deletes the older ones.

    Attributes:
      folder: where they are; readable by this user alone if it was made here.
    """

    def __init__(self, folder: str | os.PathLike[str] = ""):
        """Makes the folder.

        Args:
          folder: shared with the servers; "" makes one in memory (tmpfs) or else in the temporary folder.

        Raises:
          InputError: it cannot be written.
        """
        self._own = not folder
        try:
            if self._own:
                base = TMPFS if os.access(TMPFS, os.W_OK) else pathlib.Path(tempfile.gettempdir())
                if pathlib.Path("/proc/self").exists():
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
        self._written: list[pathlib.Path] = []

    def write(self, config: Qwen2Config, params: Params, *, dtype: Any, name: str) -> str:
        """Writes all parameters; the file before is deleted first, to need the room only once.

        Args:
          config: their shape.
          params: gathered one array at a time; with several processes all must call this, each writes its own file.
          dtype: to store them in.
          name: of the file, never used before.

        Returns:
          The checksum of its tensors.

        Raises:
          OSError: it cannot be written.
        """
        checksum = Checksum()
        write_tensors(self._place(name, keep=0), config, params, dtype=dtype, on_tensor=checksum.add)
        return checksum.hexdigest()

    def write_adapter(self, adapter: Params, *, dtype: Any, name: str) -> str:
        """As `write`, of an adapter of scale 1; the one before stays, for vLLM may read it again for late requests."""
        checksum, rank = Checksum(), lora.rank_of(adapter)
        shape = lora.LoraConfig(rank, float(rank), lora.targets_of(adapter))
        folder = self._place(name, keep=1)
        write_adapter(folder, shape, adapter, base="", dtype=dtype, on_tensor=checksum.add)
        return checksum.hexdigest()

    def _place(self, name: str, keep: int) -> pathlib.Path:
        """Deletes all but the `keep` newest files and returns the path of the next."""
        self._delete(keep)
        self._written.append(self.folder / name)
        return self._written[-1]

    def _delete(self, keep: int) -> None:
        while len(self._written) > keep:
            path = self._written.pop(0)
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """Deletes what was written; may be called twice."""
        self._delete(0)
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)


def _remove_leftovers(base: pathlib.Path) -> None:
    """Deletes folders of killed processes, which hold memory; /proc lists the living ones."""
    for folder in base.glob(f"{PREFIX}.*.*"):
        number = folder.name.split(".")[1]
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and not pathlib.Path("/proc", number).exists():
                shutil.rmtree(folder, ignore_errors=True)
