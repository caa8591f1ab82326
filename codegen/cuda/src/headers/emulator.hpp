// The seam's host body. Blocks run one after another; the threads of a block are fibers on one thread of the system,
// and go on until they wait for others. Which block and which thread runs next, and when copies happen, is chosen by a schedule, so
// that a missing barrier or wait gives a wrong number, or is reported as a deadlock, under one of them. Copies whose places are not
// aligned are reported, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define KERNEL static void
#define DEVICE inline
#define UNROLL
#define UNROLL_SOME
#define UNROLL_MANY
#define ROLLED
#define CONSTANT static const
#define __launch_bounds__(...)
#define __grid_constant__
// Filled anew for each block with bytes that are NaN in every type of float.
#define SHARED(T, name, count)              \
  alignas(16) static unsigned char name##_bytes[sizeof(T) * (count)]; \
  emulator::share(name##_bytes, sizeof name##_bytes);                 \
  T* name = (T*)name##_bytes
#define LAUNCHED_SHARED(T, name, offset, count) T* name = (T*)emulator::launched(offset, sizeof(T) * (count))

struct dim3 {
  unsigned x, y, z;
};

namespace emulator {

struct Schedule {
  bool eager_copies = false;  // Copies happen when they start, not when they are waited for.
  bool warp_greedy = false;   // The last warp first, each as far as it comes, and products of warpgroups when they start; else all threads
                              // in turns, and products when they are waited for.
  u64 order = 0;  // Of blocks: 0 is ascending, 1 descending; others shuffle blocks, warps and lanes.
};

enum Wait { NOTHING, FOR_WARP, FOR_BLOCK, FOREVER };

struct Copy {
  void* to;
  const void* from;
  // Bytes that are read, and those that are written, zeros after the others.
  int bytes, size;
  int group;
};

// The first operand of a product of a warpgroup: a matrix in shared memory, or fragments in registers, with the rows that this thread's
// sums are of: 16 terms of each.
struct Rows {
  u64 matrix;
  const u32* words;
  u32 fragments[4];
  u16 numbers[2][16];
};

// A product of a warpgroup; `add` is none if it has been done.
struct Product {
  void (*add)(float* results, const Rows& a, u64 b);
  Rows a;
  u64 b;
  bool adds;
  int group;
  float* sums;
};

// Sums of products under way: where they will be, and what they will be.
struct Sums {
  float* place;
  std::vector<float> results;
};

struct Thread {
#if defined(__x86_64__)
  void* stack_pointer;
#else
  ucontext_t context;
#endif
  std::vector<char> stack;
  dim3 index;
  int number;
  Wait wait;
  std::vector<Copy> copies;
  int group;
  std::vector<Product> products;
  int product_group;
  std::vector<Sums> sums;
  bool has_begun, has_published;
  int exchange;
};

// What the lanes of a warp show each other.
struct Exchange {
  u64 values[32];
  u32 words[32][4];
  // Of a product of a warp: the rows of its first operand, the columns of its second one.
  float rows[16][16], columns[8][16];
};

// Exchanges take turns with two places: who writes to the next one may be ahead of who still reads the last one, and cannot be further
// ahead, since every exchange waits for all lanes once.
struct Warp {
  int arrived;
  Exchange exchanges[2];
};

inline Schedule schedule;
inline std::vector<Thread> threads;
inline std::vector<Warp> warps;
inline std::vector<void*> shared;
struct alignas(16) Piece {
  unsigned char bytes[16];
};
inline std::vector<Piece> launched_shared;  // Memory that the launch has asked for.
inline std::vector<Piece> published;        // What products of warpgroups read of it.
inline Thread* current;
inline dim3 block_index, block_size, grid_size;
inline int arrived;
inline u64 random_state;
inline void (*body)(void*);
inline void* body_data;

#if defined(__x86_64__)
inline void* main_stack_pointer;
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
.text
.globl emulator_switch
.weak emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
inline void to_main() { emulator_switch(&current->stack_pointer, main_stack_pointer); }
inline void to_current() { emulator_switch(&main_stack_pointer, current->stack_pointer); }
#else
inline ucontext_t main_context;
inline void to_main() { swapcontext(&current->context, &main_context); }
inline void to_current() { swapcontext(&main_context, &current->context); }
#endif

inline void enter() {
  body(body_data);
  current->wait = FOREVER;
  for (;;) to_main();
}

constexpr size_t STACK = 64 << 10;

inline void prepare(Thread& thread) {
  thread.stack.resize(STACK);
#if defined(__x86_64__)
  void** top = (void**)(((uintptr_t)thread.stack.data() + STACK) & ~(uintptr_t)15);
  *--top = nullptr;
  *--top = (void*)enter;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  thread.stack_pointer = top;
#else
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.data();
  thread.context.uc_stack.ss_size = STACK;
  makecontext(&thread.context, enter, 0);
#endif
}

inline bool advance(Thread& thread) {
  if (thread.wait != NOTHING) return false;
  current = &thread;
  to_current();
  return true;
}

// A small generator of numbers (xorshift64*).
inline u64 draw() {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545f4914f6cdd1dull >> 33;
}

inline bool shuffles() { return schedule.order > 1; }

// An order of so many things: from some place on, forwards or backwards.
struct Order {
  int count, first;
  bool is_backwards;
  explicit Order(int count)
      : count(count), first(shuffles() ? draw() % count : 0), is_backwards(shuffles() ? draw() % 2 : schedule.warp_greedy) {}
  int operator[](int i) const {
    const int at = first + (is_backwards ? count - 1 - i : i);
    return at < count ? at : at - count;
  }
};

// One turn for each thread of a warp, or as many as it can use.
inline bool advance_warp(int warp) {
  bool has_moved = false, moves = true;
  const int all = (int)threads.size(), first = warp * 32, count = first + 32 < all ? 32 : all - first;
  while (moves) {
    moves = false;
    const Order lanes(count);
    for (int i = 0; i < count; i++) moves |= advance(threads[first + lanes[i]]);
    has_moved |= moves;
    moves &= schedule.warp_greedy;
  }
  return has_moved;
}

inline void run_block() {
  const int count = (int)warps.size();
  shared.clear();
  memset((void*)launched_shared.data(), 0xff, launched_shared.size() * sizeof(Piece));
  published = launched_shared;
  arrived = 0;
  for (auto& warp : warps) warp.arrived = 0;
  for (int i = 0; i < (int)threads.size(); i++) {
    Thread& thread = threads[i];
    thread.number = i;
    thread.index = dim3{i % block_size.x, i / block_size.x, 0};
    thread.wait = NOTHING;
    thread.copies.clear();
    thread.group = 0;
    thread.products.clear();
    thread.product_group = 0;
    thread.sums.clear();
    thread.has_begun = thread.has_published = false;
    thread.exchange = 0;
    prepare(thread);
  }
  for (;;) {
    bool moves = false, is_over = true;
    const Order order(count);
    for (int w = 0; w < count; w++) moves |= advance_warp(order[w]);
    for (auto& thread : threads) is_over &= thread.wait == FOREVER;
    if (is_over) return;
    if (!moves) {
      fprintf(stderr, "deadlock in block %u,%u,%u: its threads wait at different barriers\n", block_index.x,
              block_index.y, block_index.z);
      exit(3);
    }
  }
}

// Whether a card takes a grid.
inline bool is_taken(dim3 grid) {
  return grid.x && grid.y && grid.z && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
}

// The number of the block that runs as the `i`-th of so many.
inline u64 nth_block(u64 i, u64 count) {
  if (schedule.order == 0) return i;
  if (schedule.order == 1) return count - 1 - i;
  // Steps of a length without a common divisor with the count come by every block once.
  u64 step = 0x9e3779b1 % count;
  while (std::gcd(count, step) != 1) step++;
  return (i * step + schedule.order) % count;
}

template <class F> void launch(dim3 grid, int size, size_t shared_bytes, F f) {
  grid_size = grid;
  block_size = dim3{(unsigned)size, 1, 1};
  body = [](void* data) { (*(F*)data)(); };
  body_data = &f;
  threads.resize(size);
  launched_shared.resize(shared_bytes / sizeof(Piece));
  warps.assign((size + 31) / 32, Warp());
  random_state = schedule.order * 0x9e3779b97f4a7c15ull | 1;
  const u64 count = (u64)grid.x * grid.y * grid.z;
  for (u64 i = 0; i < count; i++) {
    const u64 block = nth_block(i, count);
    block_index = dim3{(unsigned)(block % grid.x), (unsigned)(block / grid.x % grid.y), (unsigned)(block / grid.x / grid.y)};
    run_block();
  }
}

inline void share(void* memory, size_t bytes) {
  for (void* known : shared)
    if (known == memory) return;
  shared.push_back(memory);
  memset(memory, 0xff, bytes);
}

// What was written to shared memory is there for products, if every thread has published what it has written.
inline void publish_all() {
  for (auto& thread : threads)
    if (!thread.has_published) return;
  published = launched_shared;
  for (auto& thread : threads) thread.has_published = false;
}

inline void wait_for_block() {
  current->wait = FOR_BLOCK;
  if (++arrived == (int)threads.size()) {
    arrived = 0;
    publish_all();
    for (auto& thread : threads)
      if (thread.wait == FOR_BLOCK) thread.wait = NOTHING;
  }
  while (current->wait != NOTHING) to_main();
}

inline void wait_for_warp() {
  const int first = current->number / 32 * 32;
  Warp& warp = warps[first / 32];
  current->wait = FOR_WARP;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    for (int i = first; i < first + 32; i++)
      if (threads[i].wait == FOR_WARP) threads[i].wait = NOTHING;
  }
  while (current->wait != NOTHING) to_main();
}

// Ends the process with what is wrong in the current block.
inline void stop(int code, const char* what, const char* problem) {
  fprintf(stderr, "%s in block %u,%u,%u %s\n", what, block_index.x, block_index.y, block_index.z, problem);
  exit(code);
}

inline void* launched(size_t offset, size_t bytes) {
  if (offset + bytes > launched_shared.size() * sizeof(Piece)) stop(9, "shared memory", "is more than the launch has asked for");
  return launched_shared.data()->bytes + offset;
}

// Where the lanes of this thread's warp show each other something next.
inline Exchange& next_exchange() {
  current->exchange ^= 1;
  return warps[current->number / 32].exchanges[current->exchange];
}

inline void write(void* to, const Copy& copy) {
  memset(to, 0, copy.size);
  memcpy(to, copy.from, copy.bytes);
}

inline void copy(const Copy& copy) {
  write(copy.to, copy);
  current->has_published = false;
  // What has not been published may be there for products, too, at any time.
  const u64 offset = (unsigned char*)copy.to - launched_shared.data()->bytes;
  if (schedule.eager_copies && offset < published.size() * sizeof(Piece)) write(published.data()->bytes + offset, copy);
}

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)
#define __syncthreads() emulator::wait_for_block()
#define __syncwarp() emulator::wait_for_warp()

