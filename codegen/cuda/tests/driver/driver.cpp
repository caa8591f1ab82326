// A stand-in for the CUDA driver's library, `libcuda.so.1`, with the entry points that this project uses. It is a simulation
// of the driver's interface, so that the code in front of it runs where there is no GPU; it says nothing about speed.
//
// Operations of a stream are done as late as CUDA allows: when somebody waits for them. Copies from pinned memory read it
// then. Allocated memory is NaN, writes outside of it are noticed after each kernel, and any error stays, as with CUDA.
//
// Settings: SIMULATED_DEVICES (1), SIMULATED_MIB (memory, 1024), SIMULATED_ARCHITECTURE (90), SIMULATED_DRIVER (12090), SIMULATED_ORDER (`late`; or
// `ahead`: all streams but the first run as far ahead as they may; or `at-once`), SIMULATED_FAILURE (none: the launch, counted
// from 0, that fails as a kernel with a wild pointer does), SIMULATED_CRASH, SIMULATED_HANG, SIMULATED_WRONG (none: text in the
// names of functions whose launches end the process, never end, or do nothing), SIMULATED_KERNELS (`none`: code is taken as it is,
// NVRTC's own too, and no kernel does anything, so that a command's cubins can be made without a GPU), SIMULATED_CUBINS (none: a
// folder of cubins, all of which are built together when the first kernel is launched), SIMULATED_COUNTS (none: a file that says, when the process ends, how
// many launches, graphs, copies and fills were started, and how many of each graphs have recorded).
#include "simulator.hpp"

#define EXPORT extern "C" __attribute__((visibility("default"))) int
#define LOCKED std::lock_guard<std::recursive_mutex> locked(device().mutex)
// Gives the error that stays.
#define HEALTHY \
  LOCKED;       \
  if (device().broken != SUCCESS) return device().broken
// For calls that no stream may record.
#define OUTSIDE_OF_CAPTURE \
  HEALTHY;                 \
  if (device().is_capturing()) return CAPTURE_UNSUPPORTED

namespace {
// The context of each device.
char contexts[64];
thread_local void* current;

// Counts something that is put into a stream.
void count(const char* what, void* stream) {
  static std::map<std::string, size_t>* counts;
  if (!getenv("SIMULATED_COUNTS")) return;
  if (!counts) {
    counts = new std::map<std::string, size_t>;
    atexit([] {
      std::ofstream file(getenv("SIMULATED_COUNTS"));
      for (const auto& [name, number] : *counts) file << name << ": " << number << '\n';
    });
  }
  ++(*counts)[device().stream(stream).capture ? std::string("recorded ") + what : what];
}
}  // namespace

EXPORT cuInit(unsigned) { return setting("SIMULATED_DEVICES", 1) == 0 ? NO_DEVICE : SUCCESS; }

EXPORT cuDriverGetVersion(int* version) {
  *version = (int)setting("SIMULATED_DRIVER", 12090);
  return SUCCESS;
}

EXPORT cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR";
  return SUCCESS;
}

EXPORT cuGetErrorString(int error, const char** text) {
  switch (error) {
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    case NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case INVALID_IMAGE: *text = "device kernel image is invalid"; break;
    case INVALID_CONTEXT: *text = "invalid device context"; break;
    case NOT_READY: *text = "device not ready"; break;
    case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case NOT_SUPPORTED: *text = "operation not supported"; break;
    case CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
    case CAPTURE_INVALIDATED: *text = "operation failed due to a previous error during capture"; break;
    default: *text = "invalid argument";
  }
  return SUCCESS;
}

EXPORT cuDeviceGetCount(int* count) {
  *count = (int)setting("SIMULATED_DEVICES", 1);
  return SUCCESS;
}

EXPORT cuDeviceGet(int* handle, int ordinal) {
  *handle = ordinal;
  return ordinal >= 0 && (size_t)ordinal < setting("SIMULATED_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
}

EXPORT cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "simulated device");
  return SUCCESS;
}

EXPORT cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = device().total;
  return SUCCESS;
}

