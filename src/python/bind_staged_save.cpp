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
#include "save_arguments.hpp"
#include "tensor_spec.hpp"
#include "typed_path.hpp"

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
  Save(py::handle tensors, py::handle path, py::handle options)
      : path_(path_to_save(path, "filename")) {
    std::vector<TensorData> data;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(tensors)) {
      data.push_back(py::cast<const TensorSpec&>(value).data(text_of_key(key, "tensors")));
      names_.emplace_back(data.back().name);
    }
    SaveArguments arguments(options);
    budget_nbytes_ = arguments.budget_nbytes;
    saving({}, [&] {
      save_ = std::make_unique<StagedSave>(data, path_, arguments.metadata_or_null(),
                                           SaveOptions{.fsync = arguments.fsync},
                                           std::move(arguments.sums));
    });
  }

  /// Copies the tensors. Returns when all are copied, or the save has ended. `readers` maps names
  /// of tensors that are not in memory to functions `f(begin, memoryview)`, which copy a part;
  /// those of tensors on CUDA devices to the index of the device and its current stream.
  void stage(const py::dict& readers) {
    const std::vector<StagedPlace> places = places_of(readers);  // destroyed with the GIL
    const Interrupt interrupt = python_interrupt();
    const GilRelease release;
    save_->stage(places, budget_nbytes_, interrupt);
  }

  /// Copies the tensors and writes the file, on the calling thread. Arguments as of stage().
  void write_here(const py::dict& readers) {
    const std::vector<StagedPlace> places = places_of(readers);
    const Interrupt interrupt = python_interrupt();
    saving(path_, [&] {
      const GilRelease release;
      save_->write_here(places, budget_nbytes_, interrupt);
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

  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::optional<std::uint64_t> budget_nbytes_;
  std::unique_ptr<StagedSave> save_;
};

}  // namespace

void register_staged_save(py::module_& module) {
  Class<Save>(module, "_StagedSave")
      .constructor(
          [](py::handle tensors, py::handle filename, py::handle options) {
            return std::make_unique<Save>(tensors, filename, options);
          },
          py::arg("tensors"), py::arg("filename"), py::arg("options"))
      .method("stage", &Save::stage, py::arg("readers"))
      .method("write", &Save::write)
      .method("write_here", &Save::write_here, py::arg("readers"))
      .method("stop", &Save::stop)
      .property("nbytes_done", &Save::nbytes_done);
  define(module, "_staging_state", [] {
    const SaveMemoryUse use = save_memory_use();
    return py::make_tuple(use.used_nbytes, use.kept_nbytes);
  });
}

}  // namespace safetensors::python
