"""The command line: python -m gigpo_jax.inspect RUN [RUN] [--out=FILE | --serve]."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.errors import InputError
from gigpo_jax.inspect.page import render
from gigpo_jax.inspect.serve import server


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m gigpo_jax.inspect",
        description="Shows a run, or two side by side, as one HTML file that works offline: curves, the panel, and the "
        "credit of every step of the saved episodes.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a workdir; a second one for comparison")
    parser.add_argument("--out", type=Path, help="the HTML file; default: RUN/inspect.html")
    parser.add_argument("--serve", action="store_true", help="serve the page on 127.0.0.1 and follow a run in progress")
    parser.add_argument("--port", type=int, default=8080, help="of --serve; 0: any that is free (%(default)s)")
    args = parser.parse_args(argv)
    try:
        if len(args.runs) > 2:
            raise InputError(f"{len(args.runs)} runs: give one or two")
        if args.serve:
            return follow(args.runs, args.port)
        page = render(args.runs)
        path = args.out or args.runs[0] / "inspect.html"
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out={path}: cannot be written ({error.strerror}); choose another file") from error
    except InputError as error:
        print(f"gigpo_jax.inspect: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(f"written: {path} ({len(page) / 1e6:.1f} MB); open it in a browser")
    return 0


def follow(runs: Sequence[Path], port: int) -> int:
    """Serves until Ctrl-C."""
    render(runs)  # a mistake is found before anybody asks
    with server(runs, port) as running:
        print(f"http://127.0.0.1:{running.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