// Of the CUDA C++ Programming Guide's table of compute capabilities: the most shared memory of a block.
static int most_shared() {
  const size_t architecture = setting("SIMULATED_ARCHITECTURE", 90);
  if (architecture == 80 || architecture == 87) return 163 << 10;
  return architecture == 90 || architecture / 10 == 10 || architecture == 110 ? 227 << 10 : 99 << 10;
}

EXPORT cuDeviceGetAttribute(int* value, int attribute, int) {
  const int architecture = (int)setting("SIMULATED_ARCHITECTURE", 90);
  switch (attribute) {
    case 16: *value = 4; break;  // Multiprocessors.
    case 75: *value = architecture / 10; break;
    case 76: *value = architecture % 10; break;
    case 97: *value = most_shared(); break;  // Shared memory of a block, of functions that ask for it.
    case 115: *value = 1; break;  // Allocations in stream order.
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}

EXPORT cuDevicePrimaryCtxRetain(void** handle, int ordinal) {
  *handle = &contexts[ordinal];
  return SUCCESS;
}

EXPORT cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

EXPORT cuCtxGetCurrent(void** handle) {
  *handle = current;
  return SUCCESS;
}

EXPORT cuCtxSetCurrent(void* handle) {
  current = handle;
  return SUCCESS;
}

EXPORT cuCtxSynchronize() {
  OUTSIDE_OF_CAPTURE;
  return device().finish_all(current);
}

EXPORT cuStreamCreate(void** handle, unsigned flags) {
  OUTSIDE_OF_CAPTURE;
  if (!current) return INVALID_CONTEXT;
  const char* order = getenv("SIMULATED_ORDER");
  const bool ahead = order && !strcmp(order, "ahead"), at_once = order && !strcmp(order, "at-once");
  const bool is_late = !at_once && (!ahead || device().streams.empty());
  auto* stream = new Stream{current, flags != 1, is_late, {}, nullptr, false};
  device().streams.push_back(stream);
  *handle = stream;
  return SUCCESS;
}

EXPORT cuStreamDestroy_v2(void* handle) {
  LOCKED;
  Stream& stream = device().stream(handle);
  device().finish(stream);
  auto& streams = device().streams;
  streams.erase(std::remove(streams.begin(), streams.end(), &stream), streams.end());
  return SUCCESS;
}

EXPORT cuStreamSynchronize(void* handle) {
  OUTSIDE_OF_CAPTURE;
  return device().finish(device().stream(handle));
}

EXPORT cuStreamIsCapturing(void* handle, int* status) {
  HEALTHY;
  Stream& stream = device().stream(handle);
  *status = !stream.capture ? 0 : stream.is_invalidated ? 2 : 1;
  return SUCCESS;
}

EXPORT cuStreamBeginCapture_v2(void* handle, int) {
  OUTSIDE_OF_CAPTURE;
  if (!handle) return CAPTURE_UNSUPPORTED;
  device().stream(handle).capture = std::make_unique<Graph>();
  return SUCCESS;
}

EXPORT cuStreamEndCapture(void* handle, Graph** graph) {
  HEALTHY;
  Stream& stream = device().stream(handle);
  if (!stream.capture) return INVALID_VALUE;
  std::unique_ptr<Graph> captured = std::move(stream.capture);
  *graph = nullptr;
  if (std::exchange(stream.is_invalidated, false)) return CAPTURE_INVALIDATED;
  *graph = captured.release();
  return SUCCESS;
}

EXPORT cuGraphInstantiateWithFlags(Instance** instance, Graph* graph, unsigned long long) {
  HEALTHY;
  *instance = new Instance{std::make_shared<Operations>(graph->operations), graph->functions};
  device().instances.insert(*instance);
  return SUCCESS;
}

EXPORT cuGraphLaunch(Instance* instance, void* handle) {
  HEALTHY;
  count("graphs", handle);
  return device().enqueue(device().stream(handle), [operations = instance->operations] {
    for (auto& operation : *operations)
      if (Result result = operation()) return result;
    return SUCCESS;
  });
}

EXPORT cuGraphDestroy(Graph* graph) {
  delete graph;
  return SUCCESS;
}

EXPORT cuGraphExecDestroy(Instance* instance) {
  LOCKED;
  if (instance->operations.use_count() > 1) {
    complain("a graph is destroyed while it runs");
    device().fail(ILLEGAL_ADDRESS);
  }
  device().instances.erase(instance);
  delete instance;
  return SUCCESS;
}

EXPORT cuEventCreate(Event** event, unsigned) {
  HEALTHY;
  if (!current) return INVALID_CONTEXT;
  *event = new Event;
  return SUCCESS;
}

EXPORT cuEventDestroy_v2(Event* event) {
  LOCKED;
  delete event;
  return SUCCESS;
}

EXPORT cuEventRecord(Event* event, void* handle) {
  HEALTHY;
  Stream& stream = device().stream(handle);
  auto recording = std::make_shared<Recording>();
  recording->stream = &stream;
  event->last = recording;
  return device().enqueue(stream, [recording] {
    recording->is_done = true;
    recording->seconds = now();
    return SUCCESS;
  });
}

EXPORT cuStreamWaitEvent(void* handle, Event* event, unsigned) {
  HEALTHY;
  auto recording = event->last;
  if (!recording) return SUCCESS;
  return device().enqueue(device().stream(handle), [recording] { return device().reach_in_operation(*recording); });
}

EXPORT cuEventSynchronize(Event* event) {
  OUTSIDE_OF_CAPTURE;
  return event->last ? device().reach(*event->last) : SUCCESS;
}

// Time passes with each question, so that nobody asks forever.
EXPORT cuEventQuery(Event* event) {
  OUTSIDE_OF_CAPTURE;
  if (!event->last || event->last->is_done) return SUCCESS;
  Stream* stream = event->last->stream;
  if (!stream->pending.empty()) device().advance(*stream);
  return device().broken != SUCCESS ? device().broken : NOT_READY;
}

EXPORT cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  HEALTHY;
  if (!start->last || !end->last) return INVALID_HANDLE;
  if (!start->last->is_done || !end->last->is_done) return NOT_READY;
  *milliseconds = (float)(1e3 * (end->last->seconds - start->last->seconds));
  return SUCCESS;
}

