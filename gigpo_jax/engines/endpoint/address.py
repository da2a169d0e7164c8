"""The address on which an endpoint listens."""

import asyncio
import contextlib
import errno
from collections.abc import Iterator

from gigpo_jax.core.errors import InputError


def check_address(host: str, port: int) -> None:
    """Checks that a server can listen on an address now.

    Raises:
      InputError: The address cannot be used.
    """

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port)
        server.close()

    with name_address_errors(host, port):
        asyncio.run(listen())


@contextlib.contextmanager
def name_address_errors(host: str, port: int) -> Iterator[None]:
    """Turns socket errors into an InputError with the config's keys."""
    try:
        yield
    except (OSError, UnicodeError) as err:
        fix = "choose another host, such as 127.0.0.1"
        # EACCES: ports below 1024 need privileges on most systems.
        if getattr(err, "errno", None) in (errno.EADDRINUSE, errno.EACCES):
            fix = "choose another port, or 0 for any"
        raise InputError(
            f"cannot be listened on ({getattr(err, 'strerror', None) or err})",
            key=f"config.serve.host={host!r}, config.serve.port",
            value=port,
            fix=fix,
        ) from err
