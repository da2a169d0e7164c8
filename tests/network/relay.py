"""A cable that delays and loses packets: `relay.py ENDS DELAY_MS LOSS SEED`, for kernels without netem.

Makes two TAP devices, named by ENDS with a comma, and carries frames between them until it is
ended. Their devices have no offloads, so a frame is one packet with its checksum.
"""

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000  # frames alone, without a header of the driver
MAX_FRAME = 1 << 16


def open_tap(name: str) -> int:
    """Makes a TAP device; its frames are read and written at the returned descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def carry(
    ends: tuple[int, int], delay_s: float, loss: float, random_numbers: random.Random
) -> None:
    """Carries frames for ever; each way has this delay."""
    other_end = dict(zip(ends, reversed(ends), strict=True))
    # In order: all frames have one delay. Time of arrival, end, frame.
    frames: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, frames[0][0] - time.monotonic()) if frames else None
        for end in select.select(ends, (), (), wait_s)[0]:
            frame = os.read(end, MAX_FRAME)
            if random_numbers.random() >= loss:
                frames.append((time.monotonic() + delay_s, other_end[end], frame))
        while frames and frames[0][0] <= time.monotonic():
            _, end, frame = frames.popleft()
            # EIO while a device is down: a cable without a host loses frames.
            with contextlib.suppress(OSError):
                os.write(end, frame)


if __name__ == "__main__":
    names, delay_ms, loss, seed = sys.argv[1:]
    first, second = map(open_tap, names.split(","))
    print("ready", flush=True)
    carry((first, second), float(delay_ms) / 1000, float(loss), random.Random(int(seed)))