EXPORT cuMemGetInfo_v2(size_t* free, size_t* total) {
  HEALTHY;
  *total = device().total;
  *free = device().total - device().used;
  return SUCCESS;
}

EXPORT cuMemAlloc_v2(Address* address, size_t bytes) {
  OUTSIDE_OF_CAPTURE;
  return device().allocate(address, bytes);
}

EXPORT cuMemAllocAsync(Address* address, size_t bytes, void*) {
  OUTSIDE_OF_CAPTURE;
  return device().allocate(address, bytes);
}

EXPORT cuMemFree_v2(Address address) {
  OUTSIDE_OF_CAPTURE;
  device().finish_all(current);
  return device().release(address);
}

EXPORT cuMemFreeAsync(Address address, void* handle) {
  LOCKED;
  return device().enqueue(device().stream(handle), [address] { return device().release(address); });
}

EXPORT cuMemHostAlloc(char** place, size_t bytes, unsigned) {
  OUTSIDE_OF_CAPTURE;
  *place = (char*)aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(*place, 0xff, bytes);
  device().pinned[*place] = bytes;
  return SUCCESS;
}

EXPORT cuMemFreeHost(char* place) {
  LOCKED;
  auto found = device().pinned.find(place);
  if (found == device().pinned.end()) return INVALID_VALUE;
  memset(place, 0xff, found->second);
  device().pinned.erase(found);
  free(place);
  return SUCCESS;
}

