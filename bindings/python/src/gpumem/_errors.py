"""The library's errors as exceptions, one class per status."""

from __future__ import annotations

import ctypes

from . import _declarations as d
from ._library import C


class Error(RuntimeError):
    """An error from libgpumem. `status` is its number. The text says what was asked, what there
    was, and, where that is not plain, what to do next."""

    status: int | None = None

    def __init__(self, text="", status=None):
        super().__init__(text)
        if status is not None:
            self.status = status

    @property
    def name(self):
        """The name of the status, such as "GPUMEM_ERROR_INVALID"."""
        return C.gpumem_status_name(self.status or 0).decode()


class Invalid(Error, ValueError):
    """An argument, option or combination of them is not allowed."""
    status = d.ERROR_INVALID


class OutOfMemory(Error, MemoryError):
    """The request does not fit the device, a limit, a reservation, or the address space."""
    status = d.ERROR_OUT_OF_MEMORY


class UnknownPointer(Error, ValueError):
    """The address was never handed out, or is in the middle of an allocation."""
    status = d.ERROR_UNKNOWN_POINTER


class DoubleFree(Error, ValueError):
    """The memory was freed already."""
    status = d.ERROR_DOUBLE_FREE


class DriverError(Error):
    """A call of the CUDA driver failed."""
    status = d.ERROR_DRIVER


class NoDevice(Error):
    """There is no usable driver or device."""
    status = d.ERROR_NO_DEVICE


class Unsupported(Error, NotImplementedError):
    """This driver, device or setting cannot do what was asked."""
    status = d.ERROR_UNSUPPORTED


class ConfigError(Error, ValueError):
    """A setting does not parse."""
    status = d.ERROR_CONFIG


class Forked(Error):
    """The process was forked after gpumem had started."""
    status = d.ERROR_FORKED


class Internal(Error):
    """A bug in gpumem."""
    status = d.ERROR_INTERNAL


class ShuttingDown(Error):
    """The driver, or all waits for reservations, are being shut down."""
    status = d.ERROR_SHUTTING_DOWN


class Capturing(Error):
    """Not legal while a stream is being captured into a CUDA graph."""
    status = d.ERROR_CAPTURING


class InvalidStream(Error, ValueError):
    """The handle is not a stream, or no longer one."""
    status = d.ERROR_INVALID_STREAM


class UseAfterFree(Error):
    """Memory was used that had been freed, by itself or with its arena."""
    status = d.ERROR_USE_AFTER_FREE


class TimedOut(Error, TimeoutError):
    """A wait ended at its timeout, before there was room."""
    status = d.ERROR_TIMED_OUT


class Cancelled(Error):
    """A wait or a move was cancelled."""
    status = d.ERROR_CANCELLED


class IOFailed(Error, OSError):
    """A file could not be read or written."""
    status = d.ERROR_IO


class Corrupt(Error):
    """Data in the disk tier is not what was written there."""
    status = d.ERROR_CORRUPT


BY_STATUS = {kind.status: kind for kind in Error.__subclasses__()}


def last_error():
    """The text of the calling thread's last failed call; empty when none has failed."""
    text = ctypes.create_string_buffer(1024)
    C.gpumem_last_error(text, len(text))
    return text.value.decode(errors="replace")


def error(status):
    """Returns the exception for a status, with the text of the thread's last failure."""
    return BY_STATUS.get(status, Error)(last_error(), status)


def ok(status):
    """Raises unless a call succeeded."""
    if status:
        raise error(status)
