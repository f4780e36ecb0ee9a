"""Comparing bytes without a loop in Python."""


def first_difference(left: bytes, right: bytes) -> int:
    """Where two of the same length first differ; there is such a place."""
    begin, end = 0, len(left)
    # Halved and halved, as comparing is fast and looping is not.
    while end - begin > 1:
        middle = (begin + end) // 2
        if left[begin:middle] != right[begin:middle]:
            end = middle
        else:
            begin = middle
    return begin


def count_of_differences(left: bytes, right: bytes) -> int:
    """How many bytes of two of the same length differ."""
    # As one huge number each: the loop is then C's.
    both = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return len(left) - both.to_bytes(len(left), "little").count(0)
