"""What remote files cost: requests, bytes and reads at once, as the server sees them."""

import collections
import time

import pytest

from safetensors import safe_open
from safetensors.torch import load_files, save_file
from support import cli, file_builder, sharded
from support.remote_engines import ENGINES, address, server_of
from support.servers import RangeServer

torch = pytest.importorskip("torch", reason="torch is not installed")

MIB = 1 << 20
FILE = "/bucket/model.safetensors"


def at(engine, server, path=FILE):
    """Returns the arguments that open a file of the server."""
    url, options = address(engine, server, path)
    return url, {"storage_options": options}


@pytest.mark.parametrize("engine", ENGINES)
def test_open_and_keys_are_one_request(engine, tensors, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    with server_of(engine, RangeServer, {FILE: path.read_bytes()}) as server:
        url, options = at(engine, server)
        with safe_open(url, "pt", **options) as f:
            assert sorted(f.keys()) == sorted(tensors)
            assert f.get_slice("layers.5.weight").get_shape() == [1000, 7]
            assert server.requests == 1
            # The file is shorter than the first read.
            assert sharded.same(f.get_tensor("layers.5.weight"), tensors["layers.5.weight"])
        assert server.requests == 1


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A sparse file of 100 GB with tensors of 8 MiB in the middle and 1 GiB elsewhere."""
    path = tmp_path_factory.mktemp("large") / "model.safetensors"
    shapes = {f"before.{i}": (MIB << 8,) for i in range(50)}
    shapes |= {"wanted": (2 * MIB,)} | {f"after.{i}": (MIB << 8,) for i in range(50)}
    begin = file_builder.write_sparse(path, shapes) + 50 * (1 << 30)
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\x00\x00\x80\x3f" * (2 * MIB))
    assert path.stat().st_size > 100e9
    yield path
    path.unlink()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tensor_of_a_large_file_is_two_requests(engine, large):
    with server_of(engine, RangeServer, {FILE: large}) as server:
        url, options = at(engine, server)
        with safe_open(url, "pt", **options) as f:
            assert torch.equal(f.get_tensor("wanted"), torch.ones(2 * MIB))
        assert server.requests == 2
        assert server.bytes_sent <= 9 * MIB


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_read_and_little_else(engine, tmp_path):
    """The share of one of 8 ranks: at most 1.05 of its bytes, and the first read."""
    path = tmp_path / "model.safetensors"
    tensors = {f"layer.{i}": torch.randn(1024, 512 * (1 + i % 3)) for i in range(12)}
    save_file(tensors, path)
    with server_of(engine, RangeServer, {FILE: path}) as server:
        url, options = at(engine, server)
        plan = {name: slice(128, 256) for name in tensors}
        loaded = load_files(url, plan=plan, **options)
        assert all(torch.equal(loaded[name], tensors[name][128:256]) for name in tensors)
        wanted = sum(each.nbytes for each in loaded.values())
        assert server.bytes_sent <= 1.05 * wanted + (512 << 10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_in_shards(engine, model, tensors):
    files = {f"/bucket/{path.name}": path for path in model.iterdir()}
    with server_of(engine, RangeServer, files) as server:
        for name in ("model.safetensors.index.json", ""):
            server.clear()
            url, options = at(engine, server, f"/bucket/{name}")
            url = url if name else url.partition("?")[0]  # a folder has no query
            loaded = load_files(url, **options)
            assert loaded.keys() == tensors.keys()
            assert all(sharded.same(loaded[name], tensors[name]) for name in tensors)
            # The index and three short files; of a folder, whether there is a single file, too.
            asked = collections.Counter(request.path for request in server.log)
            assert len(asked) == 4 + (not name)
            assert server.requests <= len(asked) + 3


def test_ls_of_80_shards(tmp_path):
    tensors = {f"layer.{i}": torch.zeros(4) for i in range(80)}
    sharded.write(tmp_path, tensors, 80)
    with RangeServer({f"/{path.name}": path for path in tmp_path.iterdir()}) as server:
        url = server.url("/model.safetensors.index.json")
        done = cli.run("ls", url)
        assert "layer.79" in done.stdout
        assert server.requests == 81


@pytest.mark.timed
@pytest.mark.parametrize("engine", ENGINES)
def test_latency_is_hidden_behind_32_reads(engine, tmp_path):
    """256 chunks from a server that answers after 50 ms: 13 s one after the other."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(4 * MIB, dtype=torch.int32)}, path)

    def slow(_):
        time.sleep(0.05)
        return path

    with server_of(engine, RangeServer, {FILE: slow}) as server:
        url, options = at(engine, server)
        options["storage_options"] |= {"chunk_bytes": 64 << 10, "concurrency": 32}
        begin = time.monotonic()
        loaded = load_files(url, **options)
        taken = time.monotonic() - begin
        assert torch.equal(loaded["a"], torch.arange(4 * MIB, dtype=torch.int32))
        # The first 512 KiB are read when the file is opened.
        assert 245 <= server.requests <= 265
        assert 16 <= server.most_at_once <= 32
        assert taken < 13 / 4
