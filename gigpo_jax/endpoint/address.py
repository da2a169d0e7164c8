"""Where an endpoint listens."""

import asyncio
import contextlib
import errno
from collections.abc import Iterator

from gigpo_jax.errors import InputError


def check_address(host: str, port: int) -> None:
    """Raises InputError if nobody can listen there now."""

    async def listen() -> None:
        (await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)).close()

    with listening(host, port):
        asyncio.run(listen())


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Turns the errors of a socket into an InputError."""
    try:
        yield
    except (OSError, UnicodeError) as err:
        of_port = getattr(err, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        fix = "choose another port, or 0 for any" if of_port else "choose another host, such as 127.0.0.1"
        raise InputError(
            f"config.serve.host={host!r}, config.serve.port={port}: cannot be listened on "
            f"({getattr(err, 'strerror', None) or err}); {fix}"
        ) from err
