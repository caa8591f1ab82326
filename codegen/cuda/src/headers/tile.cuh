// Tiles of products: C[row, column] = Σ_k A[row, k] · B[column, k], with sums in registers and panels of the operands in
// shared memory.
//
// A tile is computed by THREADS threads. Its COUNT sums of a thread have a row and a column each; rows repeat in SLOTS
// slots. A panel holds DEPTH numbers of each row, STRIDE apart.
#pragma once
#include "reduce.cuh"

// A tile whose sums are computed by ordinary arithmetic: thread (y, x) of 16×16 has the rows y + 16i and columns x + 16j.
template <class T, int ROWS_, int COLUMNS_> struct PlainTile {
  typedef T Element;
  typedef T Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64 / sizeof(T), STRIDE = DEPTH + 16 / sizeof(T);
  static constexpr int SLOTS = ROWS / 16, PER_SLOT = COLUMNS / 16, COUNT = SLOTS * PER_SLOT;
  T sums[COUNT];

  DEVICE PlainTile() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = T(0);
  }
  DEVICE static constexpr int slot(int at) { return at / PER_SLOT; }
  DEVICE static int slot_row(int slot) { return threadIdx.x / 16 + 16 * slot; }
  DEVICE static int row(int at) { return slot_row(slot(at)); }
  DEVICE static int column(int at) { return threadIdx.x % 16 + 16 * (at % PER_SLOT); }
  // Whether this thread speaks for its rows.
  DEVICE static bool owns_rows() { return threadIdx.x % 16 == 0; }

  // Adds the products over DEPTH numbers.
  DEVICE void step(const T* a, int a_stride, const T* b) {
    constexpr int TOGETHER = 16 / sizeof(T);
    UNROLL
    for (int k = 0; k < DEPTH; k += TOGETHER) {
      T x[SLOTS][TOGETHER], y[PER_SLOT][TOGETHER];
      UNROLL
      for (int i = 0; i < SLOTS; i++)
        UNROLL
        for (int j = 0; j < TOGETHER; j++) x[i][j] = a[slot_row(i) * a_stride + k + j];
      UNROLL
      for (int i = 0; i < PER_SLOT; i++)
        UNROLL
        for (int j = 0; j < TOGETHER; j++) y[i][j] = b[column(i) * STRIDE + k + j];
      UNROLL
      for (int at = 0; at < COUNT; at++)
        UNROLL
        for (int j = 0; j < TOGETHER; j++) sums[at] += x[slot(at)][j] * y[at % PER_SLOT][j];
    }
  }

  // Combines one number of each thread and slot along the rows; every thread gets those of its rows.
  template <class Op, class V> DEVICE static void combine(V* of_slots) {
    UNROLL
    for (int slot = 0; slot < SLOTS; slot++)
      UNROLL
      for (int bits = 8; bits > 0; bits /= 2)
        of_slots[slot] = Op::combine(of_slots[slot], shuffle_xor(of_slots[slot], bits));
  }
};

// How tensor cores multiply a type.
template <class T> struct TensorCore;
template <> struct TensorCore<bf16> {
  typedef bf16 Element;
  DEVICE static void multiply(float* d, const u32* a, const u32* b) { mma_bf16(d, a, b); }
  DEVICE static u32 word(u32 bits) { return bits; }
};
template <> struct TensorCore<f16> {
  typedef f16 Element;
  DEVICE static void multiply(float* d, const u32* a, const u32* b) { mma_f16(d, a, b); }
  DEVICE static u32 word(u32 bits) { return bits; }
};
// f32 rounded to 10 bits of fraction.
struct tf32 {};
template <> struct TensorCore<tf32> {
  typedef float Element;
  DEVICE static void multiply(float* d, const u32* a, const u32* b) { mma_tf32(d, a, b); }
  // To nearest, ties away from zero.
  DEVICE static u32 word(u32 bits) {
    return (bits & POSITIVE_INFINITY) == POSITIVE_INFINITY ? bits : (bits + 0x1000u) & 0xffffe000u;
  }
};

