// The fake driver itself: the behaviour that the other tests rely on.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <thread>
#include <type_traits>
#include <vector>

#include "device/cuda_driver.hpp"
#include "fake_support.hpp"
#include "posix_support.hpp"

namespace {

using test::address_of;
using test::Current;
using test::FakeDriver;
using test::OwnStream;

/// Pinned memory filled with one value.
class Pinned {
 public:
  explicit Pinned(std::size_t nbytes, unsigned char value = 7) : bytes_(nbytes, value) {
    test::succeed(cuMemHostRegister_v2(bytes_.data(), nbytes, 0));
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { cuMemHostUnregister(bytes_.data()); }
  [[nodiscard]] unsigned char* data() { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

 private:
  std::vector<unsigned char> bytes_;
};

struct OwnEvent {
  OwnEvent() { test::succeed(cuEventCreate(&handle, 2)); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  ~OwnEvent() { cuEventDestroy_v2(handle); }
  void* handle = nullptr;
};

int copy(unsigned char* to, const unsigned char* from, std::size_t nbytes, void* stream) {
  return cuMemcpyHtoDAsync_v2(address_of(to), from, nbytes, stream);
}

// The types with which the library calls it. test_sigcheck.cpp compares these with cuda.h.
#define FAKE_HAS_TYPE_OF_TABLE(NAME) \
  static_assert(                     \
      std::is_same_v<decltype(&::NAME), decltype(safetensors::device::cuda::Functions::NAME)>)
FAKE_HAS_TYPE_OF_TABLE(cuInit);
FAKE_HAS_TYPE_OF_TABLE(cuDeviceGet);
FAKE_HAS_TYPE_OF_TABLE(cuDeviceGetAttribute);
FAKE_HAS_TYPE_OF_TABLE(cuDevicePrimaryCtxRetain);
FAKE_HAS_TYPE_OF_TABLE(cuCtxPushCurrent_v2);
FAKE_HAS_TYPE_OF_TABLE(cuCtxPopCurrent_v2);
FAKE_HAS_TYPE_OF_TABLE(cuMemHostRegister_v2);
FAKE_HAS_TYPE_OF_TABLE(cuMemHostUnregister);
FAKE_HAS_TYPE_OF_TABLE(cuMemHostAlloc);
FAKE_HAS_TYPE_OF_TABLE(cuMemFreeHost);
FAKE_HAS_TYPE_OF_TABLE(cuStreamCreate);
FAKE_HAS_TYPE_OF_TABLE(cuStreamSynchronize);
FAKE_HAS_TYPE_OF_TABLE(cuStreamWaitEvent);
FAKE_HAS_TYPE_OF_TABLE(cuStreamIsCapturing);
FAKE_HAS_TYPE_OF_TABLE(cuEventCreate);
FAKE_HAS_TYPE_OF_TABLE(cuEventRecord);
FAKE_HAS_TYPE_OF_TABLE(cuEventQuery);
FAKE_HAS_TYPE_OF_TABLE(cuEventSynchronize);
FAKE_HAS_TYPE_OF_TABLE(cuEventDestroy_v2);
FAKE_HAS_TYPE_OF_TABLE(cuMemcpyHtoDAsync_v2);
FAKE_HAS_TYPE_OF_TABLE(cuMemcpyDtoHAsync_v2);
FAKE_HAS_TYPE_OF_TABLE(cuGetErrorName);
FAKE_HAS_TYPE_OF_TABLE(cuDeviceGetPCIBusId);
FAKE_HAS_TYPE_OF_TABLE(cuThreadExchangeStreamCaptureMode);
#undef FAKE_HAS_TYPE_OF_TABLE

}  // namespace

TEST_CASE("an eager copy runs at once, a lazy one when its stream is waited for") {
  for (const fake::Mode mode : {fake::kEager, fake::kLazy}) {
    const FakeDriver driver(mode);
    const Current current(0);
    const OwnStream stream;
    Pinned from(100);
    std::vector<unsigned char> to(100, 0);
    REQUIRE(copy(to.data(), from.data(), 100, stream.handle()) == 0);
    CHECK(to[99] == (mode == fake::kEager ? 7 : 0));
    CHECK(fakecuda_pending(0) == (mode == fake::kEager ? 0 : 1));
    CHECK(cuStreamSynchronize(stream.handle()) == 0);
    CHECK(to[99] == 7);
    CHECK(fakecuda_pending(0) == 0);
    CHECK(fakecuda_stat(fake::kCopiedBytes) == 100);
    CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
  }
}

TEST_CASE("lazy: waiting for one stream runs no other, unless it waits for that one") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream a;
  const OwnStream b;
  const OwnEvent event;
  Pinned from(1);
  unsigned char to_a = 0;
  unsigned char to_b = 0;
  REQUIRE(copy(&to_a, from.data(), 1, a.handle()) == 0);
  REQUIRE(cuEventRecord(event.handle, a.handle()) == 0);
  REQUIRE(copy(&to_b, from.data(), 1, b.handle()) == 0);
  CHECK(cuStreamSynchronize(b.handle()) == 0);
  CHECK(to_b == 7);
  CHECK(to_a == 0);
  REQUIRE(cuStreamWaitEvent(b.handle(), event.handle, 0) == 0);
  CHECK(cuStreamSynchronize(b.handle()) == 0);
  CHECK(to_a == 7);
}

TEST_CASE("a wait is for the last recording of the event at the time of the call") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream a;
  const OwnStream b;
  const OwnEvent event;
  Pinned from(1);
  unsigned char first = 0;
  unsigned char second = 0;
  CHECK(cuEventSynchronize(event.handle) == 0);  // never recorded
  REQUIRE(copy(&first, from.data(), 1, a.handle()) == 0);
  REQUIRE(cuEventRecord(event.handle, a.handle()) == 0);
  REQUIRE(cuStreamWaitEvent(b.handle(), event.handle, 0) == 0);
  REQUIRE(copy(&second, from.data(), 1, a.handle()) == 0);
  REQUIRE(cuEventRecord(event.handle, a.handle()) == 0);
  CHECK(cuStreamSynchronize(b.handle()) == 0);
  CHECK(first == 7);
  CHECK(second == 0);
  CHECK(cuEventQuery(event.handle) == 600);  // of the second recording
  CHECK(cuEventSynchronize(event.handle) == 0);
  CHECK(second == 7);
  CHECK(cuEventQuery(event.handle) == 0);
}

TEST_CASE("repeated queries of an event see it done") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  const OwnEvent event;
  Pinned from(1);
  unsigned char to = 0;
  REQUIRE(copy(&to, from.data(), 1, stream.handle()) == 0);
  REQUIRE(cuEventRecord(event.handle, stream.handle()) == 0);
  CHECK(cuEventQuery(event.handle) == 600);
  int asked = 1;
  while (cuEventQuery(event.handle) == 600 && asked < 100) ++asked;
  CHECK(asked < 10);
  CHECK(to == 7);
}

