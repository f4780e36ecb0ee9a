// _parse_sums and _sums_json: the text of sums, from and to plain objects of Python.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"
#include "safetensors/detail/path_ends.hpp"
#include "safetensors/detail/whole_text.hpp"

namespace safetensors::python {
namespace {

py::object digits_of(const Digest& digest) { return to_str(detail::hex_of(digest)); }

void add_digest(py::dict& digests, const std::optional<Digest>& digest) {
  if (digest) digests[to_str(name(digest->algorithm()))] = digits_of(*digest);
}

py::object blocks_of(const TensorSums& tensor) {
  if (!tensor.blocks) return py::none();
  std::string bytes;
  bytes.reserve(8 * tensor.blocks->size());
  for (const std::uint64_t block : *tensor.blocks) {
    for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(block >> (8 * i) & 0xFF);
  }
  return py::bytes(bytes);
}

/// Converts a dict of digits by algorithm; nothing for an algorithm that it does not have.
std::optional<Digest> digest_of(const py::dict& digests, DigestAlgorithm algorithm) {
  const py::str key = to_str(name(algorithm));
  if (!digests.contains(key)) return std::nullopt;
  return Digest::parse(std::string(name(algorithm)) + ':' +
                       std::string(text_of(digests[key], "digest")));
}

/// Returns (files, tensors, SHA-256 of the model): files are (path, size, digests of the header,
/// SHA-256 of the file), tensors are (name, path, digests, blocks).
py::tuple parse_sums(py::handle data) {
  const BufferView view(data, "data");
  const std::string_view text(reinterpret_cast<const char*>(view.bytes().data()),
                              view.bytes().size());
  const Sums sums = [&] {
    const GilRelease release;
    return Sums::parse(text);
  }();
  const GcPause pause;
  py::list files;
  std::vector<py::object> paths;
  for (const FileSums& file : sums.files()) {
    py::dict header;
    add_digest(header, file.header);
    paths.push_back(to_unicode(file.path));
    files.append(py::make_tuple(paths.back(), file.nbytes, header,
                                file.sha256 ? digits_of(*file.sha256) : py::none()));
  }
  py::list tensors;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TensorSums each = sums.tensor(i);
    py::dict digests;
    add_digest(digests, each.xxh3_128);
    add_digest(digests, each.sha256);
    tensors.append(
        py::make_tuple(to_unicode(each.name), paths[each.file], digests, blocks_of(each)));
  }
  const std::optional<Digest>& whole = sums.whole_sha256();
  return py::make_tuple(files, tensors, whole ? digits_of(*whole) : py::none());
}

/// Takes what parse_sums() returns, with the tensors in the order of their names.
py::bytes sums_json(const py::list& files, const py::list& tensors, py::handle whole) {
  Sums sums;
  py::dict numbers;
  for (const py::handle item : files) {
    const auto fields = py::cast<py::tuple>(item);
    const auto header = py::cast<py::dict>(fields[2]);
    const std::optional<Digest> xxh3 = digest_of(header, DigestAlgorithm::kXxh3_128);
    FileSums file{.path = std::string(text_of(fields[0], "path")),
                  .nbytes = size_of(fields[1], "size"),
                  .header = xxh3 ? *xxh3 : digest_of(header, DigestAlgorithm::kSha256).value()};
    if (!fields[3].is_none()) {
      file.sha256 = Digest::parse("sha256:" + std::string(text_of(fields[3], "sha256")));
    }
    numbers[fields[0]] = sums.add_file(std::move(file));
  }
  std::vector<std::uint64_t> blocks;
  for (const py::handle item : tensors) {
    const auto fields = py::cast<py::tuple>(item);
    const auto digests = py::cast<py::dict>(fields[2]);
    TensorSums tensor{.name = text_of(fields[0], "name"),
                      .file = py::cast<std::size_t>(numbers[fields[1]]),
                      .xxh3_128 = digest_of(digests, DigestAlgorithm::kXxh3_128),
                      .sha256 = digest_of(digests, DigestAlgorithm::kSha256)};
    if (!fields[3].is_none()) {
      const BufferView view(fields[3], "blocks");
      blocks.assign(view.bytes().size() / 8, 0);
      for (std::size_t i = 0; i < 8 * blocks.size(); ++i) {
        blocks[i / 8] |= std::to_integer<std::uint64_t>(view.bytes()[i]) << (8 * (i % 8));
      }
      tensor.blocks = blocks;
    }
    sums.add_tensor(tensor);
  }
  std::optional<Digest> sha256;
  if (!whole.is_none()) sha256 = Digest::parse("sha256:" + std::string(text_of(whole, "whole")));
  return {sums.json(sha256)};
}

void whole_text(const py::list& pairs, py::handle algorithm, const py::function& take) {
  const std::string prefix = std::string(text_of(algorithm, "algorithm")) + ':';
  detail::WholeText text(
      [&](std::string_view piece) { take(py::bytes(piece.data(), piece.size())); });
  for (const py::handle item : pairs) {
    const auto pair = py::cast<py::tuple>(item);
    text.add(text_of(pair[0], "name"),
             Digest::parse(prefix + std::string(text_of(pair[1], "digest"))));
  }
  text.finish();
}

py::object sums_paths_of(py::handle path) {
  py::list found;
  for (const std::filesystem::path& each : sums_paths(path_of(path, "path"))) {
    found.append(to_object(each));
  }
  return found;
}

py::object path_ends(const py::list& ends) {
  std::vector<std::filesystem::path> paths;
  for (const py::handle end : ends) paths.push_back(path_of(end, "path"));
  return py::cpp_function(
      [found = std::make_shared<const detail::PathEnds>(paths)](py::handle path) -> py::object {
        const std::optional<std::size_t> number = found->find(path_of(path, "path"));
        return number ? py::object(py::int_(*number)) : py::none();
      });
}

}  // namespace

