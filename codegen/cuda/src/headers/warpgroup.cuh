// Tiles of products that warpgroups compute (wgmma, compute capability 9.0): four warps multiply matrices that lie in shared memory,
// while their threads go on.
//
// A panel has lines of 64 numbers, 128 bytes; the eight pieces of line i change places, piece p with p xor i % 8, so that a column of
// pieces has all banks ("128-byte swizzle"). A line has 64 terms of a row or, where neighbours lie along rows, 64 rows of a term. After
// `LINES` lines, those of all rows or of all terms, the next 64 terms or rows begin.
#pragma once
#include "tile.cuh"

template <class T, bool ALONG_ROWS_, int LINES = 64> struct SwizzledPanel {
  static constexpr bool ALONG_ROWS = ALONG_ROWS_;
  static constexpr int LINE = 64, PIECE = 8;
  static_assert(LINES % 8 == 0, "the eight lines of a pattern belong together");
  T* start;

  DEVICE T* at(int row, int k) const {
    const int across = ALONG_ROWS ? k : row, along = ALONG_ROWS ? row : k, line = along / LINE * LINES + across, number = along % LINE;
    return start + LINE * line + (number / PIECE ^ line % PIECE) * PIECE + number % PIECE;
  }
  // The matrix of 16 terms from k on, of rows from `row` on, a multiple of 64: its address and, in units of 16 bytes, how far it is from
  // 64 rows to the next ones where neighbours lie along rows, and from eight lines to the next ones.
  DEVICE u64 matrix(int row, int k) const {
    constexpr u64 NEXT_ROWS = LINES * LINE * sizeof(T) / 16, NEXT_LINES = 8 * LINE * sizeof(T) / 16, SWIZZLE = 1;
    const int of_rows = ALONG_ROWS ? row * LINES : row * LINE, of_terms = ALONG_ROWS ? k * LINE : k / LINE * LINES * LINE + k % LINE;
    // All matrices of a panel have this number plus a constant. An address has 18 bits, beside those that say which block of a cluster it is of.
    const u32 of_panel = (shared_address(start) & 0x3ffff) / 16 + (u32)(NEXT_ROWS << 16);
    return NEXT_LINES << 32 | SWIZZLE << 62 | (of_panel + (u32)((of_rows + of_terms) * sizeof(T) / 16));
  }
};

// 256 threads are two warpgroups, each with 64 rows and all columns, or with all of 64 rows and half of the columns. The sums of
// a warpgroup lie as those of `TensorTile`: warp w has the rows 16w to 16w + 15.
template <class T, int ROWS_, int COLUMNS_> struct WarpgroupTile {
  typedef T Element;
  typedef float Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64, PADDING = 0, BEHIND = 1, TERMS = 16;
  static constexpr int WARPGROUP = 4 * WARP, DOWN = ROWS / 64, OF_WARPGROUP = DOWN * COLUMNS / (THREADS / WARPGROUP);
  static constexpr int COUNT = OF_WARPGROUP / 2, TOGETHER = 2, ENTRY_PADDING = 8;
  float sums[COUNT];

  DEVICE WarpgroupTile() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = 0.0f;
    keep();
  }
  DEVICE static int warpgroup() { return threadIdx.x / WARPGROUP; }
  DEVICE static int first_row() { return warpgroup() % DOWN * 64; }
  DEVICE static int first_column() { return warpgroup() / DOWN * OF_WARPGROUP; }
  DEVICE static int row(int at) { return first_row() + threadIdx.x % WARPGROUP / WARP * 16 + at % 4 / 2 * 8 + threadIdx.x % WARP / 4; }
  DEVICE static int column(int at) { return first_column() + at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2; }

  // Lets no access of the sums change its place with what is before and after.
  DEVICE void keep() {
    UNROLL
    for (int at = 0; at < COUNT; at++) keep_in_place(sums[at]);
  }

  DEVICE static void publish() { publish_shared(); }

  // Starts the products over DEPTH numbers.
  template <class A, class B> DEVICE void step(const A& a, const B& b) {
    products_begin();
    UNROLL
    for (int k = 0; k < DEPTH; k += TERMS)
      WarpgroupProduct<T, OF_WARPGROUP, A::ALONG_ROWS, B::ALONG_ROWS>::start(sums, a.matrix(first_row(), k),
                                                                              b.matrix(first_column(), k));
    products_commit();
  }
  // Waits for those of the step before.
  DEVICE void wait() { products_wait<BEHIND>(); }

  DEVICE void finish() {
    products_wait<0>();
    keep();
  }
};

template <class T, int TILE_ROWS, int TILE_COLUMNS, int ROWS, class Operand>
struct PanelOf<WarpgroupTile<T, TILE_ROWS, TILE_COLUMNS>, ROWS, Operand> {
  typedef SwizzledPanel<T, Operand::ALONG_ROWS> Type;
  static constexpr bool IS_TURNED = false;
  static constexpr int PIECE = Type::PIECE, PER_LINE = Type::LINE / PIECE;

  DEVICE static Type at(T* start) { return Type{start}; }
  // Eight neighbouring threads have the pieces of a line.
  DEVICE static int piece_row(int at) { return Operand::ALONG_ROWS ? at % (ROWS / PIECE) * PIECE : at / PER_LINE; }
  DEVICE static int piece_term(int at) { return Operand::ALONG_ROWS ? at / (ROWS / PIECE) : at % PER_LINE * PIECE; }
};
