"""Errors name the tensor or key, and say what was found, what is allowed, and similar names."""

import pickle
import re

import numpy as np
import pytest

import safetensors
import safetensors.numpy as for_numpy
from safetensors import SafetensorError, safe_create, safe_open
from safetensors._frameworks import arrays_of
from safetensors._near_names import suggestions
from support import file_builder
from support.file_builder import raw

ONE = np.ones(1, "f4")
NO_ARRAYS = {"list": [1.0], "none": None, "int": 3, "dict": {"x": ONE}, "text": "x"}
NO_DTYPES = {
    "object": np.array([1, None], object),
    "str32": np.array(["a"]),
    "bytes8": np.array([b"a"]),
    "datetime64[D]": np.array(["2020"], "M8[D]"),
    "complex128": np.ones(2, complex),
    "void64": np.zeros(2, [("a", "f4"), ("b", "i4")]),
}
SAVES = {
    "save": lambda arrays, path: for_numpy.save(arrays),
    "save_file": lambda arrays, path: for_numpy.save_file(arrays, path / "a.safetensors"),
    "save_files": lambda arrays, path: for_numpy.save_files(arrays, path),
    "save_file_async": lambda arrays, path: for_numpy.save_file_async(
        arrays, path / "a.safetensors"
    ).result(),
}
every_save = pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)


def error_of(call, kind=SafetensorError):
    with pytest.raises(kind) as caught:
        call()
    return caught.value


@every_save
@pytest.mark.parametrize("value", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_numpy_names_what_is_no_array(tmp_path, save, value):
    """The error is an AttributeError as in upstream, and begins with upstream's text."""
    error = error_of(lambda: save({"good": ONE, "bad": value}, tmp_path), AttributeError)
    kind = type(value)
    assert str(error) == (
        f"'{kind.__name__}' object has no attribute 'dtype'. Key `bad` is invalid, expected "
        f"numpy.ndarray but received {kind}"
    )
    assert (error.code, error.subject) == ("invalid_argument", "bad")
    assert isinstance(pickle.loads(pickle.dumps(error)), (SafetensorError, AttributeError))


@every_save
@pytest.mark.parametrize("dtype", NO_DTYPES)
def test_numpy_names_the_tensor_of_a_dtype(tmp_path, save, dtype):
    error = error_of(lambda: save({"good": ONE, "bad": NO_DTYPES[dtype]}, tmp_path))
    assert str(error).startswith(f'Unknown dtype "{dtype}". Supported dtypes: bool, int8')
    assert str(error).endswith(". Tensor `bad` is of this type")
    assert (error.code, error.subject) == ("unsupported_dtype", "bad")


def test_tensors_of_torch_are_no_arrays():
    torch = pytest.importorskip("torch")
    error = error_of(lambda: for_numpy.save({"bad": torch.ones(1)}), AttributeError)
    assert "Key `bad` is invalid, expected numpy.ndarray but received" in str(error)


@every_save
def test_masks_are_not_lost_silently(tmp_path, save):
    """The values are saved, as by upstream. A warning on the caller's line names the array."""
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    for array in (values, values.T):
        masked = np.ma.masked_array(array, mask=[[0, 1], [0, 0]])
        with pytest.warns(UserWarning, match="tensor `bad` is a masked array") as caught:
            save({"bad": masked}, tmp_path)
        assert {each.filename for each in caught} == {__file__}
    assert (for_numpy.load(for_numpy.save({"a": np.ma.masked_array(values)}))["a"] == values).all()


def test_writers_name_the_tensor(tmp_path):
    with safe_create(tmp_path / "a.safetensors", {"a": ("F32", [1])}) as writer:
        error = error_of(lambda: writer.write("a", np.array([None])))
        assert str(error).endswith("Tensor `a` is of this type")
        writer.write("a", ONE)


def test_values_of_other_frameworks():
    """Those of flax, mlx and tensorflow, which the tests may lack."""
    error = error_of(lambda: arrays_of({"bad": {"x": ONE}}, np.asarray, "jax.Array"), ValueError)
    assert str(error) == "Key `bad` is invalid, expected jax.Array but received <class 'dict'>"
    assert (error.code, error.subject) == ("invalid_argument", "bad")
    error = error_of(
        lambda: arrays_of({"bad": [1.0]}, lambda x: x.numpy(), "tensorflow.Tensor"), AttributeError
    )
    assert str(error).startswith("'list' object has no attribute 'numpy'. Key `bad` is invalid")
    array = arrays_of({"a": ONE}, np.asarray, "jax.Array")["a"]
    assert array is ONE


METADATA = {"int": 3, "none": None, "bytes": b"x", "list": ["a"], "bool": True, "dict": {"a": 1}}


@pytest.mark.parametrize("value", METADATA.values(), ids=METADATA)
def test_metadata_names_the_key(value):
    """Upstream's text comes first."""
    found = "'None'" if value is None else f"'{type(value).__name__}' object"
    text = f"argument 'metadata': {found} is not an instance of 'str': the value of the key `key`"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        for_numpy.save({"a": ONE}, {"good": "x", "key": value})


def test_keys_that_are_no_text():
    for key in (1, None, b"x", ("a",)):
        with pytest.raises(TypeError, match=rf"'metadata'.*: the key {re.escape(repr(key))}$"):
            for_numpy.save({"a": ONE}, {key: "x"})
        with pytest.raises(TypeError, match=rf"'tensor_dict'.*: the key {re.escape(repr(key))}$"):
            for_numpy.save({key: ONE})


@pytest.mark.parametrize("state", [{"a": 1}, None, "text"])
def test_extra_state_that_is_no_tensor(tmp_path, state):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_model

    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return state

    error = error_of(lambda: save_model(Extra(2, 2), tmp_path / "a.safetensors"), ValueError)
    assert (
        f"Key `_extra_state` is invalid, expected torch.Tensor but received {type(state)}"
        == str(error)
    )


NAMES = ["model.layers.0.q_proj.weight", "model.layers.1.q_proj.weight", "lm_head.weight"]
NEAR = "; did you mean `model.layers.{}.q_proj.weight`?"


@pytest.fixture
def path(tmp_path):
    return file_builder.write(
        tmp_path / "m.safetensors", {name: raw("F32", (1,)) for name in NAMES}
    )


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("model.layers.1.q_porj.weight", "1"),
        ("model.layers.7.q_proj.weight", "0"),
        ("layers.0.q_proj.weight", "0"),
        ("model.layers.0.q_proj", "0"),
        ("nothing", None),
    ],
)
def test_a_handle_suggests_names(path, asked, near):
    text = f"File does not contain tensor {asked}{NEAR.format(near) if near else ''} (in {path})"
    with safe_open(path, "np") as handle:
        for call in (handle.get_tensor, handle.get_slice, handle.__getitem__):
            error = error_of(lambda call=call: call(asked))
            assert str(error) == text
            assert (error.code, error.path, error.subject) == (
                "tensor_not_found",
                str(path),
                asked,
            )


