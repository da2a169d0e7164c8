"""The folder of pushed weights: one safetensors file, or one adapter in PEFT's layout, a push."""

import contextlib
import fcntl
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
from typing import Any, TextIO

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import lora
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.files.adapter_file import write_adapter
from gigpo_jax.models.files.checksum import Checksum
from gigpo_jax.models.files.save_weights import write_tensors
from gigpo_jax.models.files.single_file import map_file

PREFIX = "gigpo_jax-weights"
TMPFS = pathlib.Path("/dev/shm")
LOCK = ".lock"


class WeightStore:
    """Writer of weights that deletes older files; each write has a new name.

    Attributes:
      folder: Folder of the files; only this user can read it if it is `local_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] = ""):
        """Creates the folder.

        Args:
          folder: Folder that is shared with the servers; "": `local_folder`.

        Raises:
          InputError: The folder cannot be written, or belongs to another user.
        """
        self.folder = pathlib.Path(folder).resolve() if folder else local_folder()
        reason = ""
        try:
            self.folder.mkdir(mode=0o777 if folder else 0o700, parents=True, exist_ok=True)
            # Mode bits do not tell whether a mounted folder can be written.
            with tempfile.TemporaryFile(dir=self.folder):
                pass
            status = self.folder.lstat()
            # All users can write to /dev/shm.
            if not folder and (status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode)):
                reason = "belongs to another user or is a link"
        except OSError as err:
            reason = f"cannot be written ({err.strerror})"
        if reason:
            raise InputError(
                f"{self.folder} {reason}",
                key="config.engine.weights_dir",
                value=repr(str(folder)),
                fix="name another folder",
            )
        self._lock: TextIO | None = None
        if not folder:
            self._lock = _lock_name(self.folder)
            _remove_leftovers(self.folder)
        self._paths: list[pathlib.Path] = []

    def write_weights(self, config: DecoderConfig, params: Params, *, dtype: Any, name: str) -> str:
        """Writes all parameters.

        Args:
          config: Shape of the model.
          params: Parameters, gathered one array at a time; with several processes all must call
            this, and each writes its own file.
          dtype: Dtype of the file.
          name: Name of the file, never used before, as from `push_name`.

        Returns:
          The checksum of its tensors.

        Raises:
          OSError: The file cannot be written.
        """
        checksum = Checksum()
        # The previous file is deleted first: the folder may have no room for two.
        path = self._next_path(name, keep=0)
        write_tensors(path, config, params, dtype=dtype, on_tensor=checksum.add)
        return checksum.hexdigest()

    def map_weights(self, config: DecoderConfig, name: str) -> Params:
        """Maps a file of `write_weights` into memory; see `map_file`."""
        return map_file(self.folder / name, config)

    def write_adapter(
        self, config: DecoderConfig, adapter: Params, *, dtype: Any, name: str
    ) -> str:
        """Writes an adapter of scale 1; arguments and result as for `write_weights`."""
        checksum = Checksum()
        rank = lora.adapter_rank(adapter)
        # alpha = R, because the factor is in B already.
        shape = lora.LoraConfig(rank, float(rank), lora.adapter_targets(adapter))
        # vLLM knows the decoder of Qwen3-VL by no other name.
        tower = ""
        if config.vision is not None and config.vision.nests_decoder:
            tower = config.vision.model_type
        # The previous adapter stays: vLLM may read it again for late requests.
        folder = self._next_path(name, keep=1)
        write_adapter(
            folder,
            shape,
            adapter,
            base="",
            numbers=lora.layer_numbers(config),
            tower=tower,
            dtype=dtype,
            on_tensor=checksum.add,
        )
        return checksum.hexdigest()

    def close(self) -> None:
        """Deletes the written files; may be called twice."""
        self._delete_old(0)
        if self._lock is not None:
            pathlib.Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    def _next_path(self, name: str, keep: int) -> pathlib.Path:
        """Deletes old files but the `keep` newest, and returns the path of the next file."""
        self._delete_old(keep)
        path = self.folder / name
        # Entered before it is written, so that a file that was begun is deleted too.
        self._paths.append(path)
        return path

    def _delete_old(self, keep: int) -> None:
        while len(self._paths) > keep:
            _remove(self._paths.pop(0))


def local_folder() -> pathlib.Path:
    """Returns the folder of all weights of this user on this machine.

    It is in memory (tmpfs) or else in the temporary folder. launch/vllm_sidecar.sh has the same.
    """
    base = TMPFS if os.access(TMPFS, os.W_OK) else pathlib.Path(tempfile.gettempdir())
    return base / f"{PREFIX}.{os.getuid()}"


def push_name(text: str) -> str:
    """Returns a new name that begins with this process's number, as the name of its lock does."""
    return f"{os.getpid()}.{text}.{secrets.token_hex(3)}"


def _lock_name(folder: pathlib.Path) -> TextIO:
    """Makes and locks a file named by this process.

    While it is locked, files that begin with the process's number are in use. The system releases
    the lock when the process ends. /proc would not do: containers may share the folder and not
    their processes.
    """
    while True:
        file = (folder / f"{push_name('store')}{LOCK}").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        # Before it was locked, another process may have taken it for a leftover.
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _remove_leftovers(folder: pathlib.Path) -> None:
    """Deletes what killed processes left, which holds memory."""
    # Listed before the locks are tried: whoever has written since is not in the list.
    paths = [path for path in folder.iterdir() if path.name.partition(".")[0].isdigit()]
    living = set()
    for path in folder.glob(f"*{LOCK}"):
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                living.add(path.name.partition(".")[0])
            else:
                path.unlink(missing_ok=True)
    for path in paths:
        if path.name.partition(".")[0] not in living:
            _remove(path)


def _remove(path: pathlib.Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()
