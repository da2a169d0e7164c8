"""Fuzzes one parser: python -m tests.fuzz NAME --seconds=600 --out=DIR.

Inputs follow the coverage of the code (the package atheris). Each new kind of error is printed with
an input, a file of DIR, and the search goes on. The seconds are CPU seconds. `make fuzz` runs all
parsers.
"""

import argparse
import logging
import os
import random
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gigpo_jax"]):
    from tests.fuzz import search, targets
    from tests.fuzz.mutation import mutate


def main() -> None:
    """Searches for a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", choices=[*targets.TARGETS])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    args = parser.parse_args()
    # Warnings repeat their input.
    logging.disable(logging.CRITICAL)
    target = targets.TARGETS[args.name]
    findings = search.Findings(target, args.out / args.name)
    # Inputs that reach new code are kept there.
    corpus = args.out / "corpus" / args.name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed_{number}").write_bytes(data)
    start = time.process_time()
    executions = 0

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return atheris.Mutate(data, max_size)
        return mutate(data, rng, target.prefix)[:max_size]

    def run(data: bytes) -> None:
        nonlocal executions
        findings.add(data)
        executions += 1
        seconds = time.process_time() - start
        if seconds > args.seconds:
            errors = ", ".join(findings.errors) or "none"
            counts = f"{seconds:.0f} CPU seconds, {executions:,} inputs"
            print(f"{args.name}: {counts}; errors: {errors}", flush=True)
            # libFuzzer takes any exception, SystemExit too, for a finding.
            os._exit(0)

    # Verbosity 1 prints the coverage (cov) as it grows.
    flags = [f"-max_len={search.MAX_SIZE}", "-verbosity=1", "-reduce_inputs=0"]
    command = [sys.argv[0], *flags, "-timeout=300", "-rss_limit_mb=4096", str(corpus)]
    atheris.Setup(command, run, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
