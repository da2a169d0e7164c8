"""A compiled program of an iteration, for devices that need not be here."""

import re
import time
from dataclasses import dataclass

import jax

from gigpo_jax.core.errors import InputError
from gigpo_jax.run.report import say

FIX = "use more devices (mesh.fsdp, mesh.tensor), fewer batch.rows or engine.slots"


@dataclass(frozen=True)
class Compiled:
    """A program of an iteration.

    Attributes:
      name: update, score, the name of a signal's program, or one of `engine_programs.PROGRAMS`.
      program: Executable of jax.
      seconds: Time of its compilation, s.
      trips: Turns in one run of its loops over microbatches or tokens, and over blocks of the
        cache.
      runs: Runs in an iteration whose episodes have `env.max_steps` steps, with prompts and
        responses of `expected_tokens.FILL` of their limits.
    """

    name: str
    program: jax.stages.Compiled
    seconds: float
    trips: tuple[int, ...]
    runs: float


def compile_program(name: str, lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, float]:
    """Compiles a program; returns it and the seconds it took.

    Raises:
      InputError: the compiler reports that it does not fit.
    """
    say(f"compiling: {name}")
    start = time.perf_counter()
    try:
        return lowered.compile(), time.perf_counter() - start
    except jax.errors.JaxRuntimeError as err:
        # The error has no code: only its text says whether memory was short.
        if "RESOURCE_EXHAUSTED" not in str(err):
            raise
        # Compilers for TPUs name the need and the limit; others get the start of their text.
        usage = re.search(r"Used \S+ of \S+|the total memory .* HBM \(\S+\)", str(err))
        reason = usage[0] if usage else str(err)[:200]
        raise InputError(
            f"does not fit by itself: {reason}", key=f"program '{name}'", fix=FIX
        ) from err
