"""What `hvd-dbs doctor --hosts` concludes from what it has seen of the hosts; pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hvd_dbs.cli.doctor.finding import Finding, Level
from hvd_dbs.cli.doctor.host_check import Here, HostFacts
from hvd_dbs.elastic import ssh_keepalive
from hvd_dbs.keras_stack import numbers_of

_NEEDED = ("hvd_dbs", "TensorFlow", "Horovod")
_TALKS = ("hvd_dbs", "Horovod")


def of_hosts(hosts: Sequence[HostFacts], here: Here) -> list[Finding]:
    """What is to be said of the hosts of a job to come."""
    by_host = {one.name: list(_of_host(one, here)) for one in hosts}
    return [*_merge(by_host), *_of_names(hosts), *_of_addresses(hosts)]


def _of_host(host: HostFacts, here: Here) -> Iterator[Finding]:
    if not host.addresses:
        text = "its name is unknown on this machine"
        yield Finding("problem", text, f"add {host.name} to the DNS, or to /etc/hosts")
        return
    if host.is_reached and not host.is_local:
        yield Finding("ok", "ssh gets in without a password")
    if host.is_reached and not host.has_python:
        text = f"there is no {here.python}"
        fix = "install the same environment in the same folder there, or share the folder"
        yield Finding("problem", text, fix)
    elif host.error:
        yield Finding("problem", host.error, _fix_of(host))
    if host.seen is not None:
        yield from _of_versions(host.seen["versions"], here)
    if host.is_reached and not host.is_local:
        yield from _of_orted(host, here)
        if not host.alive_seconds:
            text = (
                "ssh does not notice when its network is cut (no ServerAliveInterval): an elastic "
                "job then waits for it for good"
            )
            yield Finding("warning", text, ssh_keepalive.FIX)


def _fix_of(host: HostFacts) -> str:
    error, name = host.error.lower(), host.name
    if "permission denied" in error:
        return f"ssh-keygen if you have no key yet, then ssh-copy-id {name}"
    if "host key" in error:
        return f"ssh {name}, once by hand, to accept its key"
    if "refused" in error:
        return f"start sshd on {name}, or give its port in ~/.ssh/config"
    if host.has_python:
        return f"run there by hand: ssh {name} PYTHON -c 'import hvd_dbs', with this Python"
    return f"find out why ssh {name} true does not work: network, firewall, sshd, ~/.ssh/config"


def _of_versions(there: Mapping[str, str], here: Here) -> Iterator[Finding]:
    fine = []
    for name, own in here.versions.items():
        version = there.get(name, "")
        if version == own:
            fine += [f"{name} {own}"] if own else []
        elif not version:
            level: Level = "problem" if name in _NEEDED else "warning"
            text = f"{name} is not installed; here it is {own}"
            yield Finding(level, text, f"install {name} {own} there, for {here.python}")
        else:
            level = "problem" if name in _TALKS else "warning"
            text = f"{name} is {version}, and {own or 'not installed'} here"
            yield Finding(level, text, f"install the same {name} on all hosts")
    if fine:
        yield Finding("ok", f"as here: {', '.join(fine)}")


def _of_orted(host: HostFacts, here: Here) -> Iterator[Finding]:
    """Open MPI's daemon, which mpirun starts on the other hosts by ssh."""
    if not here.prefix or "Open MPI" not in here.mpirun:
        return
    found = host.orted.get("PATH") or host.orted.get("prefix", "")
    if not found:
        text = f"Open MPI's orted is neither on PATH nor in {here.prefix}/bin: mpirun fails there"
        fix = f"install Open MPI in {here.prefix} there, or start jobs by horovodrun --gloo"
        yield Finding("problem", text, fix)
    elif numbers_of(found) not in ((), numbers_of(here.mpirun)):
        text = f"{found} does not fit {here.mpirun} of this machine"
        yield Finding("problem", text, "install the same Open MPI on all hosts")
    elif "PATH" not in host.orted and not here.finds_orted:
        text = "orted is not on the PATH that ssh gives a command: mpirun says it is not found"
        prefix = f"--prefix {here.prefix}"
        fix = f'mpirun {prefix}, horovodrun --mpi-args="{prefix}", or horovodrun --gloo'
        yield Finding("warning", text, fix)
    else:
        yield Finding("ok", found)


