#include "digests.hpp"

#include <array>
#include <cstring>

#include "any_thread_gil.hpp"
#include "errors.hpp"
#include "loan.hpp"
#include "python_exception.hpp"
#include "python_source.hpp"

namespace safetensors::python {
namespace {

std::optional<Digest> to_digest(py::handle text) {
  if (text.is_none()) return std::nullopt;
  return Digest::parse(text_of(text, "digest"));
}

std::vector<std::uint64_t> to_blocks(py::handle object) {
  std::vector<std::uint64_t> blocks;
  if (object.is_none()) return blocks;
  const auto bytes = py::cast<std::string_view>(py::cast<py::bytes>(object));
  blocks.reserve(bytes.size() / 8);
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t block = 0;
    for (std::size_t i = 8; i-- > 0;)
      block = block << 8 | static_cast<unsigned char>(bytes[at + i]);
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

Digest sha256_by_hashlib(std::string_view start, std::span<const std::byte> bytes) {
  const AnyThreadGil gil;
  if (!gil) fail(ErrorCode::kIo, "SHA-256: the interpreter is exiting");
  try {
    const py::object hash =
        py::module_::import("hashlib").attr("sha256")(py::bytes(start.data(), start.size()));
    if (!bytes.empty()) {
      const py::object update = hash.attr("update");
      if (PyCFunction_Check(update.ptr())) {  // it keeps nothing
        Loan loan({}, bytes);
        (void)update(loan.view());
        (void)loan.take_back("hashlib");
      } else {  // a program has replaced it
        (void)update(py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      }
    }
    return Digest::parse("sha256:" + py::cast<std::string>(hash.attr("hexdigest")()));
  } catch (py::error_already_set& error) {
    error.restore();
    throw take_python_error("SHA-256 failed: ", {});
  }
}

std::optional<FileDigests> to_digests(py::handle found) {
  if (found.is_none()) return std::nullopt;
  stop_python_sources_at_exit();
  const auto tuple = py::cast<py::tuple>(found);
  if (tuple.size() != 5) throw py::type_error("the digests of a file have five parts");
  FileDigests digests{.is_partial = py::cast<bool>(tuple[3]), .sha256 = &sha256_by_hashlib};
  if (!py::object(tuple[0]).is_none()) digests.nbytes = py::cast<std::uint64_t>(tuple[0]);
  digests.header = to_digest(py::object(tuple[1]));
  digests.file = to_digest(py::object(tuple[4]));
  for (const auto& [name, value] : py::cast<py::dict>(tuple[2])) {
    const auto pair = py::cast<py::tuple>(value);
    digests.tensors.emplace(text_of(name, "name"), TensorDigests{to_digest(py::object(pair[0])),
                                                                 to_blocks(py::object(pair[1]))});
  }
  return digests;
}

std::optional<FileDigests> digests_of(py::handle verify, py::handle expected_hashes,
                                      py::handle filename) {
  if (verify.is_none() && expected_hashes.is_none()) return std::nullopt;
  const py::object find = py::module_::import("safetensors._checking.verify").attr("digests_for");
  return to_digests(find(filename, verify, expected_hashes));
}

}  // namespace safetensors::python
