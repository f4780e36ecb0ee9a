"""What the subjects in Python share: the verbs, digests and indices."""

import ast
import hashlib
import json
import sys
from pathlib import Path


class Unsupported(Exception):
    """Raised for what the package has no function for."""


def digest(data):
    """Returns the digest of a tensor's bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def index_of(text):
    """Returns the index that a text such as "1:3, ..., -1" means."""

    def value(node):
        if isinstance(node, ast.Tuple):
            return tuple(value(item) for item in node.elts)
        if isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper, node.step)
            return slice(*(bound and ast.literal_eval(bound) for bound in bounds))
        return ast.literal_eval(node)

    return value(ast.parse(f"t[{text}]", mode="eval").body.slice)


def serve(read, write=None, take=None):
    """Answers the command line's requests.

    `read(path)` returns {name: [dtype, shape, digest]} and the metadata, or None if it does not
    know the metadata; `write(tensors, out, metadata)` writes a file of {name: (dtype, shape,
    bytes)}, with metadata or None; `take(path, tensor, index)` returns the shape and bytes of a
    part. An exception refuses the request, except that SystemError is a fault of the package.
    """
    verb, *arguments = sys.argv[1:]
    if verb == "read":
        requests = [(path,) for path in arguments]
    elif verb == "write":
        requests = list(zip(arguments[::2], arguments[1::2], strict=True))
    else:
        requests = list(zip(*(arguments[i::3] for i in range(3)), strict=True))

    def answer(request):
        if verb == "read":
            tensors, metadata = read(*request)
            known = {} if metadata is None else {"metadata": metadata}
            return {"tensors": tensors, **known}
        if verb == "write" and write:
            spec = json.loads(Path(request[0]).read_text())
            tensors = {
                t["name"]: (t["dtype"], t["shape"], bytes.fromhex(t["bytes"]))
                for t in spec["tensors"]
            }
            write(tensors, request[1], spec.get("metadata"))
            return {}
        if verb == "slice" and take:
            path, tensor, index = request
            shape, data = take(path, tensor, index_of(index))
            return {"shape": list(shape), "digest": digest(data)}
        raise Unsupported(f"no function for {verb}")

    for request in requests:
        try:
            found = answer(request)
        except Unsupported as error:
            found = {"unsupported": str(error)}
        except SystemError:
            raise
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)
