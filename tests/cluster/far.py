"""A cable with a long way: frames between a host's port and the switch arrive late, none is lost or overtaken.

`Host.far_link` runs it in the switch's namespace. tc's netem does the same, in kernels that have it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

# From linux/if_tun.h, linux/if_packet.h, asm/socket.h, linux/sockios.h and linux/ethtool.h.
_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000
_ALL, _SOL_PACKET, _IGNORE_OUTGOING, _RCVBUFFORCE = 0x0003, 263, 23, 33
_SIOCETHTOOL, _TX_CHECKSUMS, _TSO, _GSO = 0x8946, 0x17, 0x1F, 0x24
# More than a frame of a link without offloads has; frames read in a row.
_FRAME, _ROW = 4096, 64


def plain(device: str) -> None:
    """Have a host make whole frames with their sums, which it otherwise leaves to a network card. Here no card does it."""
    with socket.socket() as asking:
        for feature in (_TSO, _GSO, _TX_CHECKSUMS):
            off = ctypes.create_string_buffer(struct.pack("II", feature, 0))
            fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sP", device.encode(), ctypes.addressof(off)))


def relay(port: str, switch: str, delay: float) -> None:
    """Join a port to a switch by a way of `delay` seconds, until the process is killed. It says `ready` once frames pass."""
    far = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    device = f"far-{port}"
    fcntl.ioctl(far, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TAP | _NO_PI))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as near:
        near.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        near.bind((port, 0))
        near.setblocking(False)
        # Frames wait here while this process has no core.
        near.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 32_000_000)
        subprocess.run(["ip", "link", "set", device, "txqueuelen", "10000", "master", switch, "up"], check=True)
        print("ready", flush=True)
        # (when it arrives, whether it goes to the switch, frame); the delay is one and the same, so the first is the next.
        under_way: deque[tuple[float, bool, bytes]] = deque()
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready, _, _ = select.select([near, far], [], [], wait)
            for source in ready:
                with suppress(BlockingIOError):
                    for _ in range(_ROW):
                        frame = near.recv(_FRAME) if source is near else os.read(far, _FRAME)
                        under_way.append((time.monotonic() + delay, source is near, frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, to_switch, frame = under_way.popleft()
                # A full queue drops frames, as a real switch does.
                with suppress(BlockingIOError):
                    if to_switch:
                        os.write(far, frame)
                    else:
                        near.send(frame)


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(sys.argv[2])
    else:
        relay(sys.argv[2], sys.argv[3], float(sys.argv[4]))