TEST_CASE("async: streams run on their own, each in order") {
  const FakeDriver driver(fake::kAsync, 50);
  const Current current(1);
  const OwnStream a;
  const OwnStream b;
  const OwnEvent event;
  Pinned ones(64, 1);
  Pinned twos(64, 2);
  std::vector<unsigned char> to(64, 0);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(copy(to.data(), ones.data(), 64, a.handle()) == 0);
    REQUIRE(cuEventRecord(event.handle, a.handle()) == 0);
    REQUIRE(cuStreamWaitEvent(b.handle(), event.handle, 0) == 0);
    REQUIRE(copy(to.data(), twos.data(), 64, b.handle()) == 0);
    REQUIRE(cuEventRecord(event.handle, b.handle()) == 0);
    REQUIRE(cuStreamWaitEvent(a.handle(), event.handle, 0) == 0);
  }
  CHECK(cuEventSynchronize(event.handle) == 0);
  CHECK(std::ranges::count(to, 2) == 64);
  CHECK(cuStreamSynchronize(a.handle()) == 0);
}

TEST_CASE("pageable memory is read at once, and copied in stream order") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  unsigned char from = 5;
  unsigned char to = 0;
  REQUIRE(copy(&to, &from, 1, stream.handle()) == 0);
  from = 6;
  CHECK(to == 0);
  CHECK(fakecuda_stat(fake::kPageableCopies) == 1);
  CHECK(cuStreamSynchronize(stream.handle()) == 0);
  CHECK(to == 5);
}

