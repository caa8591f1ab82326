// Tiles of products: C[row, column] = Σ_k A[row, k] · B[column, k], with sums in registers and panels of the operands in
// shared memory.
//
// A tile is computed by THREADS threads. Its COUNT sums of a thread have a row and a column each; rows repeat in SLOTS
// slots. A panel holds DEPTH numbers of each row, and PADDING in addition, as its operand has them in memory: with neighbours along the
// sum, or along rows. Products of so many steps as BEHIND says may be under way when the next step begins.
#pragma once
#include "reduce.cuh"

// Numbers in a piece of 16 bytes.
template <class T> constexpr int piece() { return 16 / sizeof(T); }

// Numbers in shared memory: that of a row and a term of the sum is STRIDE·row + term, or STRIDE·term + row if neighbours lie along
// rows. The stride keeps lines aligned to 16 bytes, and eight lines of 16 bytes of a fragment in different banks: it is an odd number
// of pieces, or two more than a multiple of eight where a fragment's words are read one by one.
template <class T, int STRIDE_, bool ALONG_ROWS_> struct Panel {
  static constexpr int STRIDE = STRIDE_;
  static constexpr bool ALONG_ROWS = ALONG_ROWS_;
  T* start;
  DEVICE T* at(int row, int k) const { return start + (ALONG_ROWS ? STRIDE * k + row : STRIDE * row + k); }
};

