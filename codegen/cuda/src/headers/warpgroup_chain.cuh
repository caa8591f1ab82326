// Tiles of chains that a warpgroup computes (wgmma, compute capability 9.0): as those of `chain.cuh`, with swizzled panels. The rows of
// first products lie in shared memory, those of second ones are sums that stay in registers.
#pragma once
#include "chain.cuh"
#include "warpgroup.cuh"

// Four warps, which have all columns of 64·DOWN rows: of each 64, which are a part, warp w has 16w to 16w + 15.
template <class T, int DOWN, int COLUMNS_> struct WarpgroupStrip {
  typedef T Element;
  static constexpr int BLOCK = 4 * WARP, ROWS = 64 * DOWN, COLUMNS = COLUMNS_;
  static constexpr int ALONG = COLUMNS / 8, SLOTS = 2 * DOWN, PARTS = DOWN, OF_PART = 4 * ALONG, COUNT = DOWN * OF_PART, TERMS = 16;
  float sums[COUNT];

  DEVICE WarpgroupStrip() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = 0.0f;
  }
  DEVICE static int member() { return threadIdx.x % 4; }
  DEVICE static constexpr int slot(int at) { return at / OF_PART * 2 + at % 4 / 2; }
  DEVICE static int slot_row(int slot) { return slot / 2 * 64 + threadIdx.x / WARP * 16 + slot % 2 * 8 + threadIdx.x % WARP / 4; }
  DEVICE static int row(int at) { return slot_row(slot(at)); }
  DEVICE static int column(int at) { return at / 4 % ALONG * 8 + 2 * member() + at % 2; }
  DEVICE static bool owns_rows() { return member() == 0; }
  template <class Op, class V> DEVICE static void combine(int part, V* of_slots) { combine_lanes<Op, WarpgroupStrip>(part, of_slots); }
  DEVICE static void publish() { publish_shared(); }
  DEVICE static void begin() { products_begin(); }
  DEVICE static void commit() { products_commit(); }
  template <int GROUPS> DEVICE static void wait() { products_wait<GROUPS>(); }
  DEVICE static u32 pack(float x, float y) { return TensorCore<T>::pack(x, y); }

  // The panel at `start`, which lies as the operand does.
  template <int ROWS, int DEPTH, class Operand> DEVICE static auto panel(Element* start, const Operand&) {
    constexpr bool ALONG_ROWS = Operand::ALONG_ROWS;
    return SwizzledPanel<T, ALONG_ROWS, ALONG_ROWS ? DEPTH : ROWS>{start};
  }

  // Starts sums of the products of `DEPTH` terms of a part's rows of a panel and those of another one.
  template <int DEPTH, class A, class P> DEVICE void multiply_panels(int part, const A& of_rows, const P& panel) {
    typedef WarpgroupProduct<T, COLUMNS, A::ALONG_ROWS, P::ALONG_ROWS> Product;
    Product::template start<false>(sums + part * OF_PART, of_rows.matrix(64 * part, 0), panel.matrix(0, 0));
    UNROLL
    for (int k = TERMS; k < DEPTH; k += TERMS)
      Product::start(sums + part * OF_PART, of_rows.matrix(64 * part, k), panel.matrix(0, k));
  }

  // Starts adding the products of `DEPTH` terms of a part's rows, whose fragments are in registers, and those of a panel.
  template <int DEPTH, class P> DEVICE void multiply(int part, const u32* fragments, const P& panel) {
    UNROLL
    for (int k = 0; k < DEPTH; k += TERMS)
      WarpgroupProduct<T, COLUMNS, false, P::ALONG_ROWS>::start(sums + part * OF_PART, fragments + part * DEPTH / 4 + k / 4,
                                                                panel.matrix(0, k));
  }

  // Lets no word of fragments change its place with a wait before.
  template <int WORDS> DEVICE static void keep_words(u32 (&words)[WORDS]) {
    UNROLL
    for (int i = 0; i < WORDS; i++) keep_in_place(words[i]);
  }
  // Lets no access of a part's sums change its place with a wait before.
  DEVICE void keep(int part) {
    UNROLL
    for (int at = part * OF_PART; at < (part + 1) * OF_PART; at++) keep_in_place(sums[at]);
  }
};
