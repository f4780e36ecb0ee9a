"""What safetensors.jax.load_files reads, and where its arrays are: on eight devices of the CPU."""

import itertools
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support import children, jax_devices, memory
from support.jax_devices import COLUMNS, MESH, ROWS, WHOLE, arranged, same, saved
from support.range_readers import MemoryReader
from support.servers import RangeServer

jax = jax_devices.jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402

import safetensors.jax as module  # noqa: E402
from safetensors.jax import load_files  # noqa: E402

KiB, MiB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    "spec",
    [(), ("x",), (None, "y"), ("x", "y"), (("x", "y"),), (None, ("y", "x")), (("y", "x"), None)],
    ids=str,
)
def test_each_byte_is_read_once(tmp_path, spec):
    """Of regions that several devices hold, and of columns, whose rows share reads."""
    array = arranged((1024, 1024))
    reader = MemoryReader(saved(tmp_path, {"a": array}).read_bytes())
    sharding = NamedSharding(MESH, PartitionSpec(*spec))
    same(load_files(reader, sharding)["a"], array, sharding)
    assert len(reader.opens) == 1
    taken = sorted((offset, offset + nbytes) for offset, nbytes in reader.reads)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(taken))
    assert reader.nbytes <= array.nbytes
    assert reader.nbytes >= array.nbytes - reader.opens[0]


PROCESS = """
    import warnings
    warnings.simplefilter("ignore")
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from safetensors.jax import load_files
    from support.range_readers import MemoryReader

    address, number, path = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(address, 2, int(number), initialization_timeout=60)
    # The devices of both processes take turns along the axis.
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4).T.reshape(8), ("x",))
    content = open(path, "rb").read()
    wanted = np.arange(4096 * 1024, dtype=np.float32).reshape(4096, 1024)
    for spec in PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec():
        reader = MemoryReader(content)
        array = load_files(reader, NamedSharding(mesh, spec))["a"]
        assert array.shape == wanted.shape
        assert len(array.addressable_shards) == 4
        for shard in array.addressable_shards:
            assert shard.device.process_index == int(number)
            assert np.array_equal(shard.data, wanted[shard.index])
        print(reader.nbytes)
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Each reads the regions of its own devices: rows without the others, columns with gaps."""
    path = saved(tmp_path, {"a": arranged((4096, 1024))})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(children.run, PROCESS, address, number, path) for number in range(2)]
        counts = [list(map(int, run.result().split())) for run in runs]
    size = 16 * MiB
    for rows, columns, whole in counts:
        assert size // 2 - MiB <= rows <= size // 2 + 64 * KiB
        assert columns <= size
        assert size - MiB <= whole <= size


def test_a_url(tmp_path):
    """Over HTTP, by requests for the wanted parts."""
    arrays = {"a": arranged((1024, 1024)), "b": arranged((512, 2048), np.int32)}
    content = saved(tmp_path, arrays).read_bytes()
    with RangeServer({"/model.safetensors": content}) as server:
        loaded = load_files(server.url("/model.safetensors"), {"a": COLUMNS, "b": ROWS})
        same(loaded["a"], arrays["a"], COLUMNS)
        same(loaded["b"], arrays["b"], ROWS)
        assert server.requests <= 4
        assert server.bytes_sent <= len(content) + 512 * KiB


def test_arrays_are_the_memory_that_was_read(tmp_path):
    """On the CPU there is no copy, and devices share regions."""
    path = saved(tmp_path, {"a": arranged((64, 256)), "b": arranged((8, 2, 2))})
    for array in load_files(path, NamedSharding(MESH, PartitionSpec("x"))).values():
        addresses = {}
        for shard in array.addressable_shards:
            found = shard.data.unsafe_buffer_pointer()
            assert addresses.setdefault(str(shard.index), found) == found
        assert len(addresses) == 2


def test_donated_arguments_leave_the_memory_intact(tmp_path, monkeypatch):
    """A compiled function does not write to it: other arrays may be the same memory."""
    array = arranged((256, 256))
    path = saved(tmp_path, {"a": array})
    made, allocate = [], module._aligned
    monkeypatch.setattr(
        module, "_aligned", lambda nbytes: made.append(allocate(nbytes)) or made[-1]
    )

    def changed(x):
        return x * 0 - 1

    for sharding in (WHOLE, ROWS, SingleDeviceSharding(jax.devices()[0])):
        donated = jax.jit(changed, donate_argnums=0, out_shardings=sharding)
        loaded = load_files(path, sharding)["a"]
        assert loaded.addressable_shards[0].data.unsafe_buffer_pointer() == made[-1].ctypes.data
        assert np.array_equal(donated(loaded), changed(array))
        assert loaded.is_deleted()
        assert made[-1].tobytes() == array.tobytes()
        # An array of one device, whose memory other devices' arrays are.
        loaded = load_files(path, sharding)["a"]
        part, *others = [shard.data for shard in loaded.addressable_shards]
        wanted = [np.array(other) for other in others]
        jax.jit(changed, donate_argnums=0)(part).block_until_ready()
        assert part.is_deleted()
        assert made[-1].tobytes() == array.tobytes()
        assert all(map(np.array_equal, others, wanted))


PEAK = """
    import warnings
    warnings.simplefilter("ignore")
    from support import memory
    from support.jax_devices import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from safetensors.jax import load_files

    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    by_name = {
        "small": NamedSharding(mesh, PartitionSpec("x", "y")),
        "rows*": NamedSharding(mesh, PartitionSpec(("x", "y"))),
        "columns*": NamedSharding(mesh, PartitionSpec(None, ("y", "x"))),
        "whole*": NamedSharding(mesh, PartitionSpec()),
    }
    load_files(sys.argv[1], by_name, keys=["small"])  # starts what JAX starts once
    kept = []
    print(memory.peak_growth(lambda: kept.append(load_files(sys.argv[1], by_name))))
    for name, array in kept[0].items():
        begin = float(name[-1]) if name != "small" else 0.0
        assert np.asarray(array).ravel()[:2].tolist() == [begin, begin + 1], name
"""


@pytest.mark.slow
@pytest.mark.skipif(not memory.can_measure_peak(), reason="/proc cannot reset the peak")
def test_peak_memory(tmp_path):
    """The tensors and 32 MiB, although eight devices hold the replicated ones."""
    arrays = {"small": arranged((16, 16))}
    for i, name in enumerate(["rows", "columns", "whole", "rows", "columns", "whole"]):
        arrays[f"{name}{i}"] = arranged((4096, 2048)) + np.float32(i)
    path = saved(tmp_path, arrays)
    total = sum(array.nbytes for array in arrays.values())
    assert total > 190 * MiB
    assert int(children.run(PEAK, path)) <= total + 32 * MiB


def test_torch_is_not_needed(tmp_path):
    """Neither to load, nor to resolve a plan."""
    path = saved(tmp_path, {"a": arranged((8, 8))})
    code = """
        import warnings
        warnings.simplefilter("ignore")
        sys.modules["torch"] = None
        from support.jax_devices import jax
        from safetensors.jax import load_files
        from safetensors.plan import Shard, resolve

        plan = resolve(sys.argv[1], {"a": Shard(0, 1, 2)})
        print(plan.explain()[0].wanted_bytes)
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
        print(load_files(sys.argv[1], sharding, plan=plan)["a"].sum())
    """
    wanted = arranged((8, 8))[4:]
    assert children.run(code, path).split() == [str(wanted.nbytes), str(wanted.sum())]