// A tile whose sums are computed by ordinary arithmetic: thread (y, x) of 16×16 has the rows y + 16i and columns x + 16j.
template <class T, int ROWS_, int COLUMNS_> struct PlainTile {
  typedef T Element;
  typedef T Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64 / sizeof(T), PADDING = piece<T>(), BEHIND = 0;
  static constexpr int SLOTS = ROWS / 16, PER_SLOT = COLUMNS / 16, COUNT = SLOTS * PER_SLOT;
  // Sums that are neighbours, and what lets those of a warp be written to different banks (`Entries`).
  static constexpr int TOGETHER = 1, ENTRY_PADDING = 16;
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
  // Nothing goes on while the threads do.
  DEVICE static void publish() {}
  DEVICE void wait() {}
  DEVICE void finish() {}

  // Adds the products over DEPTH numbers.
  template <class A, class B> DEVICE void step(const A& a, const B& b) {
    constexpr int TERMS = piece<T>();
    UNROLL
    for (int k = 0; k < DEPTH; k += TERMS) {
      T x[SLOTS][TERMS], y[PER_SLOT][TERMS];
      UNROLL
      for (int i = 0; i < SLOTS; i++)
        UNROLL
        for (int j = 0; j < TERMS; j++) x[i][j] = *a.at(slot_row(i), k + j);
      UNROLL
      for (int i = 0; i < PER_SLOT; i++)
        UNROLL
        for (int j = 0; j < TERMS; j++) y[i][j] = *b.at(column(i), k + j);
      UNROLL
      for (int at = 0; at < COUNT; at++)
        UNROLL
        for (int j = 0; j < TERMS; j++) sums[at] += x[slot(at)][j] * y[at % PER_SLOT][j];
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
  DEVICE static u32 pack(float x, float y) { return bf16_pair(x, y); }
  DEVICE static u32 word(u32 bits) { return bits; }
};
template <> struct TensorCore<f16> {
  typedef f16 Element;
  DEVICE static void multiply(float* d, const u32* a, const u32* b) { mma_f16(d, a, b); }
  DEVICE static u32 pack(float x, float y) { return half_pair(x, y); }
  DEVICE static u32 word(u32 bits) { return bits; }
};
// f32 rounded to 10 bits of fraction.
struct tf32 {};
template <> struct TensorCore<tf32> {
  typedef float Element;
  DEVICE static void multiply(float* d, const u32* a, const u32* b) { mma_tf32(d, a, b); }
  DEVICE static u32 word(u32 bits) { return tf32_bits(float_of_bits(bits)); }
};

// A tile computed by tensor cores: 8 warps as 4×2, each with blocks of 16×8 sums.
template <class Core, int ROWS_, int COLUMNS_> struct TensorTile {
  typedef typename TensorCore<Core>::Element Element;
  typedef float Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64 / sizeof(Element), PADDING = piece<Element>(), BEHIND = 0;
  static constexpr int DOWN = ROWS / 64, ALONG = COLUMNS / 16, SLOTS = 2 * DOWN, COUNT = 4 * DOWN * ALONG;
  static constexpr int TOGETHER = 2, ENTRY_PADDING = 8;
  // Numbers of a row that one instruction multiplies.
  static constexpr int TERMS = 32 / sizeof(Element);
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
  DEVICE static void publish() {}
  DEVICE void wait() {}
  DEVICE void finish() {}

  // The fragments of 16 rows from `row` on, of TERMS terms from k on, in the order that an instruction wants: of the first operand, rows
  // g and g + 8 with the first half of the terms, then with the second half; of the second one, all terms of row g, then of row g + 8.
  template <bool IS_SECOND, class P> DEVICE static void load(u32* words, const P& panel, int row, int k) {
    constexpr int HALF = TERMS / 2;
    const auto first_row = [&](int matrix) { return row + (IS_SECOND ? matrix / 2 : matrix % 2) * 8; };
    const auto first_term = [&](int matrix) { return k + (IS_SECOND ? matrix % 2 : matrix / 2) * HALF; };
    if constexpr (P::ALONG_ROWS && sizeof(Element) == 4) {
      UNROLL
      for (int i = 0; i < 4; i++)
        words[i] = *(const u32*)panel.at(first_row(i) + group(), first_term(i) + member());
    } else {
      // Each lane has the address of one line of a matrix of 8×8 numbers of 16 bits; the four matrices are those of the words.
      const int line = threadIdx.x % 8, matrix = threadIdx.x % WARP / 8;
      const int rows = P::ALONG_ROWS ? 0 : line, terms = P::ALONG_ROWS ? line : 0;
      load_matrices<P::ALONG_ROWS>(words, panel.at(first_row(matrix) + rows, first_term(matrix) + terms));
    }
    UNROLL
    for (int i = 0; i < 4; i++) words[i] = TensorCore<Core>::word(words[i]);
  }

  template <class A, class B> DEVICE void step(const A& a, const B& b) {
    UNROLL
    for (int k = 0; k < DEPTH; k += TERMS) {
      u32 x[DOWN][4], y[ALONG / 2][4];
      UNROLL
      for (int i = 0; i < DOWN; i++) load<false>(x[i], a, first_row() + 16 * i, k);
      UNROLL
      for (int j = 0; j < ALONG / 2; j++) load<true>(y[j], b, first_column() + 16 * j, k);
      UNROLL
      for (int i = 0; i < DOWN; i++)
        UNROLL
        for (int j = 0; j < ALONG; j++)
          TensorCore<Core>::multiply(sums + 4 * (i * ALONG + j), x[i], y[j / 2] + j % 2 * 2);
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

// The sums of a tile in shared memory, row after row, from where its threads take them in runs of LENGTH neighbours: warps then read and write
// whole lines of memory, however a tile lays out its sums. All threads of the block must make it, and nobody may read the panels any more.
template <class Tile, int LENGTH> struct Entries {
  typedef typename Tile::Accumulator Sum;
  static constexpr int STRIDE = Tile::COLUMNS + Tile::ENTRY_PADDING, PER_ROW = Tile::COLUMNS / LENGTH;
  static constexpr int RUNS = Tile::ROWS * PER_ROW / THREADS;
  static_assert(Tile::ROWS * PER_ROW % THREADS == 0);
  const Sum* start;

  DEVICE Entries(const Tile& tile, Sum* memory) : start(memory) {
    UNROLL
    for (int at = 0; at < Tile::COUNT; at += Tile::TOGETHER) {
      struct alignas(sizeof(Sum) * Tile::TOGETHER) Neighbours {
        Sum sums[Tile::TOGETHER];
      } neighbours;
      UNROLL
      for (int i = 0; i < Tile::TOGETHER; i++) neighbours.sums[i] = tile.sums[at + i];
      *(Neighbours*)(memory + STRIDE * tile.row(at) + tile.column(at)) = neighbours;
    }
    __syncthreads();
  }
  // The row and the first column of this thread's runs, and where its sums are.
  DEVICE static int row(int run) { return (threadIdx.x + run * THREADS) / PER_ROW; }
  DEVICE static int column(int run) { return (threadIdx.x + run * THREADS) % PER_ROW * LENGTH; }
  DEVICE const Sum* at(int run) const { return start + STRIDE * row(run) + column(run); }
};

// Neighbours that a thread has one after the other, as number `at` of LENGTH, are one access of memory, or one for each 16 bytes; some are
// alone.
template <class T, int LENGTH> struct Run {
  struct alignas(LENGTH * sizeof(T) < 16 ? LENGTH * sizeof(T) : 16) Numbers {
    T at[LENGTH];
  };
  Numbers numbers;

  DEVICE T get(int at, bool is_alone, const T* place) {
    if (is_alone) return *place;
    if (at == 0) numbers = *(const Numbers*)place;
    return numbers.at[at];
  }
  DEVICE void put(int at, bool is_alone, T* place, T value) {
    if (is_alone) {
      *place = value;
      return;
    }
    numbers.at[at] = value;
    if (at == LENGTH - 1) *(Numbers*)(place - at) = numbers;
  }
};

// An operand whose numbers are computed: value(row, k). Neighbouring threads take neighbours along k, or along rows.
template <bool ALONG_ROWS_, class Value> struct Computed {
  static constexpr bool ALONG_ROWS = ALONG_ROWS_, IS_COPIED = false;
  Value value;
};
template <bool ALONG_ROWS, class Value> DEVICE Computed<ALONG_ROWS, Value> computed(Value value) { return {value}; }

// An operand that lies in memory, in aligned pieces of 16 bytes along k, or along rows: place(row, k) is the address. Of the last
// piece, some numbers may not be there. Rows and terms of a panel are so many numbers apart; 0 if these differ.
template <bool ALONG_ROWS_, int ROW_STRIDE_, int TERM_STRIDE_, class Place> struct Copied {
  static constexpr bool ALONG_ROWS = ALONG_ROWS_, IS_COPIED = true, IS_EVEN = ROW_STRIDE_ != 0 && TERM_STRIDE_ != 0;
  static constexpr i64 ROW_STRIDE = ROW_STRIDE_, TERM_STRIDE = TERM_STRIDE_;
  Place place;
};
template <bool ALONG_ROWS, int ROW_STRIDE, int TERM_STRIDE, class Place>
DEVICE Copied<ALONG_ROWS, ROW_STRIDE, TERM_STRIDE, Place> copied(Place place) {
  return {place};
}

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

// Numbers of shared memory that a panel of `ROWS` rows takes, however it lies.
template <class Tile, int ROWS> constexpr int panel_size() { return ROWS * (Tile::DEPTH + Tile::PADDING); }

// A panel of `ROWS` rows, which lies as its operand does.
template <class Tile, int ROWS, class Operand> struct PanelOf {
  typedef typename Tile::Element Element;
  static constexpr int PIECE = piece<Element>(), PADDED_ROWS = ROWS + (PIECE < 8 ? 8 : PIECE);
  static_assert(Tile::DEPTH * PADDED_ROWS <= panel_size<Tile, ROWS>());
  typedef Panel<Element, Operand::ALONG_ROWS ? PADDED_ROWS : Tile::DEPTH + PIECE, Operand::ALONG_ROWS> Type;

  DEVICE static Type at(Element* start) { return Type{start}; }
  // The row and the term of the `at`-th piece. Eight neighbouring threads have pieces in different banks: rows r and r + 4.
  DEVICE static int piece_row(int at) {
    return Operand::ALONG_ROWS ? at % (ROWS / PIECE) * PIECE : at / 32 * 8 + at % 32 / 8 + at / 4 % 2 * 4;
  }
  DEVICE static int piece_term(int at) { return Operand::ALONG_ROWS ? at / (ROWS / PIECE) : at % 4 * PIECE; }
};

// Whether a thread's pieces are the same distance apart in memory, and in the panel, as those of all other threads.
template <class Tile, int ROWS, class Operand> constexpr bool fills_evenly() {
  if constexpr (Operand::IS_COPIED) return Operand::IS_EVEN && ROWS * Tile::DEPTH / PanelOf<Tile, ROWS, Operand>::PIECE % THREADS == 0;
  return false;
}

// Fills a panel with `ROWS` rows from `first` on, zeros beyond `rows` and `depth`, and starts its copies.
template <class Tile, int ROWS, class Operand>
DEVICE void fill(typename Tile::Element* start, int first, int rows, int k0, int depth, const Operand& operand) {
  typedef typename Tile::Element Element;
  typedef PanelOf<Tile, ROWS, Operand> Of;
  constexpr int DEPTH = Tile::DEPTH, PIECE = Of::PIECE;
  const auto panel = Of::at(start);
  if constexpr (fills_evenly<Tile, ROWS, Operand>()) {
    // All of the panel is there: two addresses, beside which all others are constants.
    if (first + ROWS <= rows && k0 + DEPTH <= depth) {
      const int row = Of::piece_row(threadIdx.x), term = Of::piece_term(threadIdx.x);
      const Element* from = operand.place(first + row, k0 + term);
      Element* to = panel.at(row, term);
      UNROLL
      for (int at = 0; at < ROWS * DEPTH / PIECE; at += THREADS) {
        const int down = Of::piece_row(at), along = Of::piece_term(at);
        copy_async(to + (panel.at(down, along) - start), from + Operand::ROW_STRIDE * down + Operand::TERM_STRIDE * along);
      }
      return;
    }
  }
  if constexpr (Operand::IS_COPIED) {
    for_each_share<ROWS * DEPTH / PIECE>([&](int, int at) {
      const int row = Of::piece_row(at), term = Of::piece_term(at);
      const bool is_there = first + row < rows && k0 + term < depth;
      const int left = Operand::ALONG_ROWS ? rows - first - row : depth - k0 - term, numbers = left < PIECE ? left : PIECE;
      copy_async(panel.at(row, term), operand.place(first + row, k0 + term), is_there ? numbers * (int)sizeof(Element) : 0);
    });
  } else {
    const auto row = [](int at) { return Operand::ALONG_ROWS ? at % ROWS : at / DEPTH; };
    const auto term = [](int at) { return Operand::ALONG_ROWS ? at / ROWS : at % DEPTH; };
    // 16 bytes of a thread at once: more would take too many registers.
    constexpr int ALL = ROWS * DEPTH, MOST = PIECE * THREADS, SOME = ALL / ((ALL + MOST - 1) / MOST);
    ROLLED
    for (int done = 0; done < ALL; done += SOME) {
      Element values[share<SOME>()];
      for_each_share<SOME>([&](int i, int at) {
        const int line = first + row(done + at), number = k0 + term(done + at);
        // Without a branch around them, no load waits for another. Of no rows, none is loaded.
        const Element value = rows > 0 ? operand.value(smaller(line, rows - 1), smaller(number, depth - 1)) : Element{};
        values[i] = line < rows && number < depth ? value : Element{};
      });
      for_each_share<SOME>([&](int i, int at) { *panel.at(row(done + at), term(done + at)) = values[i]; });
    }
  }
}

// Numbers of shared memory that the panels of a tile take: in each stage, one of each operand.
template <class Tile> constexpr int panel_count(int stages) {
  return stages * (panel_size<Tile, Tile::ROWS>() + panel_size<Tile, Tile::COLUMNS>());
}

// Adds a product to a tile: rows from `row` of `rows`, columns from `column` of `columns`, the terms `begin` to `end` of sums. While
// the panels of one stage are read, or of two where products go on by themselves, those of the others are filled.
template <int STAGES, class Tile, class A, class B>
DEVICE void multiply(Tile& tile, typename Tile::Element* panels, int row, int rows, const A& a, int column, int columns,
                     const B& b, int begin, int end) {
  constexpr int SIZE = panel_count<Tile>(1), OF_A = panel_size<Tile, Tile::ROWS>(), AHEAD = STAGES - 1 - Tile::BEHIND;
  // Every step has a group of copies, if only an empty one.
  const auto fill_both = [&](int step) {
    const int k = begin + step * Tile::DEPTH;
    if (k < end) {
      typename Tile::Element* start = panels + step % STAGES * SIZE;
      fill<Tile, Tile::ROWS>(start, row, rows, k, end, a);
      fill<Tile, Tile::COLUMNS>(start + OF_A, column, columns, k, end, b);
    }
    copy_commit();
  };
  UNROLL
  for (int step = 0; step < AHEAD; step++) fill_both(step);
  const int steps = (end - begin + Tile::DEPTH - 1) / Tile::DEPTH;
  for (int step = 0; step < steps; step++) {
    copy_wait<AHEAD - 1>();
    Tile::publish();
    __syncthreads();
    typename Tile::Element* start = panels + step % STAGES * SIZE;
    const auto of_a = PanelOf<Tile, Tile::ROWS, A>::at(start);
    const auto of_b = PanelOf<Tile, Tile::COLUMNS, B>::at(start + OF_A);
    // Products that go on by themselves are started before the threads have something else to do.
    if constexpr (Tile::BEHIND > 0) tile.step(of_a, of_b);
    fill_both(step + AHEAD);
    if constexpr (Tile::BEHIND == 0) tile.step(of_a, of_b);
    tile.wait();
  }
  tile.finish();
  __syncthreads();
}

// Adds to a tile the product of values in shared memory, rows of them `STRIDE` apart, with an operand: sums over the values'
// `WIDTH` columns, which are those from `first` on. The values may have been written just before.
template <int WIDTH, int STRIDE, class Tile, class B>
DEVICE void multiply_values(Tile& tile, typename Tile::Element* values, typename Tile::Element* start, int columns, const B& b,
                            int first, int depth) {
  for (int k = 0; k < WIDTH; k += Tile::DEPTH) {
    fill<Tile, Tile::COLUMNS>(start, 0, columns, first + k, depth, b);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    tile.step(Panel<typename Tile::Element, STRIDE, false>{values + k}, PanelOf<Tile, Tile::COLUMNS, B>::at(start));
    __syncthreads();
  }
}
