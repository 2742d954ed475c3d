"""The figures of a GPU by the library of its driver, through ctypes: copies.

Sources: cuda.h (CUDA driver API; names with _v2 are those that its macros stand for) and
hip_runtime_api.h. Both libraries have the same parameters where the names agree.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from threading import Thread
from typing import NamedTuple

from affinityd.measure.document import (
    OF_GPUS,
    TO_ALL_DEVICES,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
    Figure,
)
from affinityd.measure.memory import Buffer, NotMeasuredError, median_seconds
from affinityd.topology.model import Gpu


class Api(NamedTuple):
    """Possible names of a driver's library, and the names of its functions."""

    libraries: Sequence[str]
    init: str
    find: str
    allocate: str
    free: str
    register: str
    unregister: str
    to_device: str
    to_host: str
    synchronize: str


CUDA = Api(
    ("libcuda.so.1",),
    *("cuInit", "cuDeviceGetByPCIBusId", "cuMemAlloc_v2", "cuMemFree_v2"),
    *("cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"),
    "cuCtxSynchronize",
)
HIP = Api(
    (
        *("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
        "/opt/rocm/lib/libamdhip64.so",
    ),
    *("hipInit", "hipDeviceGetByPCIBusId", "hipMalloc", "hipFree"),
    *("hipHostRegister", "hipHostUnregister", "hipMemcpyHtoD", "hipMemcpyDtoH"),
    "hipDeviceSynchronize",
)
PORTABLE = 1  #: CU_MEMHOSTREGISTER_PORTABLE, hipHostRegisterPortable
APIS: Mapping[str, Api] = {"nvidia": CUDA, "amd": HIP}  #: by Gpu.vendor


class Driver:
    """A vendor's library, loaded and initialized."""

    def __init__(self, api: Api) -> None:
        self.api = api
        for name in api.libraries:
            with suppress(OSError):
                self._library = ctypes.CDLL(name)
                self._contexts: dict[int, ctypes.c_void_p] = {}
                self.call(api.init, 0)
                return
        raise NotMeasuredError(f"{api.libraries[0]} cannot be loaded")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns an error code. Raises NotMeasuredError."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NotMeasuredError(f"{self._library._name} has no {name}") from None  # noqa: SLF001
        code = int(function(*arguments))
        if code:
            raise NotMeasuredError(f"{name}: {self._error_name(code)}")

    def _error_name(self, code: int) -> str:
        name = ctypes.c_char_p()
        with suppress(AttributeError):  # a library without it
            if self.api is CUDA:
                self._library.cuGetErrorName(code, ctypes.byref(name))
            else:
                self._library.hipGetErrorName.restype = ctypes.c_char_p
                name.value = self._library.hipGetErrorName(code)
        return (name.value or b"error %d" % code).decode(errors="replace")

    def use(self, pci_bus_id: str) -> None:
        """Make a GPU this thread's current one, until the process ends. Raises NotMeasuredError."""
        number = ctypes.c_int()
        self.call(self.api.find, ctypes.byref(number), pci_bus_id.encode())
        device = number.value
        if self.api is HIP:
            self.call("hipSetDevice", device)
            return
        if device not in self._contexts:  # the primary one, as CUDA's runtime has it
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self.call("cuCtxSetCurrent", self._contexts[device])

    @contextmanager
    def allocated(self, size: ctypes.c_size_t) -> Iterator[ctypes.c_void_p]:
        """Yield memory of the current GPU. Raises NotMeasuredError."""
        memory = ctypes.c_void_p()
        self.call(self.api.allocate, ctypes.byref(memory), size)
        try:
            yield memory
        finally:
            with suppress(NotMeasuredError):
                self.call(self.api.free, memory)

    @contextmanager
    def registered(self, host: ctypes.c_void_p, size: ctypes.c_size_t) -> Iterator[None]:
        """Lock a buffer's pages, for all GPUs of this driver. Raises NotMeasuredError."""
        self.call(self.api.register, host, size, PORTABLE)
        try:
            yield
        finally:
            with suppress(NotMeasuredError):
                self.call(self.api.unregister, host)


AT_ONCE = 0.1  #: seconds for which all GPUs copy


@cache
def _driver(vendor: str) -> Driver:
    if vendor not in APIS:
        raise NotMeasuredError(f"no library is known to copy to a GPU of {vendor}")
    return Driver(APIS[vendor])


def gpu_figures(gpu: Gpu, node: int, buffer: Buffer) -> Iterator[Figure]:
    """Yield a figure for each of OF_GPUS; a failed call gives one without a value."""
    host, size = buffer
    figure = partial(_figure, gpu, node)
    with ExitStack() as stack:
        try:
            driver = _driver(gpu.vendor)
            driver.use(gpu.pci_bus_id)
            memory = stack.enter_context(driver.allocated(size))
        except NotMeasuredError as error:
            yield from (missing(gpu, node, quantity, error) for quantity in OF_GPUS)
            return

        def rate(copy: str, to: ctypes.c_void_p, source: ctypes.c_void_p) -> float:
            def copy_and_wait() -> None:
                driver.call(copy, to, source, size)
                driver.call(driver.api.synchronize)

            copy_and_wait()  # the first one allocates
            return size.value / median_seconds(copy_and_wait)

        to_device = partial(rate, driver.api.to_device, memory, host)
        to_host = partial(rate, driver.api.to_host, host, memory)
        yield figure(TO_DEVICE_PAGEABLE, to_device)
        yield figure(TO_HOST_PAGEABLE, to_host)
        try:
            stack.enter_context(driver.registered(host, size))
        except NotMeasuredError as error:
            yield from (missing(gpu, node, quantity, error) for quantity in (TO_DEVICE, TO_HOST))
        else:
            yield figure(TO_DEVICE, to_device)
            yield figure(TO_HOST, to_host)


def figures_at_once(gpus: Sequence[Gpu], node: int, buffer: Buffer) -> Iterator[Figure | None]:
    """Yield None when the copies can start, then each GPU's figure, of a thread for each GPU."""
    host, size = buffer
    figures: dict[str, Figure] = {}

    def copy(gpu: Gpu, driver: Driver, memory: ctypes.c_void_p) -> None:
        def rate() -> float:
            driver.use(gpu.pci_bus_id)
            copies, began = 0, time.perf_counter()
            while copies == 0 or time.perf_counter() < began + AT_ONCE:
                driver.call(driver.api.to_device, memory, host, size)
                copies += 1
            return copies * size.value / (time.perf_counter() - began)

        figures[gpu.pci_bus_id] = _figure(gpu, node, TO_ALL_DEVICES, rate)

    with ExitStack() as stack:
        threads = []
        locked: set[str] = set()
        for gpu in gpus:
            try:
                driver = _driver(gpu.vendor)
                driver.use(gpu.pci_bus_id)
                memory = stack.enter_context(driver.allocated(size))
                if gpu.vendor not in locked:
                    stack.enter_context(driver.registered(host, size))
                    locked.add(gpu.vendor)
                driver.call(driver.api.to_device, memory, host, size)  # the first one allocates
                threads.append(Thread(target=copy, args=[gpu, driver, memory], daemon=True))
            except NotMeasuredError as error:  # noqa: PERF203 - each GPU by itself
                figures[gpu.pci_bus_id] = missing(gpu, node, TO_ALL_DEVICES, error)
        yield None
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    yield from figures.values()


def _figure(gpu: Gpu, node: int, quantity: str, measure: Callable[[], float]) -> Figure:
    try:
        return Figure(quantity, node, None, gpu.pci_bus_id, measure())
    except NotMeasuredError as error:
        return missing(gpu, node, quantity, error)


def missing(gpu: Gpu, node: int, quantity: str, why: Exception) -> Figure:
    """Return a figure of a GPU that could not be measured."""
    return Figure(quantity, node, None, gpu.pci_bus_id, why=str(why))
