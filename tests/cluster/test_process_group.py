"""Which network interface the workers of a run take."""

from __future__ import annotations

import psutil

from pipeline.cluster.process_group import interface_with


def test_the_interface_is_the_one_with_the_address_of_the_node() -> None:
    for name, held in psutil.net_if_addrs().items():
        for one in held:
            chosen = interface_with(one.address)
            assert chosen is not None
            assert one.address in {other.address for other in psutil.net_if_addrs()[chosen]}, name
    assert interface_with("127.0.0.1") is not None
    assert interface_with("203.0.113.77") is None
