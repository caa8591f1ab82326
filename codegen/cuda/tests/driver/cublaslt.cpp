// A stand-in for cublasLt: products of matrices as they are described, computed one number after another on the streams of the
// simulated driver. It knows layouts, stacks, transposition, alignment, and sums in f32 or TF32; nothing of speed.
//
// Settings: SIMULATED_LIBRARY (`quick`; or `slow`: every product takes a while; `unable`: there is no algorithm for any product;
// `failing`: no product can be started; `closed`: the library cannot be opened), SIMULATED_LIBRARY_VERSION (120901).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <time.h>

#define EXPORT extern "C" __attribute__((visibility("default"))) int

typedef unsigned long long Address;
extern "C" int simulatedEnqueue(void* stream, const char* name, int (*operation)(void*), void* data, const Address* starts,
                                const size_t* sizes, int count);

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };

struct Operation {
  int compute, scale, transposed[2];
};

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t count;
  int64_t apart;
};

struct Preference {
  uint64_t workspace;
  uint32_t reductions, alignment[4];
};

// As the library's interface has it.
struct Algorithm {
  uint64_t words[8];
};
struct Found {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

// One of the algorithms, which wants memory; what it is called says for which product it is meant.
static const uint64_t KNOWN = 0x616c676f;
static const size_t WORKSPACE[2] = {0, 1000};

static bool is_set_to(const char* word) {
  const char* text = getenv("SIMULATED_LIBRARY");
  return text && !strcmp(text, word);
}

EXPORT cublasLtCreate(void** handle) {
  *handle = handle;
  return is_set_to("closed") ? NOT_INITIALIZED : SUCCESS;
}

EXPORT cublasLtDestroy(void*) { return SUCCESS; }

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() {
  const char* text = getenv("SIMULATED_LIBRARY_VERSION");
  return text ? strtoull(text, nullptr, 10) : 120901;
}

EXPORT cublasLtMatmulDescCreate(Operation** operation, int compute, int scale) {
  *operation = new Operation{compute, scale, {0, 0}};
  return SUCCESS;
}

EXPORT cublasLtMatmulDescDestroy(Operation* operation) {
  delete operation;
  return SUCCESS;
}

EXPORT cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value, size_t size) {
  if ((attribute != 3 && attribute != 4) || size != 4) return INVALID_VALUE;
  memcpy(&operation->transposed[attribute - 3], value, 4);
  return SUCCESS;
}

EXPORT cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new Layout{type, rows, columns, leading, 1, 0};
  return SUCCESS;
}

EXPORT cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return SUCCESS;
}

EXPORT cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
  if (attribute == 5 && size == 4) return memcpy(&layout->count, value, 4), SUCCESS;
  if (attribute == 6 && size == 8) return memcpy(&layout->apart, value, 8), SUCCESS;
  return INVALID_VALUE;
}

EXPORT cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference{0, 7, {256, 256, 256, 256}};
  return SUCCESS;
}

EXPORT cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return SUCCESS;
}

EXPORT cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
  if (attribute == 1 && size == 8) return memcpy(&preference->workspace, value, 8), SUCCESS;
  if (attribute == 3 && size == 4) return memcpy(&preference->reductions, value, 4), SUCCESS;
  if (attribute >= 5 && attribute <= 8 && size == 4) return memcpy(&preference->alignment[attribute - 5], value, 4), SUCCESS;
  return INVALID_VALUE;
}

static size_t size_of(int type) { return type == R_32F ? 4 : 2; }

// A product with all that it takes, as the stream runs it later.
struct Product {
  Operation operation;
  Layout layouts[3];  // A, B, D.
  char* places[3];
  size_t workspace_bytes;
  char* workspace;
};

static uint64_t depth(const Product& p) {
  return p.operation.transposed[0] ? p.layouts[0].rows : p.layouts[0].columns;
}

