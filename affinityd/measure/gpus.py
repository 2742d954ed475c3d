"""The figures of a GPU by the library of its driver, through ctypes: copies, and a kernel's launch.

Sources: cuda.h (CUDA driver API; names with _v2 are those that its macros stand for) and
hip_runtime_api.h. Both libraries have the same parameters where the names agree.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from typing import ClassVar

from affinityd.measure.document import (
    LAUNCH,
    OF_GPUS,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
)
from affinityd.measure.memory import Buffer, median_seconds

#: PTX of a version and target that the drivers of Maxwell and all later GPUs compile.
EMPTY_KERNEL = b".version 4.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n"


class DriverError(Exception):
    """A call that failed, with the driver's name of its error; one line."""


class Driver(ABC):
    """A vendor's library, loaded and initialized."""

    LIBRARIES: ClassVar[tuple[str, ...]]  #: of which one is enough
    INIT: ClassVar[str]
    FIND: ClassVar[str]
    ALLOCATE: ClassVar[str]
    FREE: ClassVar[str]
    REGISTER: ClassVar[str]
    UNREGISTER: ClassVar[str]
    TO_DEVICE: ClassVar[str]
    TO_HOST: ClassVar[str]
    SYNCHRONIZE: ClassVar[str]

    def __init__(self) -> None:
        for name in self.LIBRARIES:
            with suppress(OSError):
                self._library = ctypes.CDLL(name)
                self.call(self.INIT, 0)
                return
        raise DriverError(f"{self.LIBRARIES[0]} cannot be loaded")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns an error code. Raises DriverError."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"{self._library._name} has no {name}") from None  # noqa: SLF001
        code = int(function(*arguments))
        if code:
            raise DriverError(f"{name}: {self.error_name(code)}")

    @abstractmethod
    def error_name(self, code: int) -> str:
        """Return the driver's name of an error."""

    @abstractmethod
    def use(self, device: int, stack: ExitStack) -> None:
        """Make a GPU the current one; `stack` undoes it. Raises DriverError."""

    @abstractmethod
    def kernel(self) -> Callable[[], None]:
        """Return a launch of an empty kernel on the current GPU. Raises DriverError."""

    def quietly(self, name: str, *arguments: object) -> None:
        """Call a function whose failure changes nothing."""
        with suppress(DriverError):
            self.call(name, *arguments)


class Cuda(Driver):
    """NVIDIA's libcuda.so.1, which comes with the driver."""

    LIBRARIES = ("libcuda.so.1",)
    INIT, FIND = "cuInit", "cuDeviceGetByPCIBusId"
    ALLOCATE, FREE = "cuMemAlloc_v2", "cuMemFree_v2"
    REGISTER, UNREGISTER = "cuMemHostRegister_v2", "cuMemHostUnregister"
    TO_DEVICE, TO_HOST = "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"
    SYNCHRONIZE = "cuCtxSynchronize"

    def error_name(self, code: int) -> str:
        """Ask cuGetErrorName."""
        name = ctypes.c_char_p()
        with suppress(AttributeError):  # a library without it
            self._library.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"error %d" % code).decode(errors="replace")

    def use(self, device: int, stack: ExitStack) -> None:
        """Retain the primary context, as CUDA's runtime does."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        stack.callback(self.quietly, "cuDevicePrimaryCtxRelease_v2", device)
        self.call("cuCtxSetCurrent", context)

    def kernel(self) -> Callable[[], None]:
        """Have the driver compile the kernel."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), EMPTY_KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"empty")
        return lambda: self.call("cuLaunchKernel", kernel, *(1,) * 6, 0, None, None, None)


class Hip(Driver):
    """AMD's libamdhip64.so, which comes with ROCm."""

    LIBRARIES = (
        *("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
        "/opt/rocm/lib/libamdhip64.so",
    )
    INIT, FIND = "hipInit", "hipDeviceGetByPCIBusId"
    ALLOCATE, FREE = "hipMalloc", "hipFree"
    REGISTER, UNREGISTER = "hipHostRegister", "hipHostUnregister"
    TO_DEVICE, TO_HOST = "hipMemcpyHtoD", "hipMemcpyDtoH"
    SYNCHRONIZE = "hipDeviceSynchronize"

    def error_name(self, code: int) -> str:
        """Ask hipGetErrorName."""
        name: bytes | None = None
        with suppress(AttributeError):  # a library without it
            function = self._library.hipGetErrorName
            function.restype = ctypes.c_char_p
            name = function(code)
        return (name or b"error %d" % code).decode(errors="replace")

    def use(self, device: int, stack: ExitStack) -> None:  # noqa: ARG002 - nothing to undo
        """Call hipSetDevice."""
        self.call("hipSetDevice", device)

    def kernel(self) -> Callable[[], None]:
        """Refuse: HIP loads code objects alone, one for each GPU architecture."""
        raise DriverError("HIP takes no kernel that is not compiled for this very GPU")


DRIVERS: Mapping[str, type[Driver]] = {"nvidia": Cuda, "amd": Hip}  #: by Gpu.vendor


#: A quantity, its value, and why it has none.
Result = tuple[str, "float | None", "str | None"]


@cache
def _driver(vendor: str) -> Driver:
    if vendor not in DRIVERS:
        raise DriverError(f"no library is known to copy to a GPU of {vendor}")
    return DRIVERS[vendor]()


def gpu_results(vendor: str, pci_bus_id: str, buffer: Buffer) -> Iterator[Result]:
    """Yield each of OF_GPUS; never raises for a call that fails."""
    address, length = buffer.swept
    host, size = ctypes.c_void_p(address), ctypes.c_size_t(length)
    number, memory = ctypes.c_int(), ctypes.c_void_p()
    with ExitStack() as stack:
        try:
            driver = _driver(vendor)
            driver.call(driver.FIND, ctypes.byref(number), pci_bus_id.encode())
            driver.use(number.value, stack)
            driver.call(driver.ALLOCATE, ctypes.byref(memory), size)
            stack.callback(driver.quietly, driver.FREE, memory)
        except DriverError as error:
            yield from ((quantity, None, str(error)) for quantity in OF_GPUS)
            return

        def copies(copy: str, to: ctypes.c_void_p, source: ctypes.c_void_p) -> Callable[[], float]:
            return lambda: length / _seconds(driver, lambda: driver.call(copy, to, source, size))

        to_device = copies(driver.TO_DEVICE, memory, host)
        to_host = copies(driver.TO_HOST, host, memory)
        yield _result(TO_DEVICE_PAGEABLE, to_device)
        yield _result(TO_HOST_PAGEABLE, to_host)
        try:
            driver.call(driver.REGISTER, host, size, 0)  # the driver locks the buffer's pages
            stack.callback(driver.quietly, driver.UNREGISTER, host)
        except DriverError as error:
            yield from ((quantity, None, str(error)) for quantity in (TO_DEVICE, TO_HOST))
        else:
            yield _result(TO_DEVICE, to_device)
            yield _result(TO_HOST, to_host)
        yield _result(LAUNCH, lambda: _seconds(driver, driver.kernel()))


def _seconds(driver: Driver, action: Callable[[], None]) -> float:
    """Return the median time of an action and of the wait for its end, after a first one."""

    def act_and_wait() -> None:
        action()
        driver.call(driver.SYNCHRONIZE)

    act_and_wait()  # the first one allocates
    return median_seconds(act_and_wait)


def _result(quantity: str, measure: Callable[[], float]) -> Result:
    try:
        return quantity, measure(), None
    except DriverError as error:
        return quantity, None, str(error)
