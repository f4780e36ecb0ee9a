#include "save_target.hpp"

#include "typed_path.hpp"

namespace safetensors::python {

SaveTarget::SaveTarget(py::handle object, const char* argument) {
  if (py::isinstance<OwnTarget>(object)) {
    own_ = py::cast<const OwnTarget&>(object);
    path_ = own_->place.folder.path() / own_->place.name.text();
    return;
  }
  path_ = path_to_save(object, argument);
}

std::unique_ptr<ByteSink> SaveTarget::make_sink(
    const Interrupt& interrupt,
    const std::function<void(const std::filesystem::path&)>& before_rename) const {
#if !defined(_WIN32)
  if (own_) {
    return detail::make_part_sink(own_->place, own_->like ? &*own_->like : nullptr, before_rename);
  }
#endif
  return make_file_sink(path_, {}, interrupt, before_rename);
}

}  // namespace safetensors::python
