"""The figures of a GPU by the library of its driver, through ctypes: copies, and a kernel's launch.

Sources: cuda.h (CUDA driver API; names with _v2 are those that its macros stand for) and
hip_runtime_api.h. Both libraries have the same parameters where the names agree.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
        self._library = self._load()
        self.call(self.INIT, 0)

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

    def _load(self) -> ctypes.CDLL:
        for name in self.LIBRARIES:
            with suppress(OSError):
                return ctypes.CDLL(name)
        raise DriverError(f"{self.LIBRARIES[0]} cannot be loaded")


class Cuda(Driver):
    """NVIDIA's libcuda.so.1, which comes with the driver."""

    LIBRARIES = ("libcuda.so.1",)
    INIT, FIND = "cuInit", "cuDeviceGetByPCIBusId"
    ALLOCATE, FREE = "cuMemAlloc_v2", "cuMemFree_v2"
    REGISTER, UNREGISTER = "cuMemHostRegister_v2", "cuMemHostUnregister"
    TO_DEVICE, TO_HOST = "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"
    SYNCHRONIZE = "cuCtxSynchronize"

    def error_name(self, code: int) -> str:
        """Return cuGetErrorName's."""
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
        """Return hipGetErrorName's."""
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


class GpuMemory:
    """Memory of the current GPU, as large as a buffer of the host."""

    def __init__(self, driver: Driver, buffer: Buffer, stack: ExitStack) -> None:
        self._driver, (address, size) = driver, buffer.swept
        self._host, self._size = ctypes.c_void_p(address), ctypes.c_size_t(size)
        self._device = ctypes.c_void_p()
        driver.call(driver.ALLOCATE, ctypes.byref(self._device), self._size)
        stack.callback(driver.quietly, driver.FREE, self._device)

    def to_device(self) -> None:
        """Copy the buffer to the GPU, and wait. Raises DriverError."""
        self._driver.call(self._driver.TO_DEVICE, self._device, self._host, self._size)
        self._driver.call(self._driver.SYNCHRONIZE)

    def to_host(self) -> None:
        """Copy the GPU's memory to the buffer, and wait. Raises DriverError."""
        self._driver.call(self._driver.TO_HOST, self._host, self._device, self._size)
        self._driver.call(self._driver.SYNCHRONIZE)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Have the driver lock the buffer's pages. Raises DriverError."""
        self._driver.call(self._driver.REGISTER, self._host, self._size, 0)
        try:
            yield
        finally:
            self._driver.quietly(self._driver.UNREGISTER, self._host)


def find(driver: Driver, pci_bus_id: str) -> int:
    """Return the driver's number of a GPU. Raises DriverError: not visible here."""
    device = ctypes.c_int()
    driver.call(driver.FIND, ctypes.byref(device), pci_bus_id.encode())
    return device.value


#: A quantity, its value, and why it has none.
Result = tuple[str, "float | None", "str | None"]


@cache
def _driver(vendor: str) -> Driver:
    if vendor not in DRIVERS:
        raise DriverError(f"no library is known to copy to a GPU of {vendor}")
    return DRIVERS[vendor]()


def gpu_results(vendor: str, pci_bus_id: str, buffer: Buffer) -> Iterator[Result]:
    """Yield each of OF_GPUS; never raises for a call that fails."""
    _, size = buffer.swept
    with ExitStack() as stack:
        try:
            driver = _driver(vendor)
            driver.use(find(driver, pci_bus_id), stack)
            memory = GpuMemory(driver, buffer, stack)
        except DriverError as error:
            yield from ((quantity, None, str(error)) for quantity in OF_GPUS)
            return
        yield _result(TO_DEVICE_PAGEABLE, lambda: size / _warm(memory.to_device))
        yield _result(TO_HOST_PAGEABLE, lambda: size / _warm(memory.to_host))
        try:
            stack.enter_context(memory.pinned())
        except DriverError as error:
            yield from ((quantity, None, str(error)) for quantity in (TO_DEVICE, TO_HOST))
        else:
            yield _result(TO_DEVICE, lambda: size / _warm(memory.to_device))
            yield _result(TO_HOST, lambda: size / _warm(memory.to_host))
        yield _result(LAUNCH, lambda: _launch(driver))


def _launch(driver: Driver) -> float:
    launch = driver.kernel()

    def launch_and_wait() -> None:
        launch()
        driver.call(driver.SYNCHRONIZE)

    return _warm(launch_and_wait)


def _warm(action: Callable[[], None]) -> float:
    action()  # the first one allocates
    return median_seconds(action)


def _result(quantity: str, measure: Callable[[], float]) -> Result:
    try:
        return quantity, measure(), None
    except DriverError as error:
        return quantity, None, str(error)
