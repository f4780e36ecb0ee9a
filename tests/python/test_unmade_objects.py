"""Objects cannot be created without a constructor, nor passed to other classes' methods."""

import numpy as np
import pytest

from safetensors.numpy import save_file
from support import children

pytest.importorskip("torch")

# Each line is printed before what it tells of is tried: a crash leaves its cause as the last one.
COMMON = """
    import copy, copyreg, os, pickle
    from safetensors import _core, _extra, _weights, delta, safe_open
    from safetensors._saving.arguments import SaveArguments

    path = sys.argv[1]
    f = safe_open(path, "pt")
    loader = f.prefetch()
    model = _weights.Model(path, layout="hf", bf16="keep", scales="keep", allow_f16_overflow=False,
                           mmap=True, strict_index=True, allow_gaps=False, cache_bytes=None,
                           quant=None, name="", variant="")
    folder = _extra._Folder(os.path.dirname(path))
    saving = _extra._ModelWriter(path + "-models", "model", False)
    objects = [f, folder, saving, saving.temporary(1),
               _extra._InPlaceChange(folder, [], "m", True),
               _core._safe_open_handle(open(path, "rb"), "pt"), f.get_slice("a"),
               iter(f.get_slice("a")), loader,
               f.get_tensor_meta("a"), iter(loader), model, model.get_tensor("a"),
               _core.TensorSpec(dtype="float32", shape=[1], data_ptr=1, data_len=4),
               _extra._FileWriter(path + "1", True, [], SaveArguments()),
               _extra._StagedSave({}, path + "2", SaveArguments()),
               _extra._TensorHasher("F32", [1]),
               delta.diff({}, {"a": f.get_tensor("a")})._change("a"),
               safe_open(path, "np").get_tensor("a").base]
    classes = [type(each) for each in objects]
    for module in (_core, _extra, _weights):
        found = [c for c in vars(module).values() if isinstance(c, type)]
        assert {c for c in found if not issubclass(c, Exception)} <= set(classes), found

    def refuse(what, call, *kinds):
        print(what, flush=True)
        try:
            call()
        except (kinds or Exception):
            return
        raise AssertionError("it was not refused")
"""

UNMADE = """
    def newobj(cls):
        # pickle's NEWOBJ calls the type's slot, not __new__.
        where = f"{cls.__module__}\\n{cls.__name__}\\n".encode()
        return pickle.loads(b"\\x80\\x02c" + where + b")\\x81.")

    makers = {
        "call": lambda cls: cls(),
        "__new__": lambda cls: cls.__new__(cls),
        "object's": lambda cls: object.__new__(cls),
        "base's": lambda cls: cls.__base__.__new__(cls),
        "pickle's": newobj,
        "copyreg's": lambda cls: copyreg._reconstructor(cls, object, None),
        "subclass": lambda cls: type("Sub", (cls,), {"__init__": lambda self: None})(),
    }
    for cls in classes:
        for way, make in makers.items():
            refuse(f"{cls.__name__} {way}", lambda: make(cls))
    print("done")
"""

COPIED = """
    for each in objects:
        if isinstance(each, _core.TensorMeta):
            continue  # test_pickles.py copies it
        refuse(f"copy {each}", lambda: copy.copy(each), TypeError)
        refuse(f"deepcopy {each}", lambda: copy.deepcopy(each), TypeError)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            refuse(f"pickle {each}", lambda: pickle.dumps(each, protocol), TypeError)
    print("done")
"""

FOREIGN = """
    def function_of(attribute):
        if callable(attribute):
            return attribute
        return getattr(attribute, "fget", None) or attribute.__get__

    constructing = {"__new__", "__init__", "__doc__", "__module__"}
    for cls in classes:
        functions = {name: function_of(vars(cls)[name])
                     for name in vars(cls).keys() - constructing if vars(cls)[name] is not None}
        for name, function in functions.items():
            for other in (*objects, cls, 1, None):
                if not isinstance(other, cls):
                    what = f"{cls.__name__}.{name} of {other}"
                    refuse(what, lambda: function(other), TypeError)
    print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [UNMADE, COPIED, FOREIGN], ids=["unmade", "copied", "foreign"])
def test_objects_come_from_their_constructors(script, tmp_path):
    """Each class of both extension modules, with each way to bypass its constructor."""
    path = tmp_path / "model.safetensors"
    save_file({"a": np.zeros((2, 3), "f4")}, path)
    done = children.run_raw(COMMON + script, path, timeout=60)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    assert done.stdout.splitlines()[-1] == "done"
