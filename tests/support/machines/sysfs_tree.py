"""Writes a Topology as a kernel's files: the inverse of discovery.

Besides what discovery reads, the files that lstopo reads are written, as on a real machine. MIG
instances have no file: `nvml_report` reports them as NVML would.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from affinityd.cpuset import format_list
from affinityd.discovery import open_tree
from affinityd.discovery.nvml import NvmlGpu, NvmlReport
from affinityd.discovery.tree import Tree
from affinityd.topology.model import SLINGSHOT, Core, Gpu, Nic, RdmaPort, Topology

#: GPU vendor → PCI vendor and class; any other name is a PCI vendor's; the class is 0x120000.
GPU_CLASSES = {
    "nvidia": ("10de", "0x030200"),
    "amd": ("1002", "0x038000"),
    "huawei": ("19e5", "0x120000"),
}

NIC_CLASSES = {"ethernet": "0x020000", "infiniband": "0x020700", "network": "0x028000"}

BRIDGE_CLASS = "0x060400"


def write_tree(topology: Topology, root: Path) -> Path:
    """Write `sys` and `proc` of the machine below `root`, and return `root`."""
    width = _width(topology)
    _write_cpus(topology, root / "sys/devices/system/cpu", width)
    _write_nodes(topology, root / "sys/devices/system/node", width)
    for gpu in topology.gpus:
        vendor, code = GPU_CLASSES.get(gpu.vendor, (gpu.vendor, "0x120000"))
        _write_device(topology, root, gpu, code, gpu.pci_id or vendor)
        for file in gpu.device_files if gpu.vendor not in GPU_CLASSES else ():
            folder, name = file.replace("drm:", "drm/renderD").replace(":", "/accel").split("/")
            (root / f"sys/bus/pci/devices/{gpu.pci_bus_id}/{folder}/{name}").mkdir(parents=True)
    for nic in topology.nics:
        _write_device(topology, root, nic, NIC_CLASSES[nic.kind], "15b3:101b")
    for nic in topology.nics:
        write_interfaces(root, nic)
    _write_nvidia_driver(topology, root / "proc/driver/nvidia/gpus")
    _write_kfd(topology, root)
    return root


def _width(topology: Topology) -> int:
    return max(topology.possible | topology.online) + 1


def nvml_report(topology: Topology) -> NvmlReport:
    """Return NVML's report on the machine's NVIDIA GPUs, MIG instances included."""
    return NvmlReport(
        gpus=tuple(
            NvmlGpu(
                index=gpu.index,
                uuid=gpu.uuid,
                pci_bus_id=gpu.pci_bus_id,
                minor=gpu.minor,
                model=gpu.model,
                mig=tuple(instance.uuid for instance in gpu.mig),
                node_cpus=topology.cpus_of_node(gpu.numa_node),
            )
            for gpu in topology.gpus
            if gpu.vendor == "nvidia"
        ),
        driver_version="570.00",
    )


def tree_of(
    root: Path, files: Mapping[str, object], links: Mapping[str, str] | None = None
) -> Tree:
    """Write a machine with only these files and links below `root`, and open it."""
    for path, text in files.items():
        put(root / path, text)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return open_tree(str(root))


def files_of(folder: str, text: str) -> dict[str, object]:
    """Return the files below a folder from a text like `path=text; path=text`."""
    pairs = (line.strip().partition("=") for line in text.split(";") if line.strip())
    return {f"{folder}/{path}": content for path, _, content in pairs}


def pci_devices(code: str, vendor: str, *addresses: str) -> dict[str, object]:
    """Return the files of PCI devices of a class and a vendor."""
    texts = (f"{it}/class={code}; {it}/vendor={vendor};" for it in addresses)
    return files_of("sys/bus/pci/devices", "".join(texts))


def put(path: Path, text: object) -> None:
    """Write a kernel file, and its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def _put(folder: Path, **files: object) -> None:
    for name, text in files.items():
        put(folder / name, text)


