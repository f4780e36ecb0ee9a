"""Compares bytes without a loop over bytes in Python."""


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


def count_of_differences(left: bytes, right: bytes) -> int:
    """Returns the number of bytes that differ. Requires: the lengths are equal."""
    # Each becomes one large integer, so that the loop runs in C.
    both = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return len(left) - both.to_bytes(len(left), "little").count(0)
