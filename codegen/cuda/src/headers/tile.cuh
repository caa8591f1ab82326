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
//
// In a turned panel, one along rows whose operand lies along the sum, numbers are copied one by one. Of the terms 8 to 15, rows change places
// by twos, so that 16 terms of two rows lie in different banks.
template <class T, int STRIDE_, bool ALONG_ROWS_, bool IS_TURNED = false> struct Panel {
  static constexpr int STRIDE = STRIDE_;
  static constexpr bool ALONG_ROWS = ALONG_ROWS_;
  T* start;
  // What changes in the number of a row.
  DEVICE static constexpr int swap(int k) { return IS_TURNED ? k / 8 % 2 * 2 : 0; }
  DEVICE T* at(int row, int k) const { return ALONG_ROWS ? line(k) + (row ^ swap(k)) : start + (STRIDE * row + k); }
  // Where the rows of a term begin.
  DEVICE T* line(int k) const { return start + STRIDE * k; }
};

// How many neighbours a thread has together of `COUNT` rows or columns: as many as one access of shared memory takes, or two.
template <class T> constexpr int together(int count) { return count % piece<T>() == 0 ? piece<T>() : 2; }

// Loads neighbours at an aligned place by one access.
template <int COUNT, class T> DEVICE void load_together(T* numbers, const T* place) {
  struct alignas(COUNT * sizeof(T)) Together {
    T at[COUNT];
  };
  const Together together = *(const Together*)place;
  UNROLL
  for (int i = 0; i < COUNT; i++) numbers[i] = together.at[i];
}

// As load_together, neighbouring rows of a term in a panel.
template <int COUNT, class T, class P> DEVICE void load_rows(T* numbers, const P& panel, int row, int k) {
  constexpr bool HAS_BOTH = COUNT > 2;
  T loaded[COUNT];
  load_together<COUNT>(loaded, HAS_BOTH ? panel.line(k) + row : panel.at(row, k));
  const int swap = HAS_BOTH ? panel.swap(k) : 0;
  UNROLL
  for (int i = 0; i < COUNT; i++) numbers[i] = loaded[i ^ swap];
}