// A tile computed by tensor cores: 8 warps as 4×2, each with blocks of 16×8 sums.
template <class Core, int ROWS_, int COLUMNS_> struct TensorTile {
  typedef typename TensorCore<Core>::Element Element;
  typedef float Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64 / sizeof(Element), STRIDE = DEPTH + 16 / sizeof(Element);
  static constexpr int DOWN = ROWS / 64, ALONG = COLUMNS / 16, SLOTS = 2 * DOWN, COUNT = 4 * DOWN * ALONG;
  // Numbers in a word, and words of a row that one instruction multiplies.
  static constexpr int PER_WORD = 4 / sizeof(Element), WORDS = 8;
  float sums[COUNT];

  DEVICE TensorTile() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = 0.0f;
  }
  DEVICE static int group() { return threadIdx.x % WARP / 4; }
  DEVICE static int member() { return threadIdx.x % 4; }
  DEVICE static int first_row() { return threadIdx.x / WARP / 2 * 16 * DOWN; }
  DEVICE static int first_column() { return threadIdx.x / WARP % 2 * 8 * ALONG; }
  DEVICE static constexpr int slot(int at) { return at / (4 * ALONG) * 2 + at % 4 / 2; }
  DEVICE static int slot_row(int slot) { return first_row() + slot / 2 * 16 + slot % 2 * 8 + group(); }
  DEVICE static int row(int at) { return slot_row(slot(at)); }
  DEVICE static int column(int at) { return first_column() + at / 4 % ALONG * 8 + 2 * member() + at % 2; }
  DEVICE static bool owns_rows() { return threadIdx.x / WARP % 2 == 0 && member() == 0; }

  DEVICE static u32 word(const Element* row, int at) { return TensorCore<Core>::word(((const u32*)row)[at]); }

  DEVICE void step(const Element* a, int a_stride, const Element* b) {
    UNROLL
    for (int k = 0; k < DEPTH; k += WORDS * PER_WORD) {
      u32 x[DOWN][4], y[ALONG][2];
      UNROLL
      for (int i = 0; i < DOWN; i++)
        UNROLL
        for (int part = 0; part < 4; part++)
          x[i][part] = word(a + slot_row(2 * i + part % 2) * a_stride + k, member() + part / 2 * 4);
      UNROLL
      for (int j = 0; j < ALONG; j++)
        UNROLL
        for (int part = 0; part < 2; part++)
          y[j][part] = word(b + (first_column() + 8 * j + group()) * STRIDE + k, member() + part * 4);
      UNROLL
      for (int i = 0; i < DOWN; i++)
        UNROLL
        for (int j = 0; j < ALONG; j++) TensorCore<Core>::multiply(sums + 4 * (i * ALONG + j), x[i], y[j]);
    }
  }

  template <class Op, class V> DEVICE static void combine(V* of_slots) {
    SHARED(V, of_halves, 2 * ROWS);
    V* half = of_halves + threadIdx.x / WARP % 2 * ROWS;
    UNROLL
    for (int slot = 0; slot < SLOTS; slot++) {
      UNROLL
      for (int bits = 2; bits > 0; bits /= 2)
        of_slots[slot] = Op::combine(of_slots[slot], shuffle_xor(of_slots[slot], bits));
      if (member() == 0) half[slot_row(slot)] = of_slots[slot];
    }
    __syncthreads();
    UNROLL
    for (int slot = 0; slot < SLOTS; slot++)
      of_slots[slot] = Op::combine(of_halves[slot_row(slot)], of_halves[ROWS + slot_row(slot)]);
    __syncthreads();
  }
};

// An operand whose numbers are computed: value(row, k). Neighbouring threads take neighbours along k, or along rows.
template <bool ALONG_ROWS_, class Value> struct Computed {
  static constexpr bool ALONG_ROWS = ALONG_ROWS_, IS_COPIED = false;
  Value value;
};
template <bool ALONG_ROWS, class Value> DEVICE Computed<ALONG_ROWS, Value> computed(Value value) { return {value}; }

// An operand that lies in memory, 16 aligned bytes at a time along k: place(row, k) is the address.
template <class Place> struct Copied {
  static constexpr bool ALONG_ROWS = false, IS_COPIED = true;
  Place place;
};
template <class Place> DEVICE Copied<Place> copied(Place place) { return {place}; }

// How many of `COUNT` things each of the block's threads has.
template <int COUNT> constexpr int share() { return (COUNT + THREADS - 1) / THREADS; }

