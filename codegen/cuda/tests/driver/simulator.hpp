// What stands behind the simulated driver: memory with fences, streams of operations that are done as late as CUDA allows,
// events, graphs. A simulation of the driver's interface for tests of the code in front of it, not of a GPU: kernels run on
// the emulator, one after another.
#pragma once
#include "kernels.hpp"

#include <condition_variable>
#include <cstdarg>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <utility>

enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
};

typedef unsigned long long Address;

inline size_t setting(const char* name, size_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

// Says on standard error what a program has done wrong.
inline void complain(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("simulated driver: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

// A piece of the device's memory, between fences that nobody may touch; where kernels do nothing, as much as they wish for.
struct Allocation {
  static constexpr size_t FENCE = 256;
  static constexpr unsigned char PATTERN = 0xa5;
  unsigned char* start;
  size_t size;

  explicit Allocation(size_t bytes) : size(bytes) {
    if (!runs_kernels()) {
      void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (pages == MAP_FAILED) abort();
      start = (unsigned char*)pages;
      return;
    }
    auto* memory = (unsigned char*)aligned_alloc(FENCE, (bytes + FENCE - 1) / FENCE * FENCE + 2 * FENCE);
    start = memory + FENCE;
    memset(memory, PATTERN, FENCE);
    memset(start, 0xff, size);  // NaN in every type of float.
    memset(start + size, PATTERN, FENCE);
  }
  bool is_intact() const {
    if (!runs_kernels()) return true;
    for (size_t i = 0; i < FENCE; i++)
      if (start[-1 - (long)i] != PATTERN || start[size + i] != PATTERN) return false;
    return true;
  }
  void release() {
    if (runs_kernels())
      free(start - FENCE);
    else
      munmap(start, size);
  }
};

struct Stream;

// One recording of an event.
struct Recording {
  Stream* stream = nullptr;
  bool is_done = false;
  double seconds = 0;
};

struct Event {
  std::shared_ptr<Recording> last;
};

// One that cannot go on yet gives NOT_READY, and is done again later.
typedef std::function<Result()> Operation;
typedef std::vector<Operation> Operations;

struct Graph {
  Operations operations;
  std::set<Function*> functions;  // That its launches need.
  std::thread::id recorder = std::this_thread::get_id();
};

// A graph that can be launched.
struct Instance {
  std::shared_ptr<Operations> operations;
  std::set<Function*> functions;
};

struct Stream {
  void* context;
  bool is_blocking;
  // Whether its operations wait until somebody waits for them; others are done as soon as CUDA may do them.
  bool is_late;
  std::deque<Operation> pending;
  std::unique_ptr<Graph> capture;
  bool is_invalidated = false;
};

// All devices: they share memory, but each context has its own streams.
struct Device {
  std::recursive_mutex mutex;
  // Something was enqueued, or done. Who waits for it has the mutex once, and does no operation.
  std::condition_variable_any changed;
  std::map<Address, Allocation> memory;  // By first byte.
  std::map<char*, size_t> pinned;
  std::vector<Stream*> streams;
  std::set<Instance*> instances;
  Stream legacy{nullptr, true, true, {}, nullptr, false};
  size_t launches = 0;
  size_t total = setting("SIMULATED_MIB", 1024) << 20, used = 0;
  // The first error while operations were done; every later call gives it, as with CUDA.
  Result broken = SUCCESS;

  // The allocation that has all of these bytes.
  Allocation* holder(Address address, size_t bytes) {
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return nullptr;
    Allocation& found = std::prev(after)->second;
    return address + bytes <= (Address)found.start + found.size ? &found : nullptr;
  }

  bool is_pinned(const void* place, size_t bytes) {
    auto after = pinned.upper_bound((char*)place);
    if (after == pinned.begin()) return false;
    auto [start, size] = *std::prev(after);
    return (char*)place + bytes <= start + size;
  }

  Result fail(Result result) {
    if (broken == SUCCESS) broken = result;
    return broken;
  }

  // Does the oldest operation of a stream, if it can go on.
  bool advance(Stream& stream) {
    Operation operation = std::move(stream.pending.front());
    stream.pending.pop_front();
    const Result result = broken == SUCCESS ? operation() : broken;
    if (result == NOT_READY) {
      stream.pending.push_front(std::move(operation));
      return false;
    }
    if (result != SUCCESS) fail(result);
    changed.notify_all();
    return true;
  }

  // Advances a stream, or another one that it may wait for, or waits until somebody else has done something.
  void go_on(Stream& stream) {
    if (advance(stream)) return;
    for (Stream* other : streams)
      if (other != &stream && !other->pending.empty() && advance(*other)) return;
    changed.wait(mutex);
  }

  Result finish(Stream& stream) {
    while (!stream.pending.empty()) go_on(stream);
    return broken;
  }

  // Those of a context.
  Result finish_all(void* context) {
    finish(legacy);
    std::vector<Stream*> own;
    std::copy_if(streams.begin(), streams.end(), std::back_inserter(own), [=](Stream* stream) { return stream->context == context; });
    for (Stream* stream : own) finish(*stream);
    return broken;
  }

  static bool is_ahead(const Recording& recording) {
    return !recording.is_done && recording.stream && !recording.stream->pending.empty();
  }

  // What somebody does who waits for an event; an operation that does must not wait itself.
  Result reach(const Recording& recording) {
    while (is_ahead(recording)) go_on(*recording.stream);
    return broken;
  }

  Result reach_in_operation(const Recording& recording) {
    while (is_ahead(recording))
      if (!advance(*recording.stream)) return NOT_READY;
    return broken;
  }

  // Puts an operation behind those of a stream, or into the graph that it records.
  Result enqueue(Stream& stream, Operation operation) {
    if (broken != SUCCESS) return broken;
    if (stream.is_blocking && &stream != &legacy) finish(legacy);
    if (stream.capture) {
      if (stream.capture->recorder != std::this_thread::get_id()) {
        complain("a graph records what another thread does");
        stream.is_invalidated = true;
      }
      stream.capture->operations.push_back(std::move(operation));
      return SUCCESS;
    }
    stream.pending.push_back(std::move(operation));
    changed.notify_all();
    return stream.is_late ? SUCCESS : finish(stream);
  }

  Stream& stream(void* handle) { return handle ? *(Stream*)handle : legacy; }

  // A call that CUDA does not allow while this thread records a graph spoils the recording.
  bool is_capturing() {
    bool is_any = false;
    for (Stream* stream : streams)
      if (stream->capture && stream->capture->recorder == std::this_thread::get_id())
        is_any = stream->is_invalidated = true;
    return is_any;
  }

  Result allocate(Address* address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    if (used + bytes > total) return OUT_OF_MEMORY;
    Allocation allocation(bytes);
    *address = (Address)allocation.start;
    memory.emplace(*address, allocation);
    used += bytes;
    return SUCCESS;
  }

  Result release(Address address) {
    auto found = memory.find(address);
    if (found == memory.end()) {
      complain("memory is freed that is not allocated");
      return INVALID_VALUE;
    }
    used -= found->second.size;
    found->second.release();
    memory.erase(found);
    return SUCCESS;
  }

  Result check_fences(const std::string& after) {
    for (auto& [address, allocation] : memory)
      if (!allocation.is_intact()) {
        complain("%s writes outside of memory of %zu bytes", after.c_str(), allocation.size);
        return ILLEGAL_ADDRESS;
      }
    return SUCCESS;
  }

  // The pointers of all arguments follow each other.
  Result launch(Function& function, Grid grid, unsigned threads, unsigned shared, std::vector<u64> pointers) {
    for (size_t i = 0; i < pointers.size(); i++)
      if (!holder(pointers[i], 1)) {
        complain("pointer %zu of %s points nowhere", i, function.name.c_str());
        return ILLEGAL_ADDRESS;
      }
    if (is_to_fail()) return ILLEGAL_ADDRESS;
    if (is_chosen("SIMULATED_CRASH", function.name)) abort();
    if (is_chosen("SIMULATED_HANG", function.name))
      for (;;) pause();
    if (is_chosen("SIMULATED_WRONG", function.name) || !runs_kernels()) return SUCCESS;
    std::vector<void*> places;
    size_t at = 0;
    for (size_t i = 0; i < function.arguments(); at += function.bytes(i++) / 8) places.push_back(&pointers[at]);
    function.run(grid, threads, shared, places.data());
    return check_fences(function.name);
  }

  // Work of a library's, on these pieces of memory.
  Result run_library(const std::string& name, const std::vector<std::pair<Address, size_t>>& pieces,
                     const std::function<int()>& operation) {
    for (auto [start, bytes] : pieces)
      if (!holder(start, bytes)) {
        complain("%s is given %zu bytes that are nowhere", name.c_str(), bytes);
        return ILLEGAL_ADDRESS;
      }
    if (is_to_fail()) return ILLEGAL_ADDRESS;
    const int result = operation();
    if (result == NOT_READY) return NOT_READY;
    return result == SUCCESS ? check_fences(name) : ILLEGAL_ADDRESS;
  }

  // Whether a setting names a part of a function's name.
  static bool is_chosen(const char* name, const std::string& function) {
    const char* text = getenv(name);
    return text && *text && function.find(text) != std::string::npos;
  }

  bool is_to_fail() { return launches++ == setting("SIMULATED_FAILURE", SIZE_MAX); }
};

// It outlives whatever ends with the process.
inline Device& device() {
  static Device* device = new Device;
  return *device;
}

inline double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}
