// Device and release_staging() of the public header.
#include "safetensors/device.hpp"

#include "device/context.hpp"
#include "device/cuda_driver.hpp"
#include "device/staging_pool.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

Device Device::cuda(int index) {
  const device::CudaDriver* const driver = device::cuda_driver();
  if (driver == nullptr) fail(ErrorCode::kDevice, device::why_no_cuda_driver());
  return Device(&device::Context::of(*driver, index));
}

bool Device::has_cuda() noexcept { return device::cuda_driver() != nullptr; }

bool Device::is_capturing(void* stream) const {
  if (context_ == nullptr) return false;
  context_->check_process();
  const device::ScopedContext inside(context_->driver(), context_->handle());
  return context_->driver().is_capturing(stream);
}

bool Device::is_integrated() const noexcept {
  return context_ == nullptr || context_->properties().is_integrated;
}

std::size_t release_staging() { return device::StagingPool::get().release_idle(); }

}  // namespace safetensors
