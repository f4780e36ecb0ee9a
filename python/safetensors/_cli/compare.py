"""Compares bytes without a loop over bytes in Python."""

from collections.abc import Sequence


def first_difference(left: bytes, right: bytes) -> int:
    """Returns the first position at which they differ.

    Requires: the lengths are equal, and the contents are not.
    """
    begin, end = 0, len(left)
    # Bisection: comparing slices is fast, a loop over bytes is not.
    while end - begin > 1:
        middle = (begin + end) // 2
        if left[begin:middle] != right[begin:middle]:
            end = middle
        else:
            begin = middle
    return begin


def count_of_differences(left: bytes, right: bytes, size: int = 1) -> int:
    """Returns the number of elements of `size` bytes that differ.

    Requires: the lengths are equal, and multiples of the size.
    """
    # Each becomes one large integer, so that the loop runs in C.
    both = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    bits = both.to_bytes(len(left), "little")
    differ = 0
    for at in range(size):
        differ |= int.from_bytes(bits[at::size], "little")
    count = len(left) // size
    return count - differ.to_bytes(count, "little").count(0)


def index_at(element: int, dims: Sequence[int]) -> list[int]:
    """Returns the index of the element with this number, counted row by row."""
    index = []
    for size in reversed(dims):
        element, at = divmod(element, size)
        index.append(at)
    return index[::-1]