def kernel_mask(cpus: Iterable[int], width: int) -> str:
    """Write CPUs as the kernel's %*pb does: words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    words = range((width - 1) // 32, -1, -1)
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in words)


def _put_cpus(folder: Path, cpus: Iterable[int], width: int, names: str) -> None:
    """Write CPUs as a list and as a mask, into the files of these two names."""
    listed, mask = names.split()
    cpus = sorted(cpus)
    _put(folder, **{listed: format_list(cpus), mask: kernel_mask(cpus, width)})


def _write_cpus(topology: Topology, folder: Path, width: int) -> None:
    every = topology.possible | topology.online
    listed = format_list(every)
    _put(folder, online=format_list(topology.online), present=listed, possible=listed)
    for cpu in every:
        put(folder / f"cpu{cpu}/online", int(cpu in topology.online))
    packages: dict[int | None, list[int]] = {}
    llcs: dict[tuple[int | None, int], list[int]] = {}
    for core in topology.cores:
        packages.setdefault(core.package, []).extend(core.cpus)
        llcs.setdefault((core.node, core.llc), []).extend(core.cpus)
    for number, core in enumerate(topology.cores):
        for cpu in core.cpus:
            home = folder / f"cpu{cpu}"
            _write_core(home / "topology", core, number, packages[core.package], width)
            _write_caches(home / "cache", core.cpus, llcs[core.node, core.llc], width)


def _write_core(folder: Path, core: Core, number: int, package: list[int], width: int) -> None:
    _put_cpus(folder, core.cpus, width, "thread_siblings_list thread_siblings")
    _put_cpus(folder, package, width, "core_siblings_list core_siblings")
    _put(folder, core_id=number, physical_package_id=-1 if core.package is None else core.package)
    if core.die is not None:
        put(folder / "die_id", core.die)


def _write_caches(folder: Path, core: Sequence[int], llc: Sequence[int], width: int) -> None:
    caches = [
        *((1, "Data", "32K", core), (1, "Instruction", "32K", core)),
        *((2, "Unified", "512K", core), (3, "Unified", "16384K", llc)),
    ]
    for index, (level, kind, size, cpus) in enumerate(caches):
        _put_cpus(folder / f"index{index}", cpus, width, "shared_cpu_list shared_cpu_map")
        _put(folder / f"index{index}", level=level, type=kind, size=size, id=min(cpus))


def _write_nodes(topology: Topology, folder: Path, width: int) -> None:
    nodes = {node.number: node for node in topology.nodes if node.number is not None}
    if not nodes:
        return
    _put(folder, online=format_list(nodes), possible=format_list(nodes))
    for number, node in nodes.items():
        home = folder / f"node{number}"
        _put_cpus(home, topology.cpus_of_node(number), width, "cpulist cpumap")
        put(home / "distance", " ".join(str(it) for _, it in sorted(node.distances.items())))
        if node.memory_bytes is not None:
            lines = {"MemTotal": node.memory_bytes // 1024, "MemFree": 1024}
            texts = (f"Node {number} {key}: {size:>15} kB" for key, size in lines.items())
            put(home / "meminfo", "\n".join(texts))


def _write_device(topology: Topology, root: Path, device: Gpu | Nic, code: str, ids: str) -> None:
    """Write a device at its place on the bus, and its bridges; `ids` is `vendor[:device]`."""
    host, *path = device.pci_path or (device.pci_bus_id,)
    if path:
        host = host if host.startswith("pci") else f"pci:{host}"
    folder = root / "sys/devices"
    for part in (host, *path):
        folder /= part
        if not part.startswith("pci"):
            put(folder / "class", code if part == device.pci_bus_id else BRIDGE_CLASS)
            link(root / "sys/bus/pci/devices" / folder.name, folder)
    vendor, _, number = ids.partition(":")
    put(folder / "vendor", f"0x{vendor}")
    if number:
        put(folder / "device", f"0x{number}")
    put(folder / "numa_node", -1 if device.numa_node is None else device.numa_node)
    if device.numa_node is not None:
        cpus = topology.cpus_of_node(device.numa_node)
        _put_cpus(folder, cpus, _width(topology), "local_cpulist local_cpus")


def _write_nvidia_driver(topology: Topology, folder: Path) -> None:
    for gpu in topology.gpus:
        if gpu.vendor == "nvidia":
            fields = {
                "Model": gpu.model or "",
                "IRQ": 255,
                "GPU UUID": gpu.uuid or "GPU-????????-????-????-????-????????????",
                "Bus Location": gpu.pci_bus_id,
                "GPU Excluded": "No",
            }
            if gpu.minor is not None:
                fields["Device Minor"] = gpu.minor
            text = "\n".join(f"{name}: \t {value}" for name, value in fields.items())
            put(folder / gpu.pci_bus_id / "information", text)
        if gpu.is_divided:
            instance = folder.parent / f"capabilities/gpu{gpu.minor}/mig/gi1"
            instance.mkdir(parents=True)


def _write_kfd(topology: Topology, root: Path) -> None:
    """Write KFD's nodes: first those of CPUs, then the GPUs by index."""
    gpus = [gpu for gpu in topology.gpus if gpu.vendor == "amd"]
    if not gpus:
        return
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    put(folder / "0/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0")
    for node, gpu in enumerate(gpus, 1):
        if gpu.model:
            put(root / f"sys/bus/pci/devices/{gpu.pci_bus_id}/product_name", gpu.model)
        domain, bus, rest = gpu.pci_bus_id.split(":")
        device, function = rest.split(".")
        properties = {
            "cpu_cores_count": 0,
            "simd_count": 440,
            "vendor_id": 0x1002,
            "location_id": int(bus, 16) << 8 | int(device, 16) << 3 | int(function),
            "domain": int(domain, 16),
            "drm_render_minor": gpu.render_minor or 0,
            "unique_id": int((gpu.uuid or "GPU-0").removeprefix("GPU-"), 16),
        }
        put(folder / f"{node}/properties", "\n".join(f"{k} {v}" for k, v in properties.items()))


