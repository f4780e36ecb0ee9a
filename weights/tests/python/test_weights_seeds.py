"""Each quantisation scheme has a model in weights/tests/data, with which its fuzzer begins."""

import json
import re
from pathlib import Path

import pytest

from safetensors import safe_open
from safetensors.weights import open_weights
from weights_support.data import DATA

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "quantisation.md").read_text(encoding="utf-8")
TABLE = (ROOT / "weights" / "src" / "schemes" / "table.cpp").read_text(encoding="utf-8")
#: The endings of names, and the function that then looks at the tensor.
ROWS = re.findall(r'^    \{"([^"]+)", &(\w+)\},$', TABLE, re.MULTILINE)
#: The schemes of weights that a function claims; none of those that it refuses.
CLAIMED = {
    "claim_awq_gptq": {"awq", "gptq"},
    "claim_bnb_4bit": {"bnb_nf4", "bnb_fp4"},
    "claim_bnb_int8": {"bnb_int8"},
    "claim_ct_int": {"ct_int"},
    "claim_fp4_modelopt": {"nvfp4"},
    "claim_fp4_mx": {"mxfp4"},
    "claim_fp4_packed": {"nvfp4", "mxfp4"},
    "claim_fp8": {"fp8", "mxfp8"},
    "claim_int4": {"int4"},
    "claim_int8": {"int8"},
    "claim_mxfp4": {"mxfp4"},
    "claim_mxfp6": {"mxfp6"},
    "claim_quanto": {"fp8", "int8"},
    "claim_quanto_packed": {"quanto"},
    "claim_torchao": {"torchao"},
    "refuse_ct_bitmask": {None},
    "refuse_ct_marlin": {None},
}
MODELS = sorted(path.parent for path in DATA.glob("s[ce]*s/*/model.safetensors"))
LARGEST = 4096  # libFuzzer cuts off the rest


def seen():
    """Returns the scheme of each weight of each model, and how the names of its tensors end."""
    found = []
    for model in MODELS:
        with open_weights(model) as w, safe_open(model / "model.safetensors", "np") as file:
            stored = [*file.keys()]
            for tensor in (w[name] for name in [*w, *w.unmapped]):
                if tensor.scheme is None and tensor.is_decoded:
                    continue
                module = re.sub(r"\.(q?weight(\._data)*|bitmask|meta)$", "", tensor.source)
                ends = [name.removeprefix(module) for name in stored if name.startswith(module)]
                found.append((tensor.scheme, ends))
    return found


@pytest.fixture(scope="module")
def weights():
    return seen()


@pytest.mark.parametrize(("ending", "function"), ROWS)
def test_each_row_of_the_table_has_a_seed(ending, function, weights):
    wanted = [ends for scheme, ends in weights if scheme in CLAIMED[function]]
    if function == "claim_fp4_mx":  # claim_fp4_packed has the same scales
        wanted = [ends for ends in wanted if ".weight" in ends]
    assert [ends for ends in wanted if any(end.endswith(ending) for end in ends)]


def test_each_type_code_has_a_seed(weights):
    """The page lists the codes of the schemes, as `safetensors/weights/types.hpp` has them."""
    (line,) = re.findall(r"^\| schemes \| (fp8 120.*) \|$", PAGE, re.MULTILINE)
    listed = dict(item.rsplit(" ", 1) for item in line.split(", "))
    header = (ROOT / "weights" / "include" / "safetensors" / "weights" / "types.hpp").read_text()
    codes = re.findall(r"k\w+ = (1[23]\d)\b", header)
    assert sorted(listed.values()) == sorted(codes)
    assert {scheme for scheme, _ in weights} - {None} == {*listed}


def test_each_format_of_comfyui_has_a_seed():
    section = PAGE[PAGE.index("## ComfyUI") : PAGE.index("## What is not decoded")]
    (table,) = re.findall(r"^\| `format` .*\n\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    listed = {
        name for row in table.splitlines() for name in re.findall("`(.*?)`", row.split("|")[1])
    }
    found = {"convrot"} if b'"convrot": true' in b"".join(map(bytes_of, MODELS)) else set()
    for data in map(bytes_of, MODELS):
        found |= {each.decode() for each in re.findall(rb'\\?"format\\?": ?\\?"(\w+)\\?"', data)}
    assert listed <= found


def bytes_of(model):
    return (model / "model.safetensors").read_bytes()


def test_each_type_of_torchao_has_a_seed():
    section = PAGE[PAGE.index("## torchao") : PAGE.index("## ComfyUI")]
    (table,) = re.findall(r"^\| type .*\n\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    listed = {
        name for row in table.splitlines() for name in re.findall("`(.*?)`", row.split("|")[1])
    }
    found = set()
    for model in MODELS:
        with safe_open(model / "model.safetensors", "np") as file:
            metadata = file.metadata() or {}
        names = json.loads(metadata.get("tensor_names", "[]"))
        found |= {json.loads(metadata[name])["_type"] for name in names}
    assert listed == found


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_a_seed_is_whole(model):
    """The fuzzer sees config.json, a zero and the file."""
    assert len((model / "config.json").read_bytes()) + 1 + len(bytes_of(model)) <= LARGEST