namespace {

// Copies on the legacy stream wait for streams that block, which ours do not.
void finish_blocking() {
  device().finish(device().legacy);
  for (Stream* stream : device().streams)
    if (stream->is_blocking) device().finish(*stream);
}

Result outside(const char* what, size_t bytes) {
  complain("%s of %zu bytes reaches outside of the device's memory", what, bytes);
  return INVALID_VALUE;
}

Result copy_late(Stream& stream, void* to, const void* from, size_t bytes, const void* pinned) {
  return device().enqueue(stream, [=] {
    if (pinned && !device().is_pinned(pinned, bytes)) {
      complain("pinned memory is gone before a copy of %zu bytes", bytes);
      return ILLEGAL_ADDRESS;
    }
    if (runs_kernels() || pinned) memcpy(to, from, bytes);
    return SUCCESS;
  });
}

// A copy of bytes that are read now.
Result copy_kept(Stream& stream, Address to, const void* from, size_t bytes) {
  std::string kept((const char*)from, bytes);
  return device().enqueue(stream, [=] {
    if (!device().holder(to, bytes)) {
      complain("memory is gone before a copy of %zu bytes to it", bytes);
      return ILLEGAL_ADDRESS;
    }
    memcpy((void*)to, kept.data(), bytes);
    return SUCCESS;
  });
}

// A graph has no node for nothing.
bool is_empty_node(const Stream& stream, size_t bytes) {
  if (bytes == 0 && stream.capture) complain("a graph is to copy or to fill 0 bytes");
  return bytes == 0 && stream.capture;
}

}  // namespace

// What is not pinned is read before the call returns, but may be on its way when it does: whoever does not wait for the legacy
// stream does not see it.
EXPORT cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  OUTSIDE_OF_CAPTURE;
  if (!device().holder(to, bytes)) return outside("a copy", bytes);
  finish_blocking();
  Result result = copy_kept(device().legacy, to, from, bytes);
  return result == SUCCESS && device().is_pinned(from, bytes) ? device().finish(device().legacy) : result;
}

EXPORT cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  OUTSIDE_OF_CAPTURE;
  if (!device().holder(from, bytes)) return outside("a copy", bytes);
  finish_blocking();
  memcpy(to, (void*)from, bytes);
  return device().broken;
}

// What is not pinned is read before the call returns.
EXPORT cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* handle) {
  HEALTHY;
  Stream& stream = device().stream(handle);
  if (!device().holder(to, bytes)) return outside("a copy", bytes);
  if (is_empty_node(stream, bytes)) return INVALID_VALUE;
  count("copies", handle);
  return device().is_pinned(from, bytes) ? copy_late(stream, (void*)to, from, bytes, from)
                                         : copy_kept(stream, to, from, bytes);
}

EXPORT cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* handle) {
  HEALTHY;
  Stream& stream = device().stream(handle);
  if (!device().holder(from, bytes)) return outside("a copy", bytes);
  if (is_empty_node(stream, bytes)) return INVALID_VALUE;
  count("copies", handle);
  const bool is_pinned = device().is_pinned(to, bytes);
  if (Result result = copy_late(stream, to, (void*)from, bytes, is_pinned ? to : nullptr)) return result;
  return is_pinned || stream.capture ? SUCCESS : device().finish(stream);
}

EXPORT cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* handle) {
  HEALTHY;
  if (!device().holder(to, bytes) || !device().holder(from, bytes)) return outside("a copy", bytes);
  if (is_empty_node(device().stream(handle), bytes)) return INVALID_VALUE;
  count("copies", handle);
  return copy_late(device().stream(handle), (void*)to, (void*)from, bytes, nullptr);
}

EXPORT cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* handle) {
  HEALTHY;
  if (!device().holder(to, bytes)) return outside("a fill", bytes);
  if (is_empty_node(device().stream(handle), bytes)) return INVALID_VALUE;
  count("fills", handle);
  return device().enqueue(device().stream(handle), [=] {
    if (runs_kernels()) memset((void*)to, value, bytes);
    return SUCCESS;
  });
}

EXPORT cuModuleLoadData(Function** module, const char* image) {
  OUTSIDE_OF_CAPTURE;
  if (!runs_kernels()) {
    *module = new Function("", "");
    return SUCCESS;
  }
  // Code of the simulated NVRTC is that of CUDA 12.
  std::string name, source;
  if (setting("SIMULATED_DRIVER", 12090) < 12000 || !parse_image(image, name, source)) return INVALID_IMAGE;
  *module = new Function(name, source);
  return SUCCESS;
}