def test_updates_and_writers_suggest_names(path, tmp_path):
    error = error_of(lambda: safetensors.update_file(path, {"lm_haed.weight": ONE}), KeyError)
    assert str(error) == (
        f"{path}: there is no tensor `lm_haed.weight`; the option `add` adds it; "
        "did you mean `lm_head.weight`?"
    )
    assert (error.code, error.path, error.subject) == (
        "tensor_not_found", str(path), "lm_haed.weight",
    )  # fmt: skip
    with safe_create(tmp_path / "new.safetensors", {"weight": ("F32", [1])}) as writer:
        error = error_of(lambda: writer.write("wieght", ONE), KeyError)
        assert str(error).endswith("no tensor `wieght`; did you mean `weight`?")
        writer.write("weight", ONE)


def test_loads_name_the_file_and_suggest_names(path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_files

    for options in ({"keys": ["lm_haed.weight"]}, {"plan": {"lm_haed.weight": None}}):
        error = error_of(lambda options=options: load_files(path, **options))
        assert str(error) == (
            "The files do not contain tensor 'lm_haed.weight'; did you mean `lm_head.weight`? "
            f"(in {path})"
        )
        assert (error.code, error.path, error.subject) == (
            "tensor_not_found", str(path), "lm_haed.weight",
        )  # fmt: skip
    error = error_of(lambda: load_files(path, plan={"lm_haed.*": None}))
    assert (error.code, error.path, error.subject) == ("tensor_not_found", str(path), "lm_haed.*")
    assert torch.is_tensor(load_files(path)["lm_head.weight"])


def test_loaders_suggest_names(path):
    pytest.importorskip("torch")
    with safe_open(path, "pt") as handle, handle.prefetch() as loader:
        error = error_of(lambda: loader.take("lm_haed.weight"))
        assert str(error) == (
            "lm_haed.weight is not in the prefetch plan; did you mean `lm_head.weight`? "
            f"(in {path})"
        )
        assert (error.code, error.path, error.subject) == (
            "tensor_not_found", str(path), "lm_haed.weight",
        )  # fmt: skip
        assert str(error_of(lambda: loader.take("nothing"))).startswith(
            "nothing is not in the prefetch plan (in"
        )


def test_suggestions():
    """One for a name without its first or last part; else up to three that are spelt alike."""
    assert suggestions("q.weight", ["a.q.weight", "b"]) == "; did you mean `a.q.weight`?"
    assert suggestions("a.q.weight", ["q.weight", "b"]) == "; did you mean `q.weight`?"
    assert suggestions("a.q", ["a.q.weight"]) == "; did you mean `a.q.weight`?"
    assert suggestions("a.2.q[1:3]", ["a.0.q", "a.2.q"]) == "; did you mean `a.2.q`?"
    assert suggestions("abcd", ["abcx", "abxd", "xbcd", "axcd"]).count("`") == 6
    names = [f"layers.{i}.weight" for i in range(10, 20)]
    assert suggestions("layers.12.wieght", names) == "; did you mean `layers.12.weight`?"
    assert suggestions("wieght", ["weight", "bias"]) == "; did you mean `weight`?"
    for name, known in (("", ["a"]), ("q", ["a"]), ("x" * 300, ["x" * 299]), ("q", [])):
        assert suggestions(name, known) == ""


def test_loads_name_subfolders_with_models(tmp_path):
    """As those of a pipeline of diffusers; a folder that has none below has the usual text."""
    pytest.importorskip("torch")
    from safetensors.torch import load_files

    error = error_of(lambda: load_files(tmp_path), FileNotFoundError)
    assert "these folders" not in str(error)
    for name in ("unet", "vae"):
        (tmp_path / name).mkdir()
        for_numpy.save_file({"a": ONE}, tmp_path / name / "model.safetensors")
    error = error_of(lambda: load_files(tmp_path), FileNotFoundError)
    assert str(error) == (
        "No .safetensors files in the directory; these folders have some: "
        f"{tmp_path}/unet, {tmp_path}/vae (in {tmp_path})"
    )
    assert (error.code, error.path, error.errno) == ("no_model", str(tmp_path), 2)
