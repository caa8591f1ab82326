// A stand-in for NCCL: ranks are threads of one process, each with a device of its own, and what they send each other is copied when both
// the streams of the sender and of the receiver have come to it. It knows what a call may be, and nothing of graphs or of speed.
//
// Settings: SIMULATED_NCCL_VERSION (22703); and for the thread that calls it, simulatedFailure(name, count): after so many more calls, the
// function of that name fails.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default"))) int

typedef unsigned long long Address;
extern "C" int simulatedEnqueue(void* stream, const char* name, int (*operation)(void*), void* data, const Address* starts,
                                const size_t* sizes, int count);
extern "C" int simulatedLocked(int (*action)(void*), void* data);
extern "C" int simulatedAwait(int (*is_met)(void*), void* data);
extern "C" int cuCtxGetCurrent(void** context);

enum Result { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { UINT8 = 1, FLOAT32 = 7, BFLOAT16 = 9, SUM = 0, NOT_READY = 600 };

// By which calls bytes go from rank to rank.
enum Call { SEND_AND_RECV, ALL_GATHER, REDUCE };

// What one rank has posted for another one.
struct Post {
  char* at;
  size_t bytes;
  Call call;
  bool is_done;
};
typedef std::shared_ptr<Post> Posted;

// Ranks that share an id.
struct World {
  size_t ranks, joined = 0;
  bool is_broken = false;
  std::vector<void*> contexts;
  // By sender and receiver.
  std::map<std::pair<int, int>, std::deque<Posted>> sends, receives;
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank;
};

struct Message {
  bool is_sent;
  char* at;
  size_t bytes;
  int peer;
  Call call;
};

// What one rank sums when it has the parts of all.
struct Reduction {
  std::shared_ptr<std::vector<char>> parts;
  char* to;
  size_t ranks, count;
  int type;
};

// What one communicator starts together.
struct Group {
  std::shared_ptr<World> world;
  int rank;
  std::vector<Message> messages;
  std::vector<Posted> posts;
  std::vector<Reduction> reductions;
};

struct Id {
  uint64_t words[16];
};

namespace {
std::map<uint64_t, std::shared_ptr<World>>& worlds() {
  static auto* worlds = new std::map<uint64_t, std::shared_ptr<World>>;
  return *worlds;
}

thread_local std::string failing, last_error;
thread_local int calls_left, depth, group_error;
thread_local std::vector<std::pair<void*, Group*>> groups;

int say(int result, const std::string& text) {
  last_error = text;
  return result;
}

bool fails(const char* name) { return failing == name && calls_left-- == 0; }

template <class F> int locked(F action) {
  return simulatedLocked([](void* action) { return (int)(*(F*)action)(); }, &action);
}

template <class F> void await(F is_met) {
  simulatedAwait([](void* is_met) { return (int)(*(F*)is_met)(); }, &is_met);
}

// Copies what both sides have posted.
int match(World& world, std::pair<int, int> pair) {
  auto &sends = world.sends[pair], &receives = world.receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Post &from = *sends.front(), &to = *receives.front();
    if (from.bytes != to.bytes || from.call != to.call) {
      fprintf(stderr, "simulated NCCL: rank %d sends %zu bytes (call %d), and rank %d receives %zu (call %d)\n", pair.first,
              from.bytes, from.call, pair.second, to.bytes, to.call);
      return INVALID_ARGUMENT;
    }
    memmove(to.at, from.at, to.bytes);
    from.is_done = to.is_done = true;
    sends.pop_front(), receives.pop_front();
    // Who waits for it may go on.
    locked([] { return SUCCESS; });
  }
  return SUCCESS;
}

int post(Group& group) {
  World& world = *group.world;
  for (const Message& message : group.messages) {
    auto post = std::make_shared<Post>(Post{message.at, message.bytes, message.call, false});
    const int from = message.is_sent ? group.rank : message.peer, to = message.is_sent ? message.peer : group.rank;
    (message.is_sent ? world.sends : world.receives)[{from, to}].push_back(post);
    group.posts.push_back(post);
    if (int result = match(world, {from, to})) return result;
  }
  return SUCCESS;
}

float widened(const char* at, int type) {
  if (type == FLOAT32) return *(const float*)at;
  const uint32_t bits = (uint32_t) * (const uint16_t*)at << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

void store(char* at, int type, float value) {
  if (type == FLOAT32) {
    *(float*)at = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  *(uint16_t*)at = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

size_t size_of(int type) { return type == FLOAT32 ? 4 : 2; }

// In another order than that of ranks, as a library may.
void sum(const Reduction& reduction) {
  const size_t size = size_of(reduction.type);
  for (size_t i = 0; i < reduction.count; i++) {
    float sum = 0;
    for (size_t rank = reduction.ranks; rank-- > 0;)
      sum += widened(reduction.parts->data() + (rank * reduction.count + i) * size, reduction.type);
    store(reduction.to + i * size, reduction.type, sum);
  }
}

// An operation of a stream.
int run(void* data) {
  Group& group = *(Group*)data;
  if (group.posts.empty())
    if (int result = post(group)) return result;
  // Kernels of a communicator that is aborted end at once, whatever they have.
  const bool is_over = std::all_of(group.posts.begin(), group.posts.end(), [](auto& post) { return post->is_done; });
  if (is_over)
    for (const Reduction& reduction : group.reductions) sum(reduction);
  return is_over || group.world->is_broken ? (int)SUCCESS : (int)NOT_READY;
}

int enqueue(void* stream, Group* group) {
  std::vector<Address> starts;
  std::vector<size_t> sizes;
  for (const Reduction& reduction : group->reductions) {
    starts.push_back((Address)reduction.to);
    sizes.push_back(reduction.count * size_of(reduction.type));
  }
  for (const Message& message : group->messages) {
    // Parts that are summed lie in memory of the library's.
    if (message.call == REDUCE && !message.is_sent) continue;
    starts.push_back((Address)message.at);
    sizes.push_back(message.bytes);
  }
  const int result = simulatedEnqueue(stream, "a group of NCCL", run, group, starts.data(), sizes.data(), (int)starts.size());
  return result ? say(UNHANDLED_CUDA_ERROR, "the stream takes nothing") : SUCCESS;
}

int end_group() {
  std::vector<std::pair<void*, Group*>> ended;
  ended.swap(groups);
  int result = group_error;
  group_error = SUCCESS;
  for (auto [stream, group] : ended)
    if (result == SUCCESS) result = enqueue(stream, group);
  return result;
}

// Adds messages to the group of this thread, or starts them by themselves.
int add(Communicator* communicator, void* stream, std::vector<Message> messages, std::vector<Reduction> reductions = {}) {
  World& world = *communicator->world;
  void* context = nullptr;
  cuCtxGetCurrent(&context);
  if (context != world.contexts[communicator->rank]) return say(group_error = INVALID_USAGE, "another device is current");
  for (const Message& message : messages) {
    if (message.peer < 0 || (size_t)message.peer >= world.ranks) return say(group_error = INVALID_ARGUMENT, "there is no such rank");
    if (message.peer == communicator->rank && depth == 0 && message.call == SEND_AND_RECV)
      return say(group_error = INVALID_USAGE, "a rank sends to itself outside of a group");
  }
  auto same = std::find_if(groups.begin(), groups.end(), [&](auto& group) {
    return group.first == stream && group.second->world == communicator->world;
  });
  if (same == groups.end()) same = groups.insert(groups.end(), {stream, new Group{communicator->world, communicator->rank, {}, {}, {}}});
  same->second->messages.insert(same->second->messages.end(), messages.begin(), messages.end());
  same->second->reductions.insert(same->second->reductions.end(), reductions.begin(), reductions.end());
  return depth ? SUCCESS : end_group();
}

int point_to_point(const char* call, bool is_sent, void* at, size_t count, int type, int peer, Communicator* communicator, void* stream) {
  if (fails(call)) return group_error = say(SYSTEM_ERROR, "told to fail");
  if (type != UINT8 || count == 0) return group_error = say(INVALID_ARGUMENT, "no bytes");
  return add(communicator, stream, {{is_sent, (char*)at, count, peer, SEND_AND_RECV}});
}

// Every rank gets the sum of `count` numbers, of what all give, or of its part of that.
int reduce(const char* call, bool is_whole, char* from, char* to, size_t count, int type, int op, Communicator* communicator, void* stream) {
  if (fails(call)) return say(SYSTEM_ERROR, "told to fail");
  if ((type != FLOAT32 && type != BFLOAT16) || op != SUM || count == 0) return say(INVALID_ARGUMENT, "no sum of floats");
  const size_t ranks = communicator->world->ranks, bytes = count * size_of(type);
  auto parts = std::make_shared<std::vector<char>>(ranks * bytes);
  std::vector<Message> messages;
  for (int peer = 0; peer < (int)ranks; peer++) {
    messages.push_back({true, is_whole ? from : from + peer * bytes, bytes, peer, REDUCE});
    messages.push_back({false, parts->data() + peer * bytes, bytes, peer, REDUCE});
  }
  return add(communicator, stream, messages, {{parts, to, ranks, count, type}});
}
}  // namespace

extern "C" __attribute__((visibility("default"))) void simulatedFailure(const char* name, int count) {
  failing = name;
  calls_left = count;
}

EXPORT ncclGetVersion(int* version) {
  const char* text = getenv("SIMULATED_NCCL_VERSION");
  *version = text ? atoi(text) : 22703;
  return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Communicator*) { return last_error.c_str(); }

EXPORT ncclGetUniqueId(Id* id) {
  if (fails("ncclGetUniqueId")) return say(SYSTEM_ERROR, "told to fail");
  return locked([=] {
    *id = Id{{worlds().size() + 1, 0x6e63636c}};
    worlds()[id->words[0]] = std::make_shared<World>();
    return SUCCESS;
  });
}

EXPORT ncclCommInitRank(Communicator** handle, int ranks, Id id, int rank) {
  void* context = nullptr;
  cuCtxGetCurrent(&context);
  const bool fails_here = fails("ncclCommInitRank");
  std::shared_ptr<World> shared;
  const int joined = locked([&]() -> int {
    auto found = worlds().find(id.words[0]);
    if (found == worlds().end() || rank < 0 || rank >= ranks) return say(INVALID_ARGUMENT, "no id of a rank");
    shared = found->second;
    World& world = *shared;
    world.ranks = ranks;
    world.contexts.resize(ranks);
    const bool is_taken = std::count(world.contexts.begin(), world.contexts.end(), context);
    world.contexts[rank] = context;
    world.joined++;
    // The others see a connection that is closed.
    if (fails_here || !context || is_taken) world.is_broken = true;
    if (fails_here) return say(SYSTEM_ERROR, "told to fail");
    if (!context) return say(UNHANDLED_CUDA_ERROR, "no device is current");
    return is_taken ? say(INVALID_USAGE, "Duplicate GPU detected") : (int)SUCCESS;
  });
  if (joined != SUCCESS) return joined;
  await([&] { return shared->is_broken || shared->joined == shared->ranks; });
  if (shared->is_broken) return say(REMOTE_ERROR, "a connection is closed");
  *handle = new Communicator{shared, rank};
  return SUCCESS;
}

EXPORT ncclCommDestroy(Communicator* communicator) {
  delete communicator;
  return SUCCESS;
}

EXPORT ncclCommAbort(Communicator* communicator) {
  locked([=] { return communicator->world->is_broken = true, SUCCESS; });
  delete communicator;
  return SUCCESS;
}

EXPORT ncclCommGetAsyncError(Communicator* communicator, int* result) {
  const bool is_broken = locked([=] { return (int)communicator->world->is_broken; });
  *result = is_broken ? say(REMOTE_ERROR, "a connection is closed") : (int)SUCCESS;
  return SUCCESS;
}

EXPORT ncclGroupStart() {
  depth++;
  return SUCCESS;
}

EXPORT ncclGroupEnd() {
  if (depth == 0) return say(INVALID_USAGE, "no group has begun");
  if (--depth > 0) return SUCCESS;
  if (fails("ncclGroupEnd")) group_error = say(SYSTEM_ERROR, "told to fail");
  return end_group();
}

EXPORT ncclSend(char* at, size_t count, int type, int peer, Communicator* communicator, void* stream) {
  return point_to_point("ncclSend", true, at, count, type, peer, communicator, stream);
}

EXPORT ncclRecv(char* at, size_t count, int type, int peer, Communicator* communicator, void* stream) {
  return point_to_point("ncclRecv", false, at, count, type, peer, communicator, stream);
}

EXPORT ncclAllGather(char* from, char* to, size_t count, int type, Communicator* communicator, void* stream) {
  if (fails("ncclAllGather")) return group_error = say(SYSTEM_ERROR, "told to fail");
  if (type != UINT8 || count == 0) return group_error = say(INVALID_ARGUMENT, "no bytes");
  std::vector<Message> messages;
  for (int peer = 0; peer < (int)communicator->world->ranks; peer++) {
    messages.push_back({true, from, count, peer, ALL_GATHER});
    messages.push_back({false, to + peer * count, count, peer, ALL_GATHER});
  }
  return add(communicator, stream, messages);
}

EXPORT ncclAllReduce(char* from, char* to, size_t count, int type, int op, Communicator* communicator, void* stream) {
  return reduce("ncclAllReduce", true, from, to, count, type, op, communicator, stream);
}

EXPORT ncclReduceScatter(char* from, char* to, size_t count, int type, int op, Communicator* communicator, void* stream) {
  return reduce("ncclReduceScatter", false, from, to, count, type, op, communicator, stream);
}
