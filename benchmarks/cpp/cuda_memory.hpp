// Memory of a CUDA device, by the driver: the library leaves it to its users to have some.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace bench {

/// One block, of the first device's primary context.
class CudaMemory {
 public:
  explicit CudaMemory(std::size_t nbytes) {
    const Current current(*this);
    const auto allocate = function<int (*)(unsigned long long*, std::size_t)>("cuMemAlloc_v2");
    check(allocate(&address_, nbytes == 0 ? 1 : nbytes), "cuMemAlloc");
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() {
    const Current current(*this);
    (void)function<int (*)(unsigned long long)>("cuMemFree_v2")(address_);
  }
  [[nodiscard]] unsigned long long address() const noexcept { return address_; }

 private:
  class Current {
   public:
    explicit Current(const CudaMemory& memory) : memory_(memory) {
      void* context = nullptr;
      memory.check(memory.function<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0),
                   "cuDevicePrimaryCtxRetain");
      memory.check(memory.function<int (*)(void*)>("cuCtxPushCurrent_v2")(context),
                   "cuCtxPushCurrent");
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() {
      void* popped = nullptr;
      (void)memory_.function<int (*)(void**)>("cuCtxPopCurrent_v2")(&popped);
    }

   private:
    const CudaMemory& memory_;
  };

  template <typename Function>
  [[nodiscard]] Function function(const char* name) const {
    void* const symbol = library_ == nullptr ? nullptr : ::dlsym(library_, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("no ") + name);
    return reinterpret_cast<Function>(symbol);
  }
  void check(int result, const char* name) const {
    if (result == 0) return;
    throw std::runtime_error(std::string(name) + ": CUDA error " + std::to_string(result));
  }

  void* library_ = ::dlopen("libcuda.so.1", RTLD_NOW);  // in use already: not closed
  unsigned long long address_ = 0;
};

}  // namespace bench
