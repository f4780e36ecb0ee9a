"""What the coordinator of safetensors.dcp decides, from plans of ranks that are not processes."""

import dataclasses
import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

import safetensors
from safetensors._dcp.site import Site, can_share_files, one_machine, site_of
from safetensors.dcp import StorageWriter, consolidate
from safetensors.torch import load_files, save_files

LUSTRE, NFS = 0x0BD00BD0, 0x6969
SITE = Site("boot", 1, 2, "", NFS)


class Rank:
    """A rank with rows of tensors: {name: (first row, tensor)} of as many rows in all."""

    def __init__(self, folder, rows, parts, **options):
        """Has a writer, and the plan that DTensors would make."""
        self.parts = parts
        self.writer = StorageWriter(folder, **options)
        self.items = [self.item(name, rows, *part) for name, part in parts.items()]

    @staticmethod
    def item(name, rows, begin, tensor):
        """What a planner says of a part."""
        whole = torch.empty(rows, *tensor.shape[1:], dtype=tensor.dtype, device="meta")
        planner = DefaultSavePlanner()
        planner.set_up_planner({name: whole}, is_coordinator=True)
        data = planner.create_local_plan().items[0].tensor_data
        offsets = torch.Size([begin, *[0] * (tensor.dim() - 1)])
        chunk = ChunkStorageMetadata(offsets, tensor.shape)
        data = dataclasses.replace(data, chunk=chunk)
        return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, None, data)

    def local_plan(self, **site):
        """The plan for the coordinator, from another site."""
        plan = self.writer.prepare_local_plan(SavePlan(self.items))
        found = plan.storage_data
        return dataclasses.replace(plan, storage_data=found._replace(site=SITE._replace(**site)))

    def resolve_data(self, item):
        """Makes a rank a planner."""
        return self.parts[item.index.fqn][1]


WHOLE = {"w": torch.arange(10.0).reshape(5, 2), "x": torch.arange(5).half()}


def ranks_of(folder, **options):
    """Two ranks: one has two rows, the other three."""
    parts = [
        {name: (begin, tensor[begin:end]) for name, tensor in WHOLE.items()}
        for begin, end in ((0, 2), (2, 5))
    ]
    return [Rank(folder, 5, each, **options) for each in parts]


def plans_of(ranks, *sites):
    """The coordinator's answers."""
    local = [rank.local_plan(**site) for rank, site in zip(ranks, sites, strict=True)]
    return ranks[0].writer.prepare_global_plan(local)


def write(ranks, plans):
    """Has all ranks write, and returns the results."""
    return [
        rank.writer.write_data(plan, rank).value() for rank, plan in zip(ranks, plans, strict=True)
    ]


@pytest.mark.parametrize(
    ("sites", "can_share"),
    [
        ([{}], True),
        ([{"boot_id": ""}], True),
        ([{}, {}, {}], True),
        ([{"boot_id": ""}, {"boot_id": ""}], False),
        ([{}, {"boot_id": "other"}], False),
        ([{}, {"device": 9}], False),
        ([{}, {"inode": 9}], False),
        ([{}, {}, {"rest": "new"}], False),
        ([{"type": LUSTRE}, {"type": LUSTRE, "boot_id": "other"}], True),
        ([{"type": LUSTRE}, {"type": LUSTRE, "device": 9}], True),
        ([{"type": LUSTRE}, {"type": LUSTRE, "boot_id": "other", "inode": 9}], False),
        ([{"type": LUSTRE}, {"type": NFS, "boot_id": "other"}], False),
    ],
)
def test_sites(sites, can_share):
    """Ranks share files on one machine, or on a file system that allows it."""
    found = [SITE._replace(**each) for each in sites]
    assert can_share_files(found) is can_share
    same = len({(each.boot_id, each.device) for each in found}) == 1
    assert one_machine(found) is same