void register_sums(py::module_& module) {
  module.add_object("_DIGEST_BLOCK_SIZE", to_int(kDigestBlockSize));
  define(
      module, "_sums_path",
      [](py::handle path) { return to_object(sums_path(path_of(path, "path"))); }, py::arg("path"),
      "_sums_path(path)\n--\n\nReturns where the sums of a file or an index are.");
  define(module, "_sums_paths", &sums_paths_of, py::arg("path"),
         "_sums_paths(path)\n--\n\n"
         "Returns where sums with digests of a file may be, the most specific first.");
  define(
      module, "_sums_name",
      [](py::handle name, py::handle variant) {
        return to_str(sums_name(text_of(name, "name"), text_of(variant, "variant")));
      },
      py::arg("name"), py::arg("variant"),
      "_sums_name(name, variant)\n--\n\nReturns the name of the sums of a model.");
  define(module, "_path_ends", &path_ends, py::arg("ends"),
         "_path_ends(ends)\n--\n\n"
         "Returns a function that takes a path, and returns the position of the longest of the\n"
         "relative paths `ends` that it ends with, or None.");
  define(module, "_parse_sums", &parse_sums, py::arg("data"),
         "_parse_sums(data)\n--\n\n"
         "Returns (files, tensors, SHA-256 of the model) of the text of sums.");
  define(module, "_sums_json", &sums_json, py::arg("files"), py::arg("tensors"), py::arg("whole"),
         "_sums_json(files, tensors, whole)\n--\n\n"
         "Returns the text of sums; takes what _parse_sums returns, tensors sorted by name.");
  define(
      module, "_whole_text", &whole_text, py::arg("pairs"), py::arg("algorithm"), py::arg("take"),
      "_whole_text(pairs, algorithm, take)\n--\n\n"
      "Makes the text whose digest is that of a model, of the names and digests of its tensors,\n"
      "sorted by name. Calls `take(bytes)` with each piece of it.");
}

}  // namespace safetensors::python
