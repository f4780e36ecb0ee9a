// _TensorHasher and _xxh3_128: digests of tensors, and of other bytes.
#include <string>
#include <vector>

#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

// Hashing fewer bytes takes less time than releasing the GIL and acquiring it again.
constexpr std::size_t kGilReleaseThreshold = std::size_t{64} << 10;

/// A TensorHasher, and the text that a tensor's digest begins with, for those who hash by another
/// algorithm.
struct PyTensorHasher {
  std::string start;
  TensorHasher hasher;
};

PyTensorHasher make_hasher(py::handle dtype, py::handle shape, py::handle block_size) {
  const Dtype found = dtype_of_code(dtype);
  const std::vector<std::uint64_t> dims = dims_of(shape);
  return {digest_start(found, dims), TensorHasher(found, dims, size_of(block_size, "block_size"))};
}

void update(PyTensorHasher& self, py::handle data) {
  const BufferView view(data, "data");
  if (view.bytes().size() < kGilReleaseThreshold) return self.hasher.update(view.bytes());
  const GilRelease release;
  self.hasher.update(view.bytes());
}

py::bytes blocks(const PyTensorHasher& self) {
  std::string bytes;
  for (const std::uint64_t block : self.hasher.blocks()) {
    for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(block >> (8 * i) & 0xFF);
  }
  return {bytes};
}

py::str xxh3_128(py::handle data) {
  const BufferView view(data, "data");
  Xxh3Hasher hasher;
  hasher.update(view.bytes());
  return to_str(hasher.digest().text());
}

}  // namespace

void register_digest(py::module_& module) {
  Class<PyTensorHasher>(module, "_TensorHasher",
                        "Computes the digest of a tensor; one thread at a time.")
      .constructor(&make_hasher, py::arg("dtype"), py::arg("shape"), py::arg("block_size") = 0)
      .property(
          "start", [](const PyTensorHasher& self) { return py::bytes(self.start); },
          "What comes before the tensor's bytes in its digest.")
      .method("update", &update, py::arg("data"), "update(data)\n--\n\nAdds the next bytes.")
      .method(
          "digest", [](const PyTensorHasher& self) { return to_str(self.hasher.digest().text()); },
          "digest()\n--\n\nReturns the digest, such as \"xxh3-128:99aa...\".")
      .method("blocks", &blocks,
              "blocks()\n--\n\nReturns XXH3-64 of each block, 8 little-endian bytes each.");
  define(module, "_xxh3_128", &xxh3_128, py::arg("data"),
         "_xxh3_128(data)\n--\n\nReturns the digest of bytes, such as \"xxh3-128:99aa...\".");
}

}  // namespace safetensors::python