template <class T> T shuffle_xor(T value, int bits) {
  auto& exchange = emulator::next_exchange();
  const int lane = emulator::current->number % 32;
  memcpy(&exchange.values[lane], &value, sizeof value);
  emulator::wait_for_warp();
  T other;
  memcpy(&other, &exchange.values[lane ^ bits], sizeof other);
  return other;
}
inline bool any_of_warp(bool holds) {
  for (int bits = 16; bits > 0; bits /= 2) holds |= shuffle_xor(holds, bits);
  return holds;
}

inline void start_copy(void* to, const void* from, int bytes, int size) {
  if ((uintptr_t)to % size || (bytes && (uintptr_t)from % size)) emulator::stop(8, "a copy to shared memory", "is not aligned");
  const emulator::Copy copy{to, from, bytes, size, emulator::current->group};
  if (emulator::schedule.eager_copies)
    emulator::copy(copy);
  else
    emulator::current->copies.push_back(copy);
}

inline void copy_async(void* to, const void* from, int bytes) { start_copy(to, from, bytes, 16); }

inline void copy_async(void* to, const void* from) { copy_async(to, from, 16); }

template <int BYTES> void copy_number(void* to, const void* from, bool is_there) {
  start_copy(to, from, is_there ? BYTES : 0, BYTES);
}