// Calls `act(i, at)` for this thread's things, the i-th of which is number `at` of `COUNT`. The loop has a constant length, so
// that all of its loads are under way at once.
template <int COUNT, class Act> DEVICE void for_each_share(Act act) {
  UNROLL
  for (int i = 0; i < share<COUNT>(); i++) {
    const int at = threadIdx.x + i * THREADS;
    if (COUNT % THREADS == 0 || at < COUNT) act(i, at);
  }
}

// Fills a panel with `ROWS` rows from `first` on, zeros beyond `rows` and `depth`, and starts its copies.
template <class Tile, int ROWS, class Operand>
DEVICE void fill(typename Tile::Element* panel, int first, int rows, int k0, int depth, const Operand& operand) {
  typedef typename Tile::Element Element;
  constexpr int DEPTH = Tile::DEPTH;
  if constexpr (Operand::IS_COPIED) {
    constexpr int TOGETHER = 16 / sizeof(Element), PIECES = DEPTH / TOGETHER;
    for_each_share<ROWS * PIECES>([&](int, int at) {
      const int row = at / PIECES, k = at % PIECES * TOGETHER;
      const bool is_there = first + row < rows && k0 + k < depth;
      copy_async(panel + row * Tile::STRIDE + k, is_there ? operand.place(first + row, k0 + k) : operand.place(first, k0),
                 is_there);
    });
  } else {
    const auto row = [](int at) { return Operand::ALONG_ROWS ? at % ROWS : at / DEPTH; };
    const auto term = [](int at) { return Operand::ALONG_ROWS ? at / ROWS : at % DEPTH; };
    Element values[share<ROWS * DEPTH>()];
    for_each_share<ROWS * DEPTH>([&](int i, int at) {
      const bool is_there = first + row(at) < rows && k0 + term(at) < depth;
      values[i] = is_there ? operand.value(first + row(at), k0 + term(at)) : Element{};
    });
    for_each_share<ROWS * DEPTH>([&](int i, int at) { panel[row(at) * Tile::STRIDE + term(at)] = values[i]; });
  }
}

// Numbers of shared memory that the panels of a tile take: two of each operand, one filled while the other is read.
template <class Tile> constexpr int panel_count() { return 2 * (Tile::ROWS + Tile::COLUMNS) * Tile::STRIDE; }

// Adds a product to a tile: rows from `row` of `rows`, columns from `column` of `columns`, sums over `depth`.
template <class Tile, class A, class B>
DEVICE void multiply(Tile& tile, typename Tile::Element* panels, int row, int rows, const A& a, int column, int columns,
                     const B& b, int depth) {
  constexpr int SIZE = panel_count<Tile>() / 2;
  const auto fill_both = [&](int k) {
    typename Tile::Element* panel = panels + k / Tile::DEPTH % 2 * SIZE;
    fill<Tile, Tile::ROWS>(panel, row, rows, k, depth, a);
    fill<Tile, Tile::COLUMNS>(panel + Tile::ROWS * Tile::STRIDE, column, columns, k, depth, b);
    copy_commit();
  };
  if (depth > 0) fill_both(0);
  for (int k = 0; k < depth; k += Tile::DEPTH) {
    copy_wait<0>();
    __syncthreads();
    if (k + Tile::DEPTH < depth) fill_both(k + Tile::DEPTH);
    const typename Tile::Element* panel = panels + k / Tile::DEPTH % 2 * SIZE;
    tile.step(panel, Tile::STRIDE, panel + Tile::ROWS * Tile::STRIDE);
  }
  __syncthreads();
}

// Adds to a tile the product of values in shared memory, `stride` apart, with an operand: sums over the values' `WIDTH`
// columns, which are those from `first` on. The values may have been written just before.
template <int WIDTH, class Tile, class B>
DEVICE void multiply_values(Tile& tile, const typename Tile::Element* values, int stride, typename Tile::Element* panel,
                            int columns, const B& b, int first, int depth) {
  for (int k = 0; k < WIDTH; k += Tile::DEPTH) {
    fill<Tile, Tile::COLUMNS>(panel, 0, columns, first + k, depth, b);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    tile.step(values + k, stride, panel);
    __syncthreads();
  }
}