EXPORT cuModuleGetFunction(Function** function, Function* module, const char* name) {
  HEALTHY;
  *function = module;
  if (!runs_kernels()) module->name = name;
  return module->name == name ? SUCCESS : NOT_FOUND;
}

EXPORT cuFuncSetAttribute(Function* function, int attribute, int value) {
  HEALTHY;
  const int dynamic_shared_bytes = 8;
  if (attribute != dynamic_shared_bytes || value < 0 || value > most_shared()) return INVALID_VALUE;
  function->most_shared = value;
  return SUCCESS;
}

EXPORT cuModuleUnload(Function* module) {
  LOCKED;
  device().finish_all(current);
  for (auto* instance : device().instances)
    if (instance->functions.count(module)) {
      complain("the code of %s goes while a graph needs it", module->name.c_str());
      device().fail(ILLEGAL_ADDRESS);
    }
  delete module;
  return SUCCESS;
}

EXPORT cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void* handle, void** arguments, void**) {
  HEALTHY;
  if (!x || !y || !z || y > 65535 || z > 65535 || x > 0x7fffffff) return INVALID_VALUE;
  if (!threads || threads > 1024 || threads_y != 1 || threads_z != 1) return INVALID_VALUE;
  if (shared > function->most_shared) return INVALID_VALUE;
  std::vector<u64> pointers;
  for (size_t i = 0; runs_kernels() && i < function->arguments(); i++) {
    const u64* words = (const u64*)arguments[i];
    pointers.insert(pointers.end(), words, words + function->bytes(i) / 8);
  }
  const size_t most = setting("SIMULATED_DRIVER", 12090) < 12010 ? 4096 : 32764;
  if (8 * pointers.size() > most) return INVALID_VALUE;
  if (device().stream(handle).capture) device().stream(handle).capture->functions.insert(function);
  const Grid grid{x, y, z};
  count("launches", handle);
  return device().enqueue(device().stream(handle),
                          [=] { return device().launch(*function, grid, threads, shared, pointers); });
}

// No function of CUDA's: how the simulated libraries put work behind that of a stream. The operation is given `data`, each
// time it runs; all pieces of memory must lie inside of the device's then. Outside of graphs it may give NOT_READY, to be called again.
EXPORT simulatedEnqueue(void* handle, const char* name, int (*operation)(void*), void* data, const Address* starts,
                        const size_t* sizes, int count) {
  HEALTHY;
  std::vector<std::pair<Address, size_t>> pieces;
  for (int i = 0; i < count; i++) pieces.emplace_back(starts[i], sizes[i]);
  const std::string text = name;
  return device().enqueue(device().stream(handle),
                          [=] { return device().run_library(text, pieces, [=] { return operation(data); }); });
}

// How the simulated NCCL does something while no operation runs.
EXPORT simulatedLocked(int (*action)(void*), void* data) {
  LOCKED;
  const int result = action(data);
  device().changed.notify_all();
  return result;
}

// How a call of it waits for calls of other threads.
EXPORT simulatedAwait(int (*is_met)(void*), void* data) {
  LOCKED;
  while (!is_met(data)) device().changed.wait(device().mutex);
  return SUCCESS;
}

#define UNSUPPORTED(name) \
  EXPORT name() { return NOT_SUPPORTED; }
UNSUPPORTED(cuDeviceGetUuid_v2)
UNSUPPORTED(cuDeviceGetDefaultMemPool)
UNSUPPORTED(cuDeviceGetMemPool)
UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuGraphUpload)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchHostFunc)
UNSUPPORTED(cuMemAllocManaged)
UNSUPPORTED(cuMemcpyDtoD_v2)
UNSUPPORTED(cuMemcpyPeerAsync)
UNSUPPORTED(cuMemsetD8_v2)
UNSUPPORTED(cuModuleGetGlobal_v2)
UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuStreamCreateWithPriority)
