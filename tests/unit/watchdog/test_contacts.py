"""The address under which ranks send heartbeats, and their network interface."""

from __future__ import annotations

from hvd_dbs.watchdog import contacts
from hvd_dbs.watchdog.contacts import Contact, address_for, host_addresses, interface_addresses
from hvd_dbs.watchdog.process_kill import ProcessName


def contact(host, *addresses):
    return Contact(ProcessName(host, 1, 1), "", list(addresses))


def test_the_address_of_the_job(monkeypatch):
    own = host_addresses()
    assert address_for([contact("a", *own), contact("a", *own)]) == "127.0.0.1"
    spare = contact("b", "192.0.2.7")  # For documentation: a datagram to it goes the default way.
    assert address_for([contact("a", *own), spare]) in [*own, "127.0.0.1"]
    bridge = contact("b", *own, "127.0.0.3")  # Each host has the first of them.
    assert address_for([contact("a", *own, "127.0.0.1"), bridge]) == "127.0.0.1"
    asked = []
    monkeypatch.setattr(contacts, "_route", lambda own, others: asked.append(others))
    assert address_for([contact("a", "10.9.9.9"), contact("b", "10.8.8.8")]) == "10.9.9.9"
    assert asked == [["10.8.8.8"]]
    namesake = Contact(ProcessName("a", 1, 1, "of another machine"), "", ["10.7.7.7"])
    assert address_for([contact("a", "10.9.9.9"), namesake]) == "10.9.9.9"
    assert Contact.from_json(spare.to_json()) == spare


def test_the_interface_of_the_job():
    found = {
        "lo": ["127.0.0.1"],
        "docker0": ["172.17.0.1"],
        "eth0": ["10.0.0.7"],
        "eth1": ["10.1.0.7"],
    }
    for variable, value, expected in [
        ("HOROVOD_GLOO_IFACE", "eth1", ["10.1.0.7"]),
        ("NCCL_SOCKET_IFNAME", "eth", ["10.0.0.7"]),
        ("NCCL_SOCKET_IFNAME", "=eth1", ["10.1.0.7"]),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", []),
        ("OMPI_MCA_btl_tcp_if_include", "10.1.0.0/16", ["10.1.0.7"]),
        ("OMPI_MCA_btl_tcp_if_include", "ib0,eth0", ["10.0.0.7"]),
        ("OMPI_MCA_btl_tcp_if_include", "10.1.0.0/99", []),
        ("HOROVOD_GLOO_IFACE", "ib0", []),
    ]:
        assert interface_addresses(found, {variable: value}) == expected, value