// A tile whose sums are computed by ordinary arithmetic: thread (y, x) of 16×16 has neighbouring rows from DOWN·y on, 16·DOWN apart, and
// columns likewise. Its panels lie along rows, so that the numbers of one term are few accesses of shared memory; lanes 2x and 2x + 1 have
// different rows, so that two quarters of a warp are served as one.
template <class T, int ROWS_, int COLUMNS_> struct PlainTile {
  typedef T Element;
  typedef T Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DEPTH = 64 / sizeof(T), PADDING = piece<T>(), BEHIND = 0;
  static constexpr bool ALONG_ROWS = true;
  static constexpr int SLOTS = ROWS / 16, PER_SLOT = COLUMNS / 16, COUNT = SLOTS * PER_SLOT;
  static constexpr int COLUMN_SLOTS = PER_SLOT, PARTS = 1, OF_PART = COUNT;
  static constexpr int DOWN = together<T>(SLOTS), ALONG = together<T>(PER_SLOT);
  // Sums that are neighbours, and what lets those of a warp be written to different banks (`Entries`).
  static constexpr int TOGETHER = ALONG, ENTRY_PADDING = PADDING;
  T sums[COUNT];

  DEVICE PlainTile() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = T(0);
  }
  DEVICE static int y() { return (int)threadIdx.x / WARP * 2 + (int)threadIdx.x % 2; }
  DEVICE static int x() { return (int)threadIdx.x % WARP / 2; }
  DEVICE static constexpr int slot(int at) { return at / PER_SLOT; }
  DEVICE static int slot_row(int slot) { return DOWN * y() + slot / DOWN * 16 * DOWN + slot % DOWN; }
  DEVICE static int slot_column(int slot) { return ALONG * x() + slot / ALONG * 16 * ALONG + slot % ALONG; }
  DEVICE static int row(int at) { return slot_row(slot(at)); }
  DEVICE static constexpr int column_slot(int at) { return at % PER_SLOT; }
  DEVICE static int column(int at) { return slot_column(column_slot(at)); }
  // Whether this thread speaks for its rows.
  DEVICE static bool owns_rows() { return x() == 0; }
  // Nothing goes on while the threads do.
  DEVICE static void publish() {}
  DEVICE void wait() {}
  DEVICE void finish() {}

  // Adds the products over DEPTH numbers.
  template <class A, class B> DEVICE void step(const A& a, const B& b) {
    // Terms of a row that are one access where a panel lies along the sum.
    constexpr int TERMS = A::ALONG_ROWS ? 1 : piece<T>();
    UNROLL
    for (int k = 0; k < DEPTH; k += TERMS) {
      T of_rows[SLOTS * TERMS];
      UNROLL
      for (int i = 0; i < SLOTS; i += A::ALONG_ROWS ? DOWN : 1) {
        if constexpr (A::ALONG_ROWS)
          load_rows<DOWN>(of_rows + i, a, slot_row(i), k);
        else
          load_together<TERMS>(of_rows + i * TERMS, a.at(slot_row(i), k));
      }
      UNROLL
      for (int term = 0; term < TERMS; term++) {
        T of_columns[PER_SLOT];
        UNROLL
        for (int i = 0; i < PER_SLOT; i += ALONG) load_rows<ALONG>(of_columns + i, b, slot_column(i), k + term);
        UNROLL
        for (int at = 0; at < COUNT; at++) sums[at] += of_rows[slot(at) * TERMS + term] * of_columns[at % PER_SLOT];
      }
    }
  }

  // Combines one number of each thread and slot along the rows; every thread gets those of its rows.
  template <class Op, class V> DEVICE static void combine(int, V* of_slots) {
    UNROLL
    for (int slot = 0; slot < SLOTS; slot++)
      UNROLL
      for (int bits = WARP / 2; bits > 1; bits /= 2)
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
  static constexpr bool ALONG_ROWS = false;
  static constexpr int DOWN = ROWS / 64, ALONG = COLUMNS / 16, SLOTS = 2 * DOWN, COUNT = 4 * DOWN * ALONG;
  static constexpr int COLUMN_SLOTS = 2 * ALONG, PARTS = 1, OF_PART = COUNT;
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
  DEVICE static constexpr int column_slot(int at) { return at / 4 % ALONG * 2 + at % 2; }
  DEVICE static int slot_column(int slot) { return first_column() + slot / 2 * 8 + 2 * member() + slot % 2; }
  DEVICE static int column(int at) { return slot_column(column_slot(at)); }
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

  template <class Op, class V> DEVICE static void combine(int, V* of_slots) {
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

// Two floats rounded to 16 bits, the first one in the lower half: how neighbours of such a type are stored.
template <class T> struct Pair {
  static constexpr bool EXISTS = false;
};
template <> struct Pair<bf16> {
  static constexpr bool EXISTS = true;
  DEVICE static u32 of(float x, float y) { return bf16_pair(x, y); }
};
template <> struct Pair<f16> {
  static constexpr bool EXISTS = true;
  DEVICE static u32 of(float x, float y) { return half_pair(x, y); }
};

// Neighbours that a thread has one after the other, as number `at` of LENGTH, are one access of memory, or one for each 16 bytes; some are
// alone. What is stored with 16 bits is given as floats.
template <class T, int LENGTH> struct Run {
  static constexpr int BYTES = LENGTH * sizeof(T), ALIGNMENT = BYTES < 16 ? BYTES : 16;
  struct alignas(ALIGNMENT) Numbers {
    T at[LENGTH];
  };
  struct alignas(ALIGNMENT < 4 ? 4 : ALIGNMENT) Words {
    u32 at[(BYTES + 3) / 4];
  };
  Numbers numbers;
  Words words;
  float before;

  DEVICE T get(int at, bool is_alone, const T* place) {
    if (is_alone) return *place;
    if (at == 0) numbers = *(const Numbers*)place;
    return numbers.at[at];
  }
  template <class V> DEVICE void put(int at, bool is_alone, T* place, V value) {
    if (is_alone) {
      *place = narrow<T>(value);
      return;
    }
    if constexpr (Pair<T>::EXISTS) {
      if (at % 2 == 1) words.at[at / 2] = Pair<T>::of(before, value);
      before = value;
      if (at == LENGTH - 1) *(Words*)(place - at) = words;
    } else {
      numbers.at[at] = value;
      if (at == LENGTH - 1) *(Numbers*)(place - at) = numbers;
    }
  }
};

// Stores two numbers that are neighbours in memory, the first one at an even place.
DEVICE void store_pair(float* to, float x, float y) {
  struct alignas(8) Two {
    float x, y;
  };
  *(Two*)to = Two{x, y};
}
DEVICE void store_pair(bf16* to, float x, float y) { *(u32*)to = bf16_pair(x, y); }
DEVICE void store_pair(f16* to, float x, float y) { *(u32*)to = half_pair(x, y); }

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

// Bytes of a line of the caches.
constexpr int CACHE_LINE = 128;

// Asks the second cache for a row, by SIZE threads.
template <class T, int COLUMNS, int SIZE> DEVICE void prefetch_row(int lane, const T* first) {
  constexpr int OF_LINE = CACHE_LINE / sizeof(T);
  UNROLL
  for (int column = lane * OF_LINE; column < COLUMNS; column += SIZE * OF_LINE) prefetch_line(first + column);
}

// Starts copies of a row to shared memory, in pieces of 16 bytes, each by that of SIZE threads which has it as a run.
template <int COLUMNS, int SIZE, class T> DEVICE void copy_row(T* to, const T* from, int lane) {
  constexpr int OF_PIECE = 16 / sizeof(T);
  UNROLL_MANY
  for (int first = lane * OF_PIECE; first < COLUMNS; first += SIZE * OF_PIECE) {
    const int left = COLUMNS - first;
    copy_async(to + first, from + first, left < OF_PIECE ? left * (int)sizeof(T) : 16);
  }
}

// Numbers of shared memory that a panel of `ROWS` rows takes, however it lies.
template <class Tile, int ROWS> constexpr int panel_size() { return ROWS * (Tile::DEPTH + Tile::PADDING); }

// A panel of `ROWS` rows, which lies along rows if its tile wants it to, or as its operand does.
template <class Tile, int ROWS, class Operand> struct PanelOf {
  typedef typename Tile::Element Element;
  static constexpr bool ALONG_ROWS = Tile::ALONG_ROWS || Operand::ALONG_ROWS;
  // Whether neighbours in the panel are none in memory.
  static constexpr bool IS_TURNED = ALONG_ROWS != Operand::ALONG_ROWS;
  static constexpr int PIECE = piece<Element>(), PADDED_ROWS = Tile::ALONG_ROWS ? ROWS + PIECE : ROWS + (PIECE < 8 ? 8 : PIECE);
  static_assert(Tile::DEPTH * PADDED_ROWS <= panel_size<Tile, ROWS>());
  typedef Panel<Element, ALONG_ROWS ? PADDED_ROWS : Tile::DEPTH + PIECE, ALONG_ROWS, IS_TURNED> Type;

  DEVICE static Type at(Element* start) { return Type{start}; }
  // The row and the term of the `at`-th piece. Eight neighbouring threads have pieces in different banks: rows r and r + 4.
  DEVICE static int piece_row(int at) {
    return ALONG_ROWS ? at % (ROWS / PIECE) * PIECE : at / 32 * 8 + at % 32 / 8 + at / 4 % 2 * 4;
  }
  DEVICE static int piece_term(int at) { return ALONG_ROWS ? at / (ROWS / PIECE) : at % 4 * PIECE; }
  // The row and the term of a thread's first number in a turned panel: lanes have all terms of few rows.
  static constexpr int ROWS_AT_ONCE = THREADS / Tile::DEPTH;
  DEVICE static int number_row() { return (int)threadIdx.x / Tile::DEPTH % ROWS_AT_ONCE; }
  DEVICE static int number_term() { return (int)threadIdx.x % Tile::DEPTH; }
};

// Whether a thread's pieces are the same distance apart in memory, and in the panel, as those of all other threads.
template <class Tile, int ROWS, class Operand> constexpr bool fills_evenly() {
  return Operand::IS_EVEN && ROWS * Tile::DEPTH / PanelOf<Tile, ROWS, Operand>::PIECE % THREADS == 0;
}

// Fills a panel with `ROWS` rows from `first` on and DEPTH terms from `k0` on, zeros beyond `rows` of them and `terms`, and starts its
// copies.
template <class Tile, int ROWS, class Operand>
DEVICE void fill(typename Tile::Element* start, int first, int rows, int k0, int terms, const Operand& operand) {
  typedef typename Tile::Element Element;
  typedef PanelOf<Tile, ROWS, Operand> Of;
  constexpr int DEPTH = Tile::DEPTH, PIECE = Of::PIECE;
  const auto panel = Of::at(start);
  if constexpr (Operand::IS_COPIED && Of::IS_TURNED) {
    const int row = Of::number_row(), term = Of::number_term();
    Element* const to = panel.at(row, term);
    // One address, beside which all others are constants.
    const auto from = [&](int down) {
      if (Operand::ROW_STRIDE != 0) return operand.place(first + row, k0 + term) + Operand::ROW_STRIDE * down;
      return operand.place(first + row + down, k0 + term);
    };
    UNROLL
    for (int down = 0; down < ROWS; down += Of::ROWS_AT_ONCE)
      copy_number<sizeof(Element)>(to + down, from(down), row + down < rows && term < terms);
  } else if constexpr (Operand::IS_COPIED) {
    // All of the panel is there: two addresses, beside which all others are constants.
    if (fills_evenly<Tile, ROWS, Operand>() && ROWS <= rows && DEPTH <= terms) {
      const int row = Of::piece_row(threadIdx.x), term = Of::piece_term(threadIdx.x);
      const auto from = operand.place(first + row, k0 + term);
      Element* to = panel.at(row, term);
      UNROLL
      for (int at = 0; at < ROWS * DEPTH / PIECE; at += THREADS) {
        const int down = Of::piece_row(at), along = Of::piece_term(at);
        copy_async(to + (panel.at(down, along) - start), from + Operand::ROW_STRIDE * down + Operand::TERM_STRIDE * along);
      }
      return;
    }
    for_each_share<ROWS * DEPTH / PIECE>([&](int, int at) {
      const int row = Of::piece_row(at), term = Of::piece_term(at);
      const int left = Operand::ALONG_ROWS ? rows - row : terms - term, numbers = left < PIECE ? left : PIECE;
      const bool is_there = row < rows && term < terms;
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
        const int line = row(done + at), number = term(done + at);
        // Without a branch around them, no load waits for another. Of no rows, none is loaded.
        const Element value =
            rows > 0 ? operand.value(first + smaller(line, rows - 1), k0 + smaller(number, terms - 1)) : Element{};
        values[i] = line < rows && number < terms ? value : Element{};
      });
      for_each_share<SOME>([&](int i, int at) { *panel.at(row(done + at), term(done + at)) = values[i]; });
    }
  }
}

// Numbers of shared memory that the panels of a tile take: in each stage, one of each operand.
template <class Tile> constexpr int panel_count(int stages) {
  return stages * (panel_size<Tile, Tile::ROWS>() + panel_size<Tile, Tile::COLUMNS>());
}

// How many of `size` things are there, where `left` are left of an extent: where it is a multiple of the size all of them, which takes no
// comparison.
DEVICE int left_of(int size, int extent, int left) { return extent > 0 && extent % size == 0 ? size : left; }

// Adds a product to a tile: rows from `row` of `rows`, columns from `column` of `columns`, both multiples of the tile's, and the terms `begin`
// to `end` of sums. While the panels of one stage are read, or of two where products go on by themselves, those of the others are filled.
template <int STAGES, class Tile, class A, class B>
DEVICE void multiply(Tile& tile, typename Tile::Element* panels, int row, int rows, const A& a, int column, int columns,
                     const B& b, int begin, int end) {
  constexpr int SIZE = panel_count<Tile>(1), OF_A = panel_size<Tile, Tile::ROWS>(), AHEAD = STAGES - 1 - Tile::BEHIND;
  const int rows_left = left_of(Tile::ROWS, rows, rows - row), columns_left = left_of(Tile::COLUMNS, columns, columns - column);
  // Every step has a group of copies, if only an empty one.
  const auto fill_both = [&](int step) {
    const int k = begin + step * Tile::DEPTH, terms_left = left_of(Tile::DEPTH, end - begin, end - k);
    if (k < end) {
      typename Tile::Element* start = panels + step % STAGES * SIZE;
      fill<Tile, Tile::ROWS>(start, row, rows_left, k, terms_left, a);
      fill<Tile, Tile::COLUMNS>(start + OF_A, column, columns_left, k, terms_left, b);
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

// Starts to fill panels, for which there are `BYTES` of memory, with an operand's terms from `first` on, a multiple of `WIDTH`, as
// `multiply_values` wants them.
template <class Tile, int BYTES, int WIDTH, class B>
DEVICE void fill_for_values(typename Tile::Element* start, int columns, const B& b, int first, int depth) {
  constexpr int SIZE = panel_size<Tile, Tile::COLUMNS>();
  static_assert(WIDTH / Tile::DEPTH * SIZE * sizeof(typename Tile::Element) <= BYTES);
  UNROLL
  for (int k = 0; k < WIDTH; k += Tile::DEPTH)
    fill<Tile, Tile::COLUMNS>(start + k / Tile::DEPTH * SIZE, 0, columns, first + k, depth % WIDTH == 0 ? Tile::DEPTH : depth - first - k, b);
  copy_commit();
}

// Adds to a tile the product of values in shared memory, rows of them `STRIDE` apart, with an operand whose panels `fill_for_values` has
// begun to fill: sums over the values' `WIDTH` columns. The values may have been written just before.
template <int WIDTH, int STRIDE, class Tile, class B>
DEVICE void multiply_values(Tile& tile, typename Tile::Element* values, typename Tile::Element* start, const B&) {
  copy_wait<0>();
  __syncthreads();
  ROLLED
  for (int k = 0; k < WIDTH; k += Tile::DEPTH) {
    typename Tile::Element* of_step = start + k / Tile::DEPTH * panel_size<Tile, Tile::COLUMNS>();
    tile.step(Panel<typename Tile::Element, STRIDE, false>{values + k}, PanelOf<Tile, Tile::COLUMNS, B>::at(of_step));
  }
  __syncthreads();
}
