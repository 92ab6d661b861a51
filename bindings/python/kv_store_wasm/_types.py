"""Types of what calls take."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    # Python itself has it from 3.12 on.
    from typing_extensions import Buffer

Piece: TypeAlias = "Buffer | tuple[int, int]"
"""Memory: an object that lends it, or its address and its length in bytes."""
Tokens: TypeAlias = "Buffer | Sequence[int]"
"""Tokens of a prompt: a buffer of 32-bit or 64-bit signed integers, or a sequence of ints of 32 bits."""
Value: TypeAlias = "Piece | Sequence[Piece]"
"""A value: memory, or pieces of it, which lie one after another in the store."""
