"""Serves operations.py on the upstream package, by pickles over stdin and stdout.

Started by upstream_client.py with the directory that holds upstream's package
as its only argument.
"""

import contextlib
import os
import pickle
import sys


def use_upstream(directory):
    """Imports upstream's safetensors from `directory`; exits if another one is imported."""
    # An editable install puts its own finder first; it would hand out our package.
    sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
    sys.path.insert(0, directory)
    import safetensors

    here = os.path.realpath(directory)
    for module in (safetensors, safetensors._safetensors_rust):
        found = os.path.realpath(module.__file__)
        assert os.path.commonpath([here, found]) == here, f"imported {found}, not upstream's"
    assert not safetensors._safetensors_rust.__file__.endswith(".py"), "not the Rust extension"
    assert not hasattr(safetensors, "_core"), "imported our own package"
    return safetensors.__version__


def serve(requests, replies):
    """Answers each (operation, args, kwargs) with an Outcome until the input ends."""
    from support import operations

    with contextlib.suppress(ModuleNotFoundError):
        # Upstream knows BF16 in NumPy only where something has imported this.
        import ml_dtypes  # noqa: F401
    while True:
        try:
            name, args, kwargs = pickle.load(requests)
        except EOFError:
            return
        outcome = operations.run(name, *args, **kwargs)
        replies.write(pickle.dumps(outcome))
        replies.flush()


def main():
    """Reserves stdout for replies, so that a stray print cannot corrupt them."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    version = use_upstream(sys.argv[1])
    replies.write(pickle.dumps(version))
    replies.flush()
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