// What of a description cannot be.
static const char* mistake(const Product& p) {
  const Layout &a = p.layouts[0], &b = p.layouts[1], &d = p.layouts[2];
  if (p.operation.scale != R_32F) return "scales are not f32";
  if (p.operation.compute != COMPUTE_32F && p.operation.compute != COMPUTE_32F_FAST_TF32) return "sums are not f32";
  if (a.type != b.type || (d.type != a.type && d.type != R_32F)) return "types do not fit";
  if (p.operation.compute == COMPUTE_32F_FAST_TF32 && a.type != R_32F) return "TF32 is for f32";
  if (a.count != d.count || b.count != d.count || d.count < 1) return "stacks have different heights";
  for (const Layout& layout : p.layouts)
    if (layout.rows < 1 || layout.columns < 1 || layout.leading < (int64_t)layout.rows || layout.apart < 0)
      return "columns of a matrix overlap";
  if (d.count > 1 && d.apart == 0) return "results overlap";
  const uint64_t rows = p.operation.transposed[0] ? a.columns : a.rows;
  const uint64_t columns = p.operation.transposed[1] ? b.rows : b.columns;
  const uint64_t other = p.operation.transposed[1] ? b.columns : b.rows;
  return rows != d.rows || columns != d.columns || other != depth(p) ? "extents do not fit" : nullptr;
}

static int check(const Operation* operation, const Layout* a, const Layout* b, const Layout* c, const Layout* d,
                 Product* product) {
  *product = Product{*operation, {*a, *b, *d}, {}, 0, nullptr};
  const char* wrong = memcmp(c, d, sizeof *c) ? "C is not D" : mistake(*product);
  if (wrong) fprintf(stderr, "simulated cublasLt: %s\n", wrong);
  return wrong ? INVALID_VALUE : SUCCESS;
}

// Algorithms are meant for one product.
static uint64_t identity(const Product& p) {
  uint64_t hash = KNOWN;
  auto mix = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3ull; };
  mix(p.operation.compute), mix(p.operation.transposed[0]), mix(p.operation.transposed[1]);
  for (const Layout& l : p.layouts) mix(l.type), mix(l.rows), mix(l.columns), mix(l.leading), mix(l.count), mix(l.apart);
  return hash;
}

EXPORT cublasLtMatmulAlgoGetHeuristic(void*, const Operation* operation, const Layout* a, const Layout* b, const Layout* c,
                                      const Layout* d, const Preference* preference, int wanted, Found* found, int* count) {
  *count = 0;
  Product product;
  if (int result = check(operation, a, b, c, d, &product)) return result;
  if (is_set_to("unable")) return NOT_SUPPORTED;
  // Sums of parts in the type of the result have been excluded, and memory is there.
  if (preference->reductions & ~2u) return NOT_SUPPORTED;
  for (int i = 0; i < 2 && *count < wanted; i++) {
    if (WORKSPACE[i] > preference->workspace) continue;
    Algorithm algorithm{{KNOWN, (uint64_t)i, identity(product), 0, 0, 0, 0, 0}};
    memcpy(&algorithm.words[3], preference->alignment, 16);
    found[(*count)++] = Found{algorithm, WORKSPACE[i], SUCCESS, 1, {}};
  }
  return SUCCESS;
}

EXPORT cublasLtMatmulAlgoCheck(void*, const Operation* operation, const Layout* a, const Layout* b, const Layout* c,
                               const Layout* d, const Algorithm* algorithm, Found* found) {
  Product product;
  if (int result = check(operation, a, b, c, d, &product)) return result;
  if (algorithm->words[0] != KNOWN || algorithm->words[1] > 1) return INVALID_VALUE;
  if (algorithm->words[2] != identity(product)) return NOT_SUPPORTED;
  *found = Found{*algorithm, WORKSPACE[algorithm->words[1]], SUCCESS, 1, {}};
  return SUCCESS;
}