TEST_CASE("pinned memory: whole ranges, each once") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  const long before = fakecuda_stat(fake::kRangesNow);
  std::vector<unsigned char> memory(300, 0);
  CHECK(cuMemHostUnregister(memory.data()) == 713);
  CHECK(cuMemHostRegister_v2(memory.data() + 100, 100, 1) == 0);
  CHECK(cuMemHostRegister_v2(memory.data() + 150, 100, 1) == 712);
  CHECK(cuMemHostRegister_v2(memory.data() + 99, 2, 1) == 712);
  CHECK(cuMemHostRegister_v2(memory.data(), 300, 1) == 712);
  CHECK(cuMemHostRegister_v2(memory.data() + 200, 100, 1) == 0);
  CHECK(fakecuda_stat(fake::kRangesNow) == before + 2);
  unsigned char to[100];
  CHECK(copy(to, memory.data() + 150, 100, nullptr) == 0);  // across the border of both ranges
  CHECK(fakecuda_stat(fake::kPageableCopies) == 1);
  CHECK(cuMemHostUnregister(memory.data() + 100) == 0);
  CHECK(cuMemHostUnregister(memory.data() + 200) == 0);
  void* allocated = nullptr;
  CHECK(cuMemHostAlloc(&allocated, 10, 1) == 0);
  CHECK(cuMemHostUnregister(allocated) == 713);
  CHECK(cuMemFreeHost(allocated) == 0);
  CHECK(cuMemFreeHost(memory.data()) == 1);
  CHECK(fakecuda_stat(fake::kRangesNow) == before);
}

TEST_CASE("after a fork the device sees old pages, unless the child has no copy of them") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto map = [&] {
    return static_cast<unsigned char*>(
        ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  unsigned char* const shared = map();
  unsigned char* const own = map();
  REQUIRE(::madvise(own, page, MADV_DONTFORK) == 0);
  for (unsigned char* const memory : {shared, own}) {
    REQUIRE(cuMemHostRegister_v2(memory, page, 1) == 0);
    memory[1] = 1;
  }
  CHECK(test::in_child([] { return 0; }) == 0);
  for (unsigned char* const memory : {shared, own}) {
    memory[1] = 2;
    unsigned char to = 0;
    REQUIRE(copy(&to, memory + 1, 1, nullptr) == 0);
    CHECK(to == (memory == own ? 2 : 1));
    CHECK(cuMemHostUnregister(memory) == 0);
    ::munmap(memory, page);
  }
  CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
}

TEST_CASE("misuse is refused and counted") {
  fakecuda_clear();
  unsigned char byte = 0;
  CHECK(cuMemsetD8Async(address_of(&byte), 1, 1, nullptr) == 201);
  CHECK(fakecuda_stat(fake::kCallsWithoutContext) == 1);
  {
    const Current current(0);
    void* event = nullptr;
    void* stream = nullptr;
    REQUIRE(cuEventCreate(&event, 0) == 0);
    REQUIRE(cuStreamCreate(&stream, 0) == 0);
    CHECK(fakecuda_stat(fake::kBlockingStreams) == 1);
    {
      const Current other(1);
      CHECK(cuEventRecord(event, nullptr) == 400);
      CHECK(cuStreamSynchronize(stream) == 400);
      CHECK(fakecuda_stat(fake::kForeignUses) == 2);
    }
    CHECK(cuEventDestroy_v2(event) == 0);
    CHECK(cuEventQuery(event) == 400);
    CHECK(cuStreamDestroy_v2(stream) == 0);
    CHECK(cuStreamSynchronize(stream) == 400);
    CHECK(cuStreamSynchronize(&byte) == 400);
    CHECK(fakecuda_stat(fake::kDeadUses) == 3);

    fakecuda_mode(fake::kLazy, 0);
    void* memory = nullptr;
    REQUIRE(cuMemHostAlloc(&memory, 1, 0) == 0);
    REQUIRE(copy(&byte, static_cast<unsigned char*>(memory), 1, nullptr) == 0);
    REQUIRE(cuStreamSynchronize(nullptr) == 0);
    CHECK(fakecuda_stat(fake::kUnpinnedInUse) == 0);
    Pinned from(1);
    REQUIRE(copy(&byte, from.data(), 1, nullptr) == 0);
    REQUIRE(copy(&byte, from.data(), 1, nullptr) == 0);
    CHECK(fakecuda_stat(fake::kMaxCopiesFromAddress) == 2);
    CHECK(cuMemHostUnregister(from.data()) == 0);
    CHECK(fakecuda_stat(fake::kUnpinnedInUse) == 1);
    fakecuda_run();
    CHECK(cuMemFreeHost(memory) == 0);
  }
  CHECK(cuCtxPopCurrent_v2(nullptr) == 201);
  fakecuda_clear();
  const FakeDriver leave_as_new(fake::kEager);
}

TEST_CASE("faults hit the chosen call") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  void* event = nullptr;
  fakecuda_fault("cuEventCreate", 2, 2);
  CHECK(cuEventCreate(&event, 0) == 0);
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(cuEventCreate(&event, 0) == 2);
  CHECK(cuEventCreate(&event, 0) == 0);
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(fakecuda_calls("cuEventCreate") == 3);
  fakecuda_fault("cuEventCreate", 0, 3);
  CHECK(cuEventCreate(&event, 0) == 3);
  CHECK(cuEventCreate(&event, 0) == 3);
  fakecuda_fault("cuEventCreate", 0, 0);
  fakecuda_ignore("cuEventCreate", 1);
  event = nullptr;
  CHECK(cuEventCreate(&event, 0) == 0);
  CHECK(event == nullptr);
}

