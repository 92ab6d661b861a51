"""What the adapter uses of `aibrix_kvcache.status` 0.8.0."""

from enum import Enum, auto
from typing import Any


class StatusCodes(Enum):
    OK = auto()
    ERROR = auto()
    NOT_FOUND = auto()
    INVALID = auto()
    OUT_OF_MEMORY = auto()
    TIMEOUT = auto()
    DENIED = auto()
    CANCELLED = auto()


class Status:
    def __init__(self, error_code_or_value: Any, value: Any = None) -> None:
        code = error_code_or_value
        self.error_code = code if isinstance(code, StatusCodes) else StatusCodes.OK
        self.value = value

    @staticmethod
    def ok(value: Any = None) -> "Status":
        return Status(StatusCodes.OK, value)

    def is_ok(self) -> bool:
        return self.error_code == StatusCodes.OK
