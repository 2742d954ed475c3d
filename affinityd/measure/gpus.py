"""The figures of a GPU, from the CPUs of the calling process. One that fails costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

from affinityd.measure.document import (
    LAUNCH,
    OF_GPUS,
    TO_DEVICE,
    TO_DEVICE_PAGEABLE,
    TO_HOST,
    TO_HOST_PAGEABLE,
)
from affinityd.measure.drivers import DRIVERS, Driver, DriverError, GpuMemory, find
from affinityd.measure.memory import Buffer
from affinityd.measure.timing import median_seconds

#: A quantity, its value, and why it has none.
Result = tuple[str, "float | None", "str | None"]


@cache
def _driver(vendor: str) -> Driver:
    """Load a vendor's library, once. Raises DriverError."""
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
    """Return seconds from an empty kernel's launch until it has ended, as the host sees it."""
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
