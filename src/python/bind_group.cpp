// What loads by groups of ranks do for many tensors at once: safetensors/_group.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

/// Orders forms: types and shapes of tensors.
struct FormLess {
  bool operator()(const TensorInfo* a, const TensorInfo* b) const {
    if (a->dtype != b->dtype) return a->dtype < b->dtype;
    return std::ranges::lexicographical_compare(a->shape, b->shape);
  }
};

py::tuple to_form(const TensorInfo& info) {
  py::tuple shape(info.shape.size());
  for (std::size_t axis = 0; axis < info.shape.size(); ++axis) shape[axis] = info.shape[axis];
  return py::make_tuple(shape, info.nbytes());
}

py::tuple forms(py::handle handle, const py::list& names) {
  const auto file = py::cast<const Handle&>(handle).file();
  std::map<const TensorInfo*, std::size_t, FormLess> known;
  py::list found;
  py::list numbers(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TensorInfo& info = file->file().at(text_of(names[i], "name"));
    const auto [entry, is_new] = known.try_emplace(&info, known.size());
    if (is_new) found.append(to_form(info));
    PyList_SET_ITEM(numbers.ptr(), static_cast<Py_ssize_t>(i),
                    to_int(entry->second).release().ptr());
  }
  return py::make_tuple(found, numbers);
}

/// Rows of bytes to copy.
struct Move {
  std::uint64_t to;    ///< an address
  std::uint64_t from;  ///< an offset in the source
  std::uint64_t nbytes;
  std::uint64_t rows;
  std::uint64_t to_stride;
  std::uint64_t from_stride;
};
static_assert(sizeof(Move) == 48);

/// Returns whether the rows lie within so many bytes. There is at least one.
bool is_within(const Move& move, std::uint64_t nbytes) {
  if (move.rows == 0 || move.nbytes > nbytes || move.from > nbytes - move.nbytes) return false;
  const std::uint64_t rest = nbytes - move.nbytes - move.from;
  return move.rows == 1 || move.from_stride <= rest / (move.rows - 1);
}

void copy_rows(std::uintptr_t source, std::uint64_t nbytes, py::handle moves) {
  const BufferView view(moves, "moves");
  if (view.bytes().size() % sizeof(Move) != 0) {
    throw py::value_error("moves are 6 integers of 64 bits each");
  }
  std::vector<Move> all(view.bytes().size() / sizeof(Move));
  if (!all.empty()) std::memcpy(all.data(), view.bytes().data(), all.size() * sizeof(Move));
  for (const Move& move : all) {
    if (!is_within(move, nbytes)) throw py::value_error("rows lie outside of the source");
  }
  const GilRelease release;
  for (const Move& move : all) {
    for (std::uint64_t row = 0; row < move.rows; ++row) {
      std::memcpy(reinterpret_cast<std::byte*>(move.to + row * move.to_stride),
                  reinterpret_cast<const std::byte*>(source + move.from + row * move.from_stride),
                  static_cast<std::size_t>(move.nbytes));
    }
  }
}

std::uint64_t read_gap(py::handle handle) {
  return py::cast<const Handle&>(handle).file()->file().source()->cost().gap_nbytes;
}

}  // namespace

void register_group(py::module_& module) {
  define(
      module, "_forms", &forms, py::arg("handle"), py::arg("names"),
      "_forms(handle, names)\n--\n\n"
      "Returns the shapes and sizes in bytes of tensors, those of equal type and shape once, and\n"
      "for each tensor the position of its own.");
  define(module, "_read_gap", &read_gap, py::arg("handle"),
         "_read_gap(handle)\n--\n\n"
         "Returns the longest gap in bytes between wanted bytes that is read and discarded.");
  define(
      module, "_copy_rows", &copy_rows, py::arg("source"), py::arg("nbytes"), py::arg("moves"),
      "_copy_rows(source, nbytes, moves)\n--\n\n"
      "Copies rows of bytes from the memory at an address. moves: six 64-bit integers each: the\n"
      "address of the first row's copy, the offset of the first row, the bytes of a row, how many\n"
      "rows, and the distances between copies and between rows.");
}

}  // namespace safetensors::python
