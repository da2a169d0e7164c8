"""Runs a target on one input, and searches for inputs that it has no error for."""

import hashlib
import random
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.mutation import mutate
from tests.fuzz.targets import Target

MAX_SIZE = 1 << 16  # bytes
SLOW_S = 2.0  # CPU seconds of one input
FINDINGS = Path(__file__).with_name("findings")


def try_input(target: Target, data: bytes) -> str:
    """Reads an input; returns the error and its place, or "" if the target's own errors answer it."""
    start = time.process_time()
    try:
        target.read(data)
    except target.errors:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of a Rust library is no Exception.
    except BaseException as error:
        places = traceback.extract_tb(error.__traceback__)
        own = [place for place in places if "gigpo_jax" in place.filename] or places
        return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"
    return "slow" if time.process_time() - start > SLOW_S else ""


def make_inputs(target: Target, rng: random.Random) -> Iterator[bytes]:
    """Yields changes of valid inputs, without end."""
    seeds = target.seeds()
    while True:
        data = mutate(rng.choice(seeds), rng, target.prefix)
        if len(data) <= MAX_SIZE:
            yield data


class Findings:
    """Inputs by their error, saved as they come."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.errors: dict[str, int] = {}
        self._target = target
        self._folder = folder

    def add(self, data: bytes) -> None:
        """Reads an input; the first, and any smaller one, of each error is saved."""
        error = try_input(self._target, data)
        if not error or self.errors.get(error, MAX_SIZE + 1) <= len(data):
            return
        if error not in self.errors:
            print(f"{error}: {data[:300]!r}", flush=True)
        self.errors[error] = len(data)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(error.encode()).hexdigest()[:12]
        (self._folder / name).write_bytes(data)
