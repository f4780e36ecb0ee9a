"""What sums name and the caller does not exclude is there: for URLs, groups and checkpoints.

test_verify_absent.py has the other cases.
"""

import os

import pytest
import torch

from safetensors import IntegrityError, SafetensorError
from safetensors.torch import load_files, load_into
from support import signed_models
from support.rank_faults import values
from support.servers import RangeServer
from support.signed_models import INDEX, SUMS, TENSORS, into, same, shard, streamed


@pytest.fixture
def model(tmp_path):
    """A model of three shards with two tensors each."""
    assert len(signed_models.write(tmp_path / "m", TENSORS, 800)) == 3
    return tmp_path / "m"


def refused(load, *arguments, said, **more):
    with pytest.raises(IntegrityError, match=said) as caught:
        load(*arguments, **more)
    return caught.value


def files_at(folder, top):
    return {f"{top}/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("load", [load_files, into, streamed])
def test_urls(model, load):
    gone = signed_models.names_in(model, shard(3))
    others = sorted(TENSORS.keys() - gone)
    with RangeServer(files_at(model, "/m")) as server:
        local = model / SUMS
        for url in (server.url("/m/"), server.url(f"/m/{INDEX}")):
            same(load(url, verify=local))
        signed_models.leave_out(model, gone)
        server.files[f"/m/{INDEX}"] = (model / INDEX).read_bytes()
        for url in (server.url("/m/"), server.url(f"/m/{INDEX}")):
            refused(load, url, verify=local, said=f"{INDEX}: tensor `{min(gone)}` is missing")
            same(load(url, verify=local, keys=others), others)
        # Without the index, the server names one file: that of a smaller model.
        del server.files[f"/m/{INDEX}"]
        server.files["/m/model.safetensors"] = (model / shard(1)).read_bytes()
        with pytest.raises(SafetensorError, match="has no digests of the file"):
            load(server.url("/m/"), verify=local)
        first = signed_models.names_in(model, shard(1))
        same(load(server.url(f"/m/{shard(1)}"), verify=local, keys=first), first)
        with pytest.raises(ValueError, match="beside local files only"):
            load(server.url("/m/"), verify=True)


def test_a_file_system_that_lists(model):
    """Its folders are found without an index, too."""
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    for path, data in files_at(model, "/absent").items():
        fs.pipe(path, data)
    try:
        for load in (load_files, into, streamed):
            same(load("memory://absent/", verify=model / SUMS))
        fs.rm(f"/absent/{INDEX}")
        same(load_files("memory://absent/", verify=model / SUMS))
        fs.rm(f"/absent/{shard(2)}")
        with pytest.raises(SafetensorError, match="file number 2 is absent of the 3"):
            load_files("memory://absent/", verify=model / SUMS)
        gone = signed_models.names_in(model, shard(2))
        others = sorted(TENSORS.keys() - gone)
        signed_models.leave_out(model, gone)
        fs.pipe(f"/absent/{INDEX}", (model / INDEX).read_bytes())
        for load in (load_files, into, streamed):
            error = refused(load, "memory://absent/", verify=model / SUMS, said="is missing")
            assert error.subject in gone
            same(load("memory://absent/", verify=model / SUMS, keys=others), others)
    finally:
        fs.rm("/absent", recursive=True)


def test_buckets(model):
    pytest.importorskip("obstore")
    with RangeServer(files_at(model, "/bucket/m")) as server:
        options = {"endpoint": server.url(), "anonymous": True, "tries": 1}
        same(load_files("s3://bucket/m/", verify=model / SUMS, storage_options=options))
        gone = signed_models.names_in(model, shard(3))
        signed_models.leave_out(model, gone)
        server.files[f"/bucket/m/{INDEX}"] = (model / INDEX).read_bytes()
        refused(
            load_files,
            "s3://bucket/m/",
            verify=model / SUMS,
            storage_options=options,
            said=f"{INDEX}: tensor `{min(gone)}` is missing",
        )


def rank_loads(rank, folder, verify, keys):
    group = torch.distributed.group.WORLD
    results = []
    target = {name: torch.zeros(10, 10) for name in keys or TENSORS}
    for load in (
        lambda: load_files(folder, verify=verify, keys=keys, group=group),
        lambda: load_into(target, folder, strict=False, verify=verify, group=group) and target,
    ):
        try:
            results.append(set(load()))
        except SafetensorError as error:
            results.append((type(error.__cause__).__name__, "is missing" in str(error)))
    return results


def test_groups(model):
    everything = set(TENSORS)
    assert values(2, rank_loads, model, True, None) == [[everything] * 2] * 2
    gone = signed_models.names_in(model, shard(2))
    others = sorted(everything - gone)
    signed_models.leave_out(model, gone)
    os.remove(model / shard(2))
    for results in values(2, rank_loads, model, True, None):
        assert all(said for _, said in results)
    assert values(2, rank_loads, model, True, others) == [[set(others)] * 2] * 2


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavail)")
def test_checkpoints(model):
    """The reader does not know yet what is taken: all has to be there."""
    import torch.distributed.checkpoint as dcp

    from safetensors.dcp import StorageReader

    signed_models.leave_out(model, signed_models.names_in(model, shard(2)))
    os.remove(model / shard(2))
    state = {"t.0": torch.zeros(10, 10)}
    with pytest.raises(dcp.CheckpointException, match="is missing: .*model.sums.json"):
        dcp.load(state, storage_reader=StorageReader(model, verify=True))