def test_site_of_a_folder(tmp_path):
    """It need not exist. Paths and links to it are equal; others are not."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    site = site_of(tmp_path / "real" / "a" / "b")
    assert site == site_of(str(tmp_path / "link" / "a" / "b"))
    assert site.inode == (tmp_path / "real").stat().st_ino
    assert site != site_of(tmp_path / "real" / "a")
    assert site != site_of(tmp_path / "a" / "b")
    if os.path.exists("/proc/sys/kernel/random/boot_id"):
        assert len(site.boot_id) == 36
        assert site_of("/proc").type == 0x9FA0


def test_ranks_write_one_file(tmp_path):
    """Plans travel by pickle, and so do writers."""
    ranks = pickle.loads(pickle.dumps(ranks_of(tmp_path / "a")))
    plans = plans_of(ranks, {}, {})
    results = pickle.loads(pickle.dumps(write(ranks, pickle.loads(pickle.dumps(plans)))))
    assert [len(each) for each in results] == [2, 2]
    ranks[0].writer.finish(None, results)
    save_files(WHOLE, tmp_path / "b")
    found = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert found == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert os.listdir(tmp_path / "a") == ["model.safetensors"]


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_rank_that_does_not_write(tmp_path, left_out):
    """finish() names the tensor, and the old model stays."""
    save_files({"old": torch.ones(2)}, tmp_path)
    ranks = ranks_of(tmp_path)
    results = write(ranks, plans_of(ranks, {}, {}))
    results[left_out] = []
    with pytest.raises(safetensors.SafetensorError, match="of tensor `w`, which has 40"):
        ranks[0].writer.finish(None, results)
    assert load_files(tmp_path).keys() == {"old"}
    assert os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("boot_id", ["boot", "other"])
def test_each_machine_flushes_its_writes(monkeypatch, tmp_path, boot_id, replaces, fsync):
    """If a model is replaced or fsync is wanted: the coordinator can flush only its own."""
    if replaces:
        save_files({"old": torch.ones(2)}, tmp_path / "a")
    ranks = ranks_of(tmp_path / "a", fsync=fsync)
    plans = plans_of(ranks, {"type": LUSTRE}, {"type": LUSTRE, "boot_id": boot_id})
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    write(ranks, plans)
    assert len(flushed) == (2 if boot_id == "other" and (replaces or fsync) else 0)
    ranks[0].writer.reset()
    assert (tmp_path / "a").exists() is replaces


def test_files_of_single_ranks(tmp_path):
    """Are complete when a rank has written. A second save replaces them. Hidden files and patches
    are not in the way."""
    beside = ["._model.safetensors", "step1.safetensors-patch"]
    (tmp_path / "a").mkdir()
    for name in beside:
        (tmp_path / "a" / name).write_bytes(b"x")
    for _ in range(2):
        ranks = ranks_of(tmp_path / "a")
        with pytest.warns(UserWarning, match=r"safetensors\.dcp\.consolidate"):
            plans = plans_of(ranks, {}, {"boot_id": "other"})
        results = write(ranks, plans)
        ranks[0].writer.finish(None, results)
    written = [f"shard-0000{number}-model-00001-of-00001.safetensors" for number in (1, 2)]
    assert sorted(os.listdir(tmp_path / "a")) == sorted([*beside, *written])
    for name in beside:
        (tmp_path / "a" / name).unlink()
    consolidate(tmp_path / "a", tmp_path / "b")
    found = load_files(tmp_path / "b")
    assert all(torch.equal(found[name], WHOLE[name]) for name in WHOLE)
    ranks = ranks_of(tmp_path / "a")
    with pytest.warns(UserWarning, match=r"safetensors\.dcp\.consolidate"):
        plans = plans_of(ranks, {}, {"boot_id": "other"})
    results = write(ranks, plans)
    with pytest.raises(safetensors.SafetensorError, match="of tensor `w`"):
        ranks[0].writer.finish(None, results[1:])
    # One rank cannot replace the files of two.
    (rank,) = [Rank(tmp_path / "a", 5, {name: (0, each) for name, each in WHOLE.items()})]
    save_files({"a": torch.ones(1)}, tmp_path / "a", name="other")
    with pytest.raises(safetensors.SafetensorError, match=r"other\.safetensors exists: two models"):
        rank.writer.write_data(plans[0], rank)
    assert len(os.listdir(tmp_path / "a")) == 3


@pytest.mark.filterwarnings("ignore:The ranks do not share")
def test_two_parts_of_a_tensor_in_a_file_of_one_rank(tmp_path):
    """Such a file would have one name for both."""
    ranks = ranks_of(tmp_path / "a")
    ranks[0].items.append(Rank.item("w", 5, 4, torch.ones(1, 2)))
    plans = plans_of(ranks, {}, {"inode": 9})
    with pytest.raises(safetensors.SafetensorError, match="two parts of tensor `w`"):
        write(ranks, plans)
    assert os.listdir(tmp_path / "a") == []


def test_another_file(tmp_path):
    """A rank that finds another file, or another folder, writes nothing."""
    ranks = ranks_of(tmp_path)
    plans = plans_of(ranks, {}, {})
    file = plans[1].storage_data.files[0]
    parts = tmp_path / file.folder
    path = parts / file.name
    data = path.read_bytes()
    with path.open("rb"):  # which keeps its inode in use
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(safetensors.SafetensorError, match="do not find the same file"):
            ranks[1].writer.write_data(plans[1], ranks[1])
    assert path.read_bytes() == data
    os.truncate(path, 3)
    with pytest.raises(safetensors.SafetensorError, match="do not find the same file"):
        ranks[1].writer.write_data(plans[1], ranks[1])
    assert path.read_bytes() == bytes(3)
    path.unlink()
    path.symlink_to(tmp_path / "private")
    (tmp_path / "private").write_bytes(data)
    with pytest.raises(safetensors.SafetensorError, match="it is a symbolic link, so"):
        ranks[1].writer.write_data(plans[1], ranks[1])
    parts.rename(tmp_path / "moved")
    parts.mkdir(0o700)
    path.write_bytes(data)
    with pytest.raises(safetensors.SafetensorError, match="it is another folder"):
        ranks[1].writer.write_data(plans[1], ranks[1])
    assert (tmp_path / "private").read_bytes() == path.read_bytes() == data


def test_ranks_that_differ(tmp_path):
    """A tensor has one dtype and one shape on all ranks."""
    ranks = ranks_of(tmp_path / "a")
    ranks[1].items = [Rank.item("x", 5, 2, torch.ones(3))]
    with pytest.raises(safetensors.SafetensorError, match=r"`x` is F16 \[5\] on one rank and F32"):
        plans_of(ranks, {}, {})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("values", [torch.ones(2, 3), torch.ones(2, 2).double(), [1.0]])
def test_values_that_are_not_the_plans(tmp_path, values):
    """A part of another shape or dtype is refused; so is what is no tensor."""
    ranks = ranks_of(tmp_path / "a")
    plans = plans_of(ranks, {}, {})
    ranks[0].parts["w"] = (0, values)
    with pytest.raises(safetensors.SafetensorError, match="`w`"):
        ranks[0].writer.write_data(plans[0], ranks[0])
    assert not (tmp_path / "a").exists()


def test_part_outside_of_its_tensor(tmp_path):
    """Planners check it; the writer would otherwise write over other tensors."""
    ranks = ranks_of(tmp_path / "a")
    ranks[0].items = [Rank.item("w", 5, 4, torch.ones(2, 2))]
    ranks[0].parts["w"] = (4, torch.ones(2, 2))
    plans = plans_of(ranks, {}, {})
    with pytest.raises(safetensors.SafetensorError, match=r"not inside tensor `w`"):
        ranks[0].writer.write_data(plans[0], ranks[0])