// Reads a byte: where no memory is, that ends the run.
inline void prefetch_line(const void* place) { (void)*(const volatile char*)place; }
inline void copy_commit() { emulator::current->group++; }

template <int GROUPS> void copy_wait() {
  auto& copies = emulator::current->copies;
  const int first_under_way = emulator::current->group - GROUPS;
  size_t kept = 0;
  for (auto& copy : copies) {
    if (copy.group < first_under_way)
      emulator::copy(copy);
    else
      copies[kept++] = copy;
  }
  copies.resize(kept);
}

// As the PTX manual has `ldmatrix.m8n8.x4`, with and without `.trans`. Lines of a matrix are read together: each has to lie in banks
// of its own, which costs nothing but time on a card, and is an error here.
template <bool IS_TRANSPOSED> void load_matrices(u32* words, const void* line) {
  auto& exchange = emulator::next_exchange();
  const int lane = emulator::current->number % 32, g = lane / 4, q = lane % 4;
  if ((uintptr_t)line % 16) emulator::stop(8, "a line of a matrix", "is not aligned");
  memcpy(&exchange.values[lane], &line, sizeof line);
  emulator::wait_for_warp();
  for (int i = 0; i < 4; i++) {
    const u64* lines = &exchange.values[8 * i];
    unsigned banks = 0;
    for (int j = 0; j < 8; j++) banks |= 1u << lines[j] / 16 % 8;
    if (banks != 0xff) emulator::stop(10, "lines of a matrix", "lie in the same banks");
    u16 numbers[2];
    for (int part = 0; part < 2; part++)
      numbers[part] = IS_TRANSPOSED ? ((const u16*)lines[2 * q + part])[g] : ((const u16*)lines[g])[2 * q + part];
    memcpy(&words[i], numbers, 4);
  }
  // No lane writes to what another one still reads.
  emulator::wait_for_warp();
}

