// _StagedSave, a save in the background, and the memory of such saves.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "loan.hpp"
#include "register.hpp"
#include "safetensors/staged_save.hpp"
#include "tensor_spec.hpp"
#include "typed_path.hpp"
#include "write_sums.hpp"

namespace safetensors::python {
namespace {

/// Returns a function that copies a part of a tensor by one of Python, `f(begin, memoryview)`. The
/// parts come to memory of its own and not to the chunks, which the next save uses again.
auto reader_of(const py::object& function) {
  return
      [function, lent = std::make_shared<Buffer>()](std::uint64_t begin, std::span<std::byte> to) {
        if (lent->size() < to.size()) *lent = Buffer(to.size());
        const GilAcquire gil;
        Loan loan(std::move(*lent), to.size(), false);
        (void)function(begin, loan.view());
        *lent = loan.take_back("the reader of a tensor");
        std::memcpy(to.data(), lent->data(), to.size());
      };
}

StagedPlace place_of(const py::object& reader) {
  if (!py::isinstance<py::tuple>(reader)) return {.read = reader_of(reader)};
  const auto [device, stream] = py::cast<std::pair<int, std::uintptr_t>>(reader);
  return {.device = CudaStream{device, reinterpret_cast<void*>(stream)}};
}

class Save {
 public:
  Save(py::handle tensors, py::handle metadata, py::handle path, bool fsync, py::handle sums)
      : path_(path_to_save(path, "filename")) {
    std::vector<TensorData> data;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(tensors)) {
      data.push_back(py::cast<const TensorSpec&>(value).data(text_of_key(key, "tensors")));
      names_.emplace_back(data.back().name);
    }
    const std::optional<Metadata> given = metadata_of(metadata);
    const SaveOptions options{.fsync = fsync};
    saving({}, [&] {
      save_ = std::make_unique<StagedSave>(
          data, path_, given ? &*given : nullptr, options,
          std::unique_ptr<detail::WriteSums>(new detail::WriteSums(to_write_sums(sums))));
    });
  }

  /// Copies the tensors. Returns when all are copied, or the save has ended. `readers` maps names
  /// of tensors that are not in memory to functions `f(begin, memoryview)`, which copy a part;
  /// those of tensors on CUDA devices to the index of the device and its current stream.
  void stage(const py::dict& readers, py::handle budget_bytes) {
    const std::vector<StagedPlace> places = places_of(readers);  // destroyed with the GIL
    const std::optional<std::uint64_t> budget = budget_of(budget_bytes);
    const Interrupt interrupt = python_interrupt();
    const GilRelease release;
    save_->stage(places, budget, interrupt);
  }

  /// Copies the tensors and writes the file, on the calling thread. Arguments as of stage().
  void write_here(const py::dict& readers, py::handle budget_bytes) {
    const std::vector<StagedPlace> places = places_of(readers);
    const std::optional<std::uint64_t> budget = budget_of(budget_bytes);
    const Interrupt interrupt = python_interrupt();
    saving(path_, [&] {
      const GilRelease release;
      save_->write_here(places, budget, interrupt);
    });
  }

  /// Writes the file, as the copies come.
  void write() {
    saving(path_, [&] {
      const GilRelease release;
      save_->write();
    });
  }

  void stop() {
    const GilRelease release;
    save_->stop();
  }

  [[nodiscard]] std::uint64_t nbytes_done() const noexcept { return save_->nbytes_done(); }

 private:
  [[nodiscard]] std::vector<StagedPlace> places_of(const py::dict& readers) const {
    std::vector<StagedPlace> places;
    for (const std::string& each : names_) {
      const py::str name = to_str(each);
      places.push_back(readers.contains(name) ? place_of(readers[name]) : StagedPlace{});
    }
    return places;
  }

  static std::optional<std::uint64_t> budget_of(py::handle given) {
    if (given.is_none()) return std::nullopt;
    return size_of(given, "budget_bytes");
  }

  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::unique_ptr<StagedSave> save_;
};

}  // namespace

void register_staged_save(py::module_& module) {
  Class<Save>(module, "_StagedSave")
      .constructor(
          [](py::handle tensors, py::handle metadata, py::handle filename, bool fsync,
             py::handle sums) {
            return std::make_unique<Save>(tensors, metadata, filename, fsync, sums);
          },
          py::arg("tensors"), py::arg("metadata"), py::arg("filename"), py::arg("fsync"),
          py::arg("sums") = py::none())
      .method("stage", &Save::stage, py::arg("readers"), py::arg("budget_bytes"))
      .method("write", &Save::write)
      .method("write_here", &Save::write_here, py::arg("readers"), py::arg("budget_bytes"))
      .method("stop", &Save::stop)
      .property("nbytes_done", &Save::nbytes_done);
  define(module, "_staging_state", [] {
    const SaveMemoryUse use = save_memory_use();
    return py::make_tuple(use.used_nbytes, use.kept_nbytes);
  });
}

}  // namespace safetensors::python
