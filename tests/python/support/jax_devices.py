"""Eight devices of JAX on the CPU, and shardings over them: to be imported before JAX is used."""

import warnings

import ml_dtypes  # noqa: F401  JAX needs it; without both, tests are skipped
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

from safetensors.numpy import save_file

COUNT = 8

if jax.config.jax_num_cpu_devices != COUNT:
    jax.config.update("jax_num_cpu_devices", COUNT)

MESHES = {(8,): "x", (2, 4): "xy", (2, 2, 2): "xyz"}


def mesh_of(shape):
    """Returns a mesh of all devices, with the axes of MESHES."""
    return Mesh(np.array(jax.devices()).reshape(shape), tuple(MESHES[shape]))


MESH = mesh_of((2, 4))
WHOLE = NamedSharding(MESH, PartitionSpec())
ROWS = NamedSharding(MESH, PartitionSpec("x"))
COLUMNS = NamedSharding(MESH, PartitionSpec(None, "y"))


def arranged(shape, dtype=np.float32):
    """Returns an array none of whose regions equal each other."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def same(array, wanted, sharding):
    """Checks the values, the sharding, and the data on each device."""
    wanted = np.asarray(wanted)
    assert isinstance(array, jax.Array)
    assert array.dtype == wanted.dtype
    assert array.shape == wanted.shape
    assert array.sharding == sharding
    assert len(array.addressable_shards) == len(sharding.addressable_devices)
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == wanted[shard.index].tobytes()


def saved(folder, arrays, name="model.safetensors"):
    """Saves arrays to a file, and returns its path."""
    path = folder / name
    save_file(arrays, path)
    return path