TEST_CASE("an error that ends the context is sticky, and queued work never runs") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  Pinned from(1);
  unsigned char to = 0;
  REQUIRE(copy(&to, from.data(), 1, stream.handle()) == 0);
  fakecuda_fault("cuStreamSynchronize", 1, 719);
  CHECK(cuStreamSynchronize(stream.handle()) == 719);
  CHECK(copy(&to, from.data(), 1, stream.handle()) == 719);
  CHECK(cuStreamSynchronize(nullptr) == 719);
  fakecuda_clear();
  CHECK(cuStreamSynchronize(stream.handle()) == 0);
  CHECK(to == 0);
  fakecuda_mode(fake::kGone, 0);
  CHECK(cuStreamSynchronize(stream.handle()) == 4);
  CHECK(cuInit(0) == 4);
  fakecuda_clear();
}

TEST_CASE("during a capture, only threads in relaxed mode may pin memory or wait") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  const OwnStream stream;
  const OwnEvent event;
  void* memory = nullptr;
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 10, 0) == 0);
  int status = -1;
  fakecuda_capturing_stream(stream.handle(), 1);
  CHECK(cuStreamIsCapturing(stream.handle(), &status) == 0);
  CHECK(status == 1);
  CHECK(cuStreamIsCapturing(nullptr, &status) == 0);
  CHECK(status == 0);
  CHECK(cuMemHostAlloc(&memory, 10, 0) == 900);
  CHECK(cuMemFreeHost(pinned) == 900);
  CHECK(cuMemHostUnregister(pinned) == 900);
  CHECK(cuEventQuery(event.handle) == 900);
  CHECK(cuEventSynchronize(event.handle) == 900);
  CHECK(cuStreamSynchronize(nullptr) == 900);
  CHECK(fakecuda_stat(fake::kCapturesBroken) == 6);
  CHECK(cuStreamSynchronize(stream.handle()) == 900);
  int capture_mode = 2;
  CHECK(cuThreadExchangeStreamCaptureMode(&capture_mode) == 0);
  CHECK(capture_mode == 0);
  CHECK(cuMemHostAlloc(&memory, 10, 0) == 0);
  CHECK(cuMemFreeHost(memory) == 0);
  CHECK(cuMemFreeHost(pinned) == 0);
  CHECK(cuEventQuery(event.handle) == 0);
  CHECK(cuThreadExchangeStreamCaptureMode(&capture_mode) == 0);
  CHECK(capture_mode == 2);
  fakecuda_clear();
}

TEST_CASE("each thread has its own current context") {
  const FakeDriver driver(fake::kEager);
  const Current outer(0);
  void* mine = nullptr;
  REQUIRE(cuCtxGetCurrent(&mine) == 0);
  std::thread([&] {
    void* theirs = mine;
    CHECK(cuCtxGetCurrent(&theirs) == 0);
    CHECK(theirs == nullptr);
    const Current inner(1);
    CHECK(cuCtxGetCurrent(&theirs) == 0);
    CHECK(theirs != mine);
  }).join();
  CHECK(fakecuda_stat(fake::kContextDepthNow) == 1);
}