// A number in memory; TF32 has 10 bits of fraction.
static float element(const char* place, int type, bool is_tf32) {
  uint32_t bits = 0;
  float value;
  if (type == R_16F) {
    _Float16 half;
    memcpy(&half, place, 2);
    return (float)half;
  }
  memcpy((char*)&bits + (type == R_16BF ? 2 : 0), place, size_of(type));
  if (is_tf32) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(&value, &bits, 4);
  return value;
}

static void store(char* place, int type, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (type == R_32F) memcpy(place, &value, 4);
  if (type == R_16F) {
    const _Float16 half = (_Float16)value;
    memcpy(place, &half, 2);
  }
  if (type == R_16BF) {
    if (value == value) bits += 0x7fff + (bits >> 16 & 1);
    memcpy(place, (char*)&bits + 2, 2);
  }
}

static float at(const Product& p, int which, uint64_t matrix, uint64_t row, uint64_t column) {
  const Layout& layout = p.layouts[which];
  if (p.operation.transposed[which]) {
    const uint64_t other = row;
    row = column;
    column = other;
  }
  const uint64_t offset = matrix * layout.apart + column * layout.leading + row;
  return element(p.places[which] + offset * size_of(layout.type), layout.type,
                 p.operation.compute == COMPUTE_32F_FAST_TF32);
}

static int multiply(void* data) {
  const Product& p = *(const Product*)data;
  // Whatever lies in the workspace is lost.
  memset(p.workspace, 0xff, p.workspace_bytes);
  const Layout& d = p.layouts[2];
  for (int matrix = 0; matrix < d.count; matrix++)
    for (uint64_t column = 0; column < d.columns; column++)
      for (uint64_t row = 0; row < d.rows; row++) {
        float sum = 0;
        // From the last to the first: another order than our kernels'.
        for (uint64_t k = depth(p); k-- > 0;) sum += at(p, 0, matrix, row, k) * at(p, 1, matrix, k, column);
        store(p.places[2] + (matrix * d.apart + column * d.leading + row) * size_of(d.type), d.type, sum);
      }
  if (is_set_to("slow")) {
    const timespec while_{0, 100'000'000};
    nanosleep(&while_, nullptr);
  }
  return SUCCESS;
}

EXPORT cublasLtMatmul(void* handle, const Operation* operation, const float* alpha, char* a, const Layout* a_layout, char* b,
                      const Layout* b_layout, const float* beta, char* c, const Layout* c_layout, char* d,
                      const Layout* d_layout, const Algorithm* algorithm, char* workspace, size_t workspace_bytes,
                      void* stream) {
  Found found;
  if (int result = cublasLtMatmulAlgoCheck(handle, operation, a_layout, b_layout, c_layout, d_layout, algorithm, &found))
    return result;
  if (*alpha != 1 || *beta != 0 || c != d || workspace_bytes < found.workspace) return INVALID_VALUE;
  uint32_t alignment[4];
  memcpy(alignment, &algorithm->words[3], 16);
  if ((uintptr_t)a % alignment[0] || (uintptr_t)b % alignment[1] || (uintptr_t)d % alignment[3] || (uintptr_t)workspace % 256)
    return INVALID_VALUE;
  if (is_set_to("failing")) return EXECUTION_FAILED;
  // Graphs run it again and again, so it stays.
  auto* product = new Product{*operation, {*a_layout, *b_layout, *d_layout}, {a, b, d}, found.workspace, workspace};
  Address starts[4] = {(Address)a, (Address)b, (Address)d, (Address)workspace};
  size_t sizes[4] = {0, 0, 0, found.workspace};
  for (int i = 0; i < 3; i++) {
    const Layout& l = product->layouts[i];
    sizes[i] = ((l.count - 1) * l.apart + (l.columns - 1) * l.leading + l.rows) * size_of(l.type);
  }
  return simulatedEnqueue(stream, "a product of cublasLt", multiply, product, starts, sizes, 4) ? EXECUTION_FAILED : SUCCESS;
}