def _merge(findings: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """One finding, with the names of its hosts, where several have the same."""
    hosts: dict[Finding, list[str]] = {}
    for host, of_host in findings.items():
        for finding in of_host:
            hosts.setdefault(finding, []).append(host)
    return [replace(one, text=f"{_names(of)}: {one.text}") for one, of in hosts.items()]


def _of_names(hosts: Sequence[HostFacts]) -> Iterator[Finding]:
    """Hosts that other hosts do not find by name."""
    known = {host.name for host in hosts if host.addresses}
    unknown: dict[str, list[str]] = {}
    looped: dict[str, list[str]] = {}
    for host in hosts:
        found: Mapping[str, Sequence[str]] = host.seen["addresses"] if host.seen else {}
        for name, addresses in found.items():
            if not addresses and name in known:
                unknown.setdefault(name, []).append(host.name)
            elif addresses and all(
                ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses
            ):
                looped.setdefault(name, []).append(host.name)
    for name, of in unknown.items():
        text = f"{name} is unknown by this name on {_names(of)}"
        yield Finding("warning", text, f"add {name} to the DNS, or to /etc/hosts on all hosts")
    for name, of in looped.items():
        text = f"{name} is a name of the host itself (127.0.0.1) on {_names(of)}"
        yield Finding("problem", text, f"correct {name} in /etc/hosts there")


def _of_addresses(hosts: Sequence[HostFacts]) -> Iterator[Finding]:
    """Interfaces that have the same address on several hosts, such as those of bridges."""
    interfaces = {host.name: _interfaces(host) for host in hosts if host.seen is not None}
    owners: dict[tuple[str, str], list[str]] = {}
    for host, of_host in interfaces.items():
        for name, (address, _) in of_host.items():
            owners.setdefault((name, address), []).append(host)
    for (name, address), of in owners.items():
        if len(of) > 1:
            text = f"{name} has the address {address} on {_names(of)}: MPI may hang on it"
            yield Finding("warning", text, _choose(list(interfaces.values())))


def _interfaces(host: HostFacts) -> dict[str, tuple[str, str]]:
    plain = (host.seen or {}).get("interfaces", {})
    return {str(name): (str(address), str(mask)) for name, (address, mask) in plain.items()}


def _choose(interfaces: Sequence[Mapping[str, tuple[str, str]]]) -> str:
    """How to have jobs use an interface by which all hosts reach each other."""
    names = [
        name
        for name in interfaces[0]
        if all(name in one for one in interfaces)
        and len({one[name][0] for one in interfaces}) == len(interfaces)
    ]
    networks = Counter(
        network
        for one in interfaces
        for network in {
            str(ipaddress.ip_network("/".join(of), strict=False)) for of in one.values()
        }
    )
    shared = [
        network
        for network, count in networks.items()
        if count == len(interfaces) and _num_addresses(interfaces, network) == len(interfaces)
    ]
    name = names[0] if names else "NAME"
    mpi = name if names else (shared[0] if shared else name)
    fix = f"mpirun --mca btl_tcp_if_include {mpi} --mca oob_tcp_if_include {mpi}, "
    fix += f"horovodrun --network-interfaces {name}"
    return fix if names or shared else f"{fix}: a network in which all hosts reach each other"


def _num_addresses(interfaces: Sequence[Mapping[str, tuple[str, str]]], network: str) -> int:
    inside = ipaddress.ip_network(network)
    addresses = {address for one in interfaces for address, _ in one.values()}
    return sum(ipaddress.ip_address(address) in inside for address in addresses)


def _names(hosts: Sequence[str], most: int = 8) -> str:
    return ", ".join(hosts[:most]) + (", ..." if len(hosts) > most else "")
