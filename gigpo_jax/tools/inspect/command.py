"""The command line: gigpo inspect RUN [RUN] [--out=FILE | --serve | --text=N]."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.core.files import replace_file
from gigpo_jax.tools.inspect.page import render_page
from gigpo_jax.tools.inspect.serve import make_server
from gigpo_jax.tools.inspect.text import format_episodes


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or serves the page; returns the exit status, 0 if done, 2 for bad input."""
    args = _make_parser().parse_args(argv)
    try:
        if len(args.runs) > 2:
            raise InputError(f"{len(args.runs)} given", key="RUN", fix="give one or two")
        if args.text:
            print(format_episodes(args.runs[0], args.text))
        elif args.serve:
            serve_page(args.runs, args.port)
        else:
            write_page(args.runs, args.out or args.runs[0] / "inspect.html")
    except InputError as error:
        message = " ".join(str(error).split())
        print(f"gigpo_jax inspect: {escape_controls(message)}", file=sys.stderr)
        return 2
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gigpo inspect",
        description=(
            "Shows a run, or two side by side, as one HTML file that works offline: curves, the "
            "panel, and the credit of every step of the saved episodes."
        ),
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a workdir; a second one for comparison"
    )
    parser.add_argument("--out", type=Path, help="the HTML file; default: RUN/inspect.html")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve the page on 127.0.0.1 and follow a run in progress",
    )
    parser.add_argument(
        "--text",
        type=int,
        default=0,
        metavar="N",
        help="print the first N episodes of the newest saved rollouts, or of a file of them",
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="port of --serve; 0: any free one (%(default)s)"
    )
    return parser


def write_page(runs: Sequence[Path], path: Path) -> None:
    """Writes the page of one run or two; the file appears whole or not at all."""
    page = render_page(runs)
    try:
        with replace_file(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    # A full disk or a folder without permission; `replace_file` has removed the draft.
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            key="--out",
            value=path,
            fix="choose another file",
        ) from error
    print(f"written: {path} ({len(page) / 1e6:.1f} MB); open it in a browser")


def serve_page(runs: Sequence[Path], port: int) -> None:
    """Serves the page until Ctrl-C."""
    # An unreadable run is reported here, not to the first reader of the page.
    render_page(runs)
    with make_server(runs, port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
