"""Checks that an environment keeps its promises: `python -m gigpo_jax.envs.check NAME --split train`."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from gigpo_jax.env_bridge.checks.conformance import ConformanceError, check_environment
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gigpo_jax.envs.check", description=__doc__)
    parser.add_argument("name", help="an environment of the registry, or module:NAME")
    parser.add_argument("--split", default="train")
    parser.add_argument(
        "--option", action="append", type=_option, default=[], metavar="KEY=VALUE", help="for the builder; repeatable"
    )
    parser.add_argument("--tasks", type=int, default=4, help="how many tasks are played")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a call may take (to build: 60)")
    args = parser.parse_args(argv)
    options = dict(args.option)
    try:
        if args.tasks < 1 or args.limit <= 0:
            raise InputError(f"--tasks {args.tasks} --limit {args.limit:g}: give at least one task and some time")
        entry = registry.spec(args.name)
        expert = partial(registry.make_expert, args.name) if entry.expert else None
        make = partial(registry.make, args.name, **options)
        limits = {"tasks": args.tasks, "steps": entry.max_steps, "limit_s": args.limit}
        held = check_environment(make, split=args.split, make_expert=expert, **limits)
    except InputError as err:
        print(err, file=sys.stderr)
        return 2
    except ConformanceError as err:
        print(f"{args.name} breaks a promise: {err}", file=sys.stderr)
        return 1
    print("\n".join("holds: " + line for line in held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
