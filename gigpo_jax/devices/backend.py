"""JAX's backend: started once, by whatever runs a config."""

import os

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.machine import THREADS_VARIABLE
from gigpo_jax.devices.program_cache import use_program_cache


def start_backend(config: ConfigDict) -> None:
    """Starts JAX's backend with the config's number of CPU threads and cache of compiled programs.

    Raises:
      InputError: JAX_PLATFORMS names a backend that is not here.
    """
    # XLA splits sums and products between its threads, so their number decides the last bits.
    # It reads the variable once, when the backend starts.
    if config.compilation.cpu_threads:
        os.environ[THREADS_VARIABLE] = str(config.compilation.cpu_threads)
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # jax asserts that some backend started
        from gigpo_jax.core.installation import install_command

        # Without jax's advice for its own installation: the fix below is for this package.
        reason = str(error).partition("\n")[0].partition(" (you may need")[0]
        raise InputError(
            reason or "jax cannot start it on this machine",
            key="JAX_PLATFORMS",
            value=os.environ.get("JAX_PLATFORMS", ""),
            fix=f"install jax for this device ({install_command('gpu')}, or [tpu]), or use "
            "JAX_PLATFORMS=cpu",
        ) from error
    # After the backend: a run that cannot start makes no folder.
    use_program_cache()