inline float float_of_bits(u32 bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline u32 bytes_of(u32 x, u32 y, u32 selector) {
  const u64 bytes = (u64)y << 32 | x;
  u32 result = 0;
  for (int at = 0; at < 4; at++) result |= (u32)(bytes >> 8 * (selector >> 4 * at & 7) & 0xff) << 8 * at;
  return result;
}

inline u32 bits_of_float(float x) {
  u32 bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline double double_of_bits(u64 bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

inline u16 bf16_bits(float x) {
  const u32 bits = bits_of_float(x);
  return x != x ? (u16)(bits >> 16 | 0x40) : (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline u32 tf32_bits(float x) {
  const u32 bits = bits_of_float(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

inline float half_value(u16 bits) {
  const u32 sign = (u32)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  // Below the smallest normal number, neighbours are 2^−24 apart.
  if (exponent == 0) return (sign ? -5.9604644775390625e-8f : 5.9604644775390625e-8f) * (float)fraction;
  return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

inline u16 half_bits(float x) {
  const u16 sign = bits_of_float(x) >> 16 & 0x8000;
  const float magnitude = fabsf(x);
  if (x != x) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude == 0.0f) return sign;
  int exponent = 0;
  frexpf(magnitude, &exponent);
  // The distance of neighbours at this magnitude is 2^(exponent − 11), and never less than 2^−24.
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const u32 steps = (u32)nearbyintf(ldexpf(magnitude, -unit));
  return sign | (u16)(steps + ((u32)(unit + 24) << 10));
}

inline u32 bf16_pair(float x, float y) { return bf16_bits(x) | (u32)bf16_bits(y) << 16; }
inline u32 half_pair(float x, float y) { return half_bits(x) | (u32)half_bits(y) << 16; }
inline float maximum(float x, float y) { return x != x || y != y ? x + y : x > y ? x : y; }
inline float difference(float x, float y) { return x - y; }
inline float fast_exp2(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }

namespace emulator {

// d += a·b of a warp. The layouts of operands and sums are those of the PTX manual, `mma.m16n8k16` and `mma.m16n8k8`:
// lane 4g + q has of a the rows g and g + 8, of b the column g, of d the rows g and g + 8 and the columns 2q and 2q + 1.
template <int DEPTH, class Value> void multiply(float* d, const u32* a, const u32* b, Value value) {
  Exchange& exchange = next_exchange();
  const int lane = current->number % 32, g = lane / 4, q = lane % 4;
  constexpr int PER_WORD = DEPTH / 8;  // Two numbers of 16 bits or one of 32.
  for (int half = 0; half < 2; half++)
    for (int part = 0; part < PER_WORD; part++) {
      const int k = (4 * half + q) * PER_WORD + part;
      exchange.rows[g][k] = value(a[2 * half], part);
      exchange.rows[g + 8][k] = value(a[2 * half + 1], part);
      exchange.columns[g][k] = value(b[half], part);
    }
  wait_for_warp();
  const float *upper = exchange.rows[g], *lower = exchange.rows[g + 8];
  const float *left = exchange.columns[2 * q], *right = exchange.columns[2 * q + 1];
  float sums[4] = {d[0], d[1], d[2], d[3]};
  for (int k = 0; k < DEPTH; k++) {
    sums[0] += upper[k] * left[k];
    sums[1] += upper[k] * right[k];
    sums[2] += lower[k] * left[k];
    sums[3] += lower[k] * right[k];
  }
  memcpy(d, sums, sizeof sums);
}
}  // namespace emulator

inline void mma_bf16(float* d, const u32* a, const u32* b) {
  emulator::multiply<16>(d, a, b, [](u32 word, int part) { return float_of_bits(part ? word & 0xffff0000u : word << 16); });
}

inline void mma_f16(float* d, const u32* a, const u32* b) {
  emulator::multiply<16>(d, a, b, [](u32 word, int part) { return half_value((u16)(part ? word >> 16 : word)); });
}

inline void mma_tf32(float* d, const u32* a, const u32* b) {
  emulator::multiply<8>(d, a, b, [](u32 word, int) { return float_of_bits(word & 0xffffe000u); });
}

// Products of warpgroups happen when they start, or when they are waited for, whatever copies do. They read what has been published. Until
// the wait, their sums are NaN.

// With a bit of those that say which block of a cluster it is.
inline u32 shared_address(const void* place) { return 1u << 24 | (u32)((const u8*)place - emulator::launched_shared.data()->bytes); }

inline void publish_shared() { emulator::current->has_published = true; }

inline void products_begin() { emulator::current->has_begun = true; }

inline void products_commit() {
  emulator::current->has_begun = false;
  emulator::current->product_group++;
}

inline void keep_in_place(float&) {}
inline void keep_in_place(u32&) {}

namespace emulator {

// Does a product, and checks that registers of its first operand are as they were.
inline void multiply(Thread& thread, const Product& product) {
  if (product.a.words && memcmp(product.a.words, product.a.fragments, sizeof product.a.fragments))
    stop(11, "an operand of a product of a warpgroup", "changes while the product is under way");
  for (auto& sums : thread.sums) {
    if (sums.place != product.sums || !product.add) continue;
    if (!product.adds) std::fill(sums.results.begin(), sums.results.end(), 0.0f);
    product.add(sums.results.data(), product.a, product.b);
  }
}

// Writes sums of which no product is under way any more.
inline void write_sums(Thread& thread) {
  size_t kept = 0;
  for (auto& sums : thread.sums) {
    bool is_under_way = false;
    for (const auto& product : thread.products) is_under_way |= product.sums == sums.place;
    for (size_t at = 0; at < sums.results.size(); at++)
      if (sums.place[at] == sums.place[at]) stop(11, "a sum of a product of a warpgroup", "changes while the product is under way");
    if (is_under_way)
      std::swap(thread.sums[kept++], sums);
    else
      memcpy(sums.place, sums.results.data(), sums.results.size() * sizeof(float));
  }
  thread.sums.resize(kept);
}

}  // namespace emulator

template <int GROUPS> void products_wait() {
  auto& thread = *emulator::current;
  auto& products = thread.products;
  size_t done = 0;
  for (; done < products.size() && products[done].group < thread.product_group - GROUPS; done++)
    emulator::multiply(thread, products[done]);
  products.erase(products.begin(), products.begin() + done);
  emulator::write_sums(thread);
}

struct bf16;
struct f16;

namespace emulator {

// The terms of a row of an operand; the row counts from that of the matrix. As the PTX manual has the layouts "128B swizzling" of K-major
// and MN-major matrices, and the matrix descriptor.
template <bool ALONG_ROWS, int TERMS> void read_row(u16* terms, u64 matrix, int row) {
  if (matrix >> 62 != 1 || (matrix >> 49 & 7)) stop(11, "the matrix of a product", "is not swizzled as it should be");
  const auto offset = [&](int from) { return (matrix >> from & 0x3fff) * 16; };
  const u64 next_lines = offset(32), size = published.size() * sizeof(Piece);
  const u64 line = offset(0) + (ALONG_ROWS ? row / 64 * offset(16) + row % 64 * 2 : row / 8 * next_lines + row % 8 * 128);
  // Terms that lie together: pieces of 16 bytes stay whole.
  constexpr int TOGETHER = ALONG_ROWS ? 1 : 8;
  for (int term = 0; term < TERMS; term += TOGETHER) {
    u64 address = line + (ALONG_ROWS ? term / 8 * next_lines + term % 8 * 128 : term * 2);
    address ^= address >> 3 & 0x70;
    if (address + 2 * TOGETHER > size) stop(11, "the matrix of a product", "is outside of shared memory");
    memcpy(terms + term, published.data()->bytes + address, 2 * TOGETHER);
  }
}
}  // namespace emulator

template <class T, int COLUMNS, bool A_ALONG_ROWS, bool B_ALONG_ROWS> struct WarpgroupProduct {
  static constexpr int COUNT = COLUMNS / 2, TERMS = 16;

  // That of `numbers.cuh`, which may lie in the namespace of a function.
  static void widen_row(float* values, const u16* bits) {
    for (int k = 0; k < TERMS; k++) values[k] = widen(T{bits[k]});
  }

  static void add(float* results, const emulator::Rows& a_rows, u64 b_matrix) {
    const int thread = emulator::current->number % 128, g = thread % 32 / 4, q = thread % 4;
    u16 bits[TERMS];
    float upper[TERMS], lower[TERMS], b[TERMS];
    for (int half = 0; half < 2; half++) {
      if (!a_rows.words) emulator::read_row<A_ALONG_ROWS, TERMS>(bits, a_rows.matrix, thread / 32 * 16 + half * 8 + g);
      widen_row(half ? lower : upper, a_rows.words ? a_rows.numbers[half] : bits);
    }
    for (int at = 0; at < COUNT; at += at % 4 ? 3 : 1) {
      // Two sums of this column, in the upper and the lower row.
      emulator::read_row<B_ALONG_ROWS, TERMS>(bits, b_matrix, at / 4 * 8 + 2 * q + at % 4);
      widen_row(b, bits);
      float first = results[at], second = results[at + 2];
      for (int k = 0; k < TERMS; k++) {
        first += upper[k] * b[k];
        second += lower[k] * b[k];
      }
      results[at] = first;
      results[at + 2] = second;
    }
  }

  template <bool ADDS = true> static void start(float* sums, u64 a, u64 b) {
    emulator::Rows rows{};
    rows.matrix = a;
    start_rows(sums, rows, b, ADDS);
  }

  // Lane 4g + q has, of the rows g and g + 8, the terms 2q and 2q + 1 as words 0 and 1, and 2q + 8 and 2q + 9 as words 2 and 3.
  static void start(float* sums, const u32* a, u64 b) {
    auto& exchange = emulator::next_exchange();
    const int lane = emulator::current->number % 32, g = lane / 4;
    emulator::Rows rows{};
    rows.words = a;
    memcpy(rows.fragments, a, sizeof rows.fragments);
    for (int i = 0; i < 4; i++) exchange.words[lane][i] = a[i];
    emulator::wait_for_warp();
    for (int half = 0; half < 2; half++)
      for (int k = 0; k < TERMS; k++)
        rows.numbers[half][k] = (u16)(exchange.words[4 * g + k % 8 / 2][k / 8 * 2 + half] >> (k % 2 * 16));
    start_rows(sums, rows, b, true);
  }

  static void start_rows(float* place, const emulator::Rows& a, u64 b, bool adds) {
    auto& thread = *emulator::current;
    if (!thread.has_begun) emulator::stop(11, "a product of a warpgroup", "does not wait for its sums");
    bool is_known = false;
    for (auto& sums : thread.sums) is_known |= sums.place == place;
    if (!is_known) thread.sums.push_back({place, {place, place + COUNT}});
    for (int at = 0; at < COUNT; at++) place[at] = NAN;
    emulator::Product product{add, a, b, adds, thread.product_group, place};
    if (emulator::schedule.warp_greedy) {
      emulator::multiply(thread, product);
      product.add = nullptr;
    }
    thread.products.push_back(product);
  }
};