def write_interfaces(root: Path, nic: Nic) -> None:
    """Write the interfaces of an adapter whose PCI device has been written."""
    home = root / f"sys/bus/pci/devices/{nic.pci_bus_id}"
    devices = {port.device: port for port in nic.ports}
    for name in nic.names:
        port = devices.get(name)
        is_slingshot = port is not None and port.link_layer == SLINGSHOT
        is_rdma = port is not None or "_" in name
        kind = "cxi" if is_slingshot else "infiniband" if is_rdma else "net"
        folder = home / kind / name
        folder.mkdir(parents=True)
        if port is not None:
            link(root / f"sys/class/{kind}/{name}", folder)
        if kind == "net" and nic.bond is not None:
            put(root / f"sys/class/net/{nic.bond}/bonding/mode", "802.3ad 4")
            link(folder / "master", root / f"sys/class/net/{nic.bond}")
    for port in nic.ports:
        for path, text in files_of_port(port):
            put(home / path, text)
        if port.link_layer == SLINGSHOT:
            link(home / f"cxi/{port.device}/device", home)
        else:
            number = port.device[len(port.device.rstrip("0123456789")) :]
            put(home / f"infiniband_verbs/uverbs{number}/ibdev", port.device)
            link(home / f"infiniband/{port.device}/device", home)
    if nic.physical is not None:
        link(home / "physfn", home.parent / nic.physical)


def files_of_port(port: RdmaPort) -> Iterator[tuple[str, str]]:
    """Yield the files of a port below its PCI device, and their texts."""
    if port.link_layer == SLINGSHOT:
        yield "port/link", "up" if port.is_active else "down"
        if port.gbps is not None:
            yield "port/speed", f"BS_{port.gbps}G"
        return
    folder = f"infiniband/{port.device}/ports/{port.number}"
    yield f"{folder}/state", "4: ACTIVE" if port.is_active else "1: DOWN"
    if port.gbps is not None:
        yield f"{folder}/rate", f"{port.gbps} Gb/sec (4X NDR)"
    yield f"{folder}/link_layer", port.link_layer or "Unknown"
    if port.netdev is not None:
        yield f"{folder}/gid_attrs/ndevs/0", port.netdev


def link(place: Path, target: Path) -> None:
    if not place.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        home = place.parent.resolve()
        place.symlink_to(os.path.relpath(target.resolve(), home))
