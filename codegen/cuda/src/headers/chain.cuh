// Tiles of chains on tensor cores: products whose sums are, in registers, the first operand of further products.
//
// Each warp has a strip of 16·DOWN rows, and all columns of a tile. So reductions along rows need no shared memory, and sums lie as the
// fragments of a first operand do. Operands along the rows are held in registers. Those along the columns lie in panels in shared memory,
// which are as deep as the sums are long; the panels of the next tiles are filled while a tile is multiplied.
#pragma once
#include "tile.cuh"

// A panel of `ROWS` rows and `DEPTH` terms, both multiples of 16. Lines are an odd number of pieces apart, so that eight of them lie in
// different banks.
template <class T, int ROWS, int DEPTH, bool ALONG_ROWS>
using DeepPanel = Panel<T, (ALONG_ROWS ? ROWS : DEPTH) + piece<T>(), ALONG_ROWS>;

// e^x, off by two units of the last place and by |x|·2⁻²³ of itself; 0 for less than 2⁻¹²⁶.
DEVICE float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }

// e^(x · c − b), for a power c of two. Beyond 2²³, rounding b · log₂e would change the exponent by more than 1/2. Only masks are so large, and
// then all that counts is whether an entry equals b: with the base 2, the products are exact.
DEVICE float shifted_exp(float x, float c, float b) {
  const float base = fabsf(b) > 8388608.0f ? 1.0f : 1.4426950408889634f;
  return fast_exp2(fmaf(x, c * base, -(b * base)));
}

// Fills a panel of a tile with `ROWS` rows from `first` on and `DEPTH` terms from `k0` on, both multiples of these, zeros beyond `rows` and
// `depth`, and starts its copies.
template <class Tile, int ROWS, int DEPTH, class T, class Operand>
DEVICE void fill_deep(T* start, int first, int rows, int k0, int depth, const Operand& operand) {
  constexpr bool ALONG_ROWS = Operand::ALONG_ROWS;
  constexpr int BLOCK = Tile::BLOCK;
  constexpr int TOGETHER = Operand::IS_COPIED ? piece<T>() : 1;
  constexpr int OF_LINE = (ALONG_ROWS ? ROWS : DEPTH) / TOGETHER, COUNT = OF_LINE * (ALONG_ROWS ? DEPTH : ROWS);
  // What is computed is in registers until it is stored: only so many at a time.
  constexpr int ROUNDS = (COUNT + BLOCK - 1) / BLOCK, AT_ONCE = Operand::IS_COPIED || ROUNDS < 8 ? ROUNDS : 8;
  const auto panel = Tile::template panel<ROWS, DEPTH>(start, operand);
  const int rows_left = left_of(ROWS, rows, rows - first), terms_left = left_of(DEPTH, depth, depth - k0);
  const auto row_of = [](int at) { return ALONG_ROWS ? at % OF_LINE * TOGETHER : at / OF_LINE; };
  const auto term_of = [](int at) { return ALONG_ROWS ? at / OF_LINE : at % OF_LINE * TOGETHER; };
  if constexpr (Operand::IS_COPIED) {
    // All of the panel is there: two addresses, beside which all others are constants. Eight lines are swizzled alike.
    constexpr bool IS_EVEN = Operand::IS_EVEN && COUNT % BLOCK == 0 && BLOCK % (8 * OF_LINE) == 0;
    if (IS_EVEN && ROWS <= rows_left && DEPTH <= terms_left) {
      const int row = row_of(threadIdx.x), term = term_of(threadIdx.x);
      const auto from = operand.place(first + row, k0 + term);
      T* const to = panel.at(row, term);
      UNROLL
      for (int at = 0; at < COUNT; at += BLOCK) {
        const int down = row_of(at), along = term_of(at);
        copy_async(to + (panel.at(down, along) - start), from + Operand::ROW_STRIDE * down + Operand::TERM_STRIDE * along);
      }
      return;
    }
  }
  ROLLED
  for (int round = 0; round < ROUNDS; round += AT_ONCE) {
    UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
      const int at = threadIdx.x + (round + i) * BLOCK;
      if (COUNT % (BLOCK * AT_ONCE) != 0 && at >= COUNT) continue;
      const int row = row_of(at), term = term_of(at);
      const bool is_there = row < rows_left && term < terms_left;
      if constexpr (Operand::IS_COPIED) {
        const int left = ALONG_ROWS ? rows_left - row : terms_left - term, numbers = left < TOGETHER ? left : TOGETHER;
        copy_async(panel.at(row, term), operand.place(first + row, k0 + term), is_there ? numbers * (int)sizeof(T) : 0);
      } else {
        *panel.at(row, term) = is_there ? operand.value(first + row, k0 + term) : T{};
      }
    }
  }
}

// Starts the copies of `COUNT` numbers, of which `left` are there; zeros follow them.
template <int BLOCK, int COUNT> DEVICE void fill_vector(float* start, const float* from, int left) {
  static_assert(COUNT <= 4 * BLOCK);
  const int at = 4 * threadIdx.x, numbers = left - at < 4 ? left - at : 4;
  if (at < COUNT) copy_async(start + at, from + at, numbers > 0 ? numbers * (int)sizeof(float) : 0);
}

// The number of a part, which is known when code is compiled.
template <int NUMBER> struct Part {
  constexpr operator int() const { return NUMBER; }
};

// Calls `act(part)` for each part of a tile's rows.
template <class Tile, int FIRST = 0, class Act> DEVICE void for_each_part(const Act& act) {
  act(Part<FIRST>());
  if constexpr (FIRST + 1 < Tile::PARTS) for_each_part<Tile, FIRST + 1>(act);
}

// Calls `act(slot)` for each slot of a part.
template <class Tile, class Act> DEVICE void for_each_slot(int part, const Act& act) {
  constexpr int OF_PART = Tile::SLOTS / Tile::PARTS;
  UNROLL
  for (int slot = part * OF_PART; slot < (part + 1) * OF_PART; slot++) act(slot);
}

// Combines one number of each thread and slot of a part along the rows, which four lanes have; every thread gets those of its rows.
template <class Op, class Tile, class V> DEVICE void combine_lanes(int part, V* of_slots) {
  for_each_slot<Tile>(part, [&](int slot) {
    UNROLL
    for (int bits = 2; bits > 0; bits /= 2) of_slots[slot] = Op::combine(of_slots[slot], shuffle_xor(of_slots[slot], bits));
  });
}

// A tile computed by tensor cores: `WARPS` warps, each with 16·DOWN rows and all columns. Its rows are computed in PARTS parts, each with as
// many entries and slots, so that products of one may be under way while another one's entries are computed.
template <class Core, int WARPS, int DOWN, int COLUMNS_> struct StripTile {
  typedef typename TensorCore<Core>::Element Element;
  typedef TensorTile<Core, 64, 64> Loader;
  static constexpr int BLOCK = WARPS * WARP, ROWS = 16 * DOWN * WARPS, COLUMNS = COLUMNS_;
  static constexpr int ALONG = COLUMNS / 8, SLOTS = 2 * DOWN, COUNT = 4 * DOWN * ALONG;
  static constexpr int PARTS = 1, OF_PART = COUNT;
  float sums[COUNT];

  DEVICE StripTile() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = 0.0f;
  }
  DEVICE static int member() { return threadIdx.x % 4; }
  DEVICE static int first_row() { return threadIdx.x / WARP * 16 * DOWN; }
  DEVICE static constexpr int slot(int at) { return at / (4 * ALONG) * 2 + at % 4 / 2; }
  DEVICE static int slot_row(int slot) { return first_row() + slot * 8 + threadIdx.x % WARP / 4; }
  DEVICE static int row(int at) { return slot_row(slot(at)); }
  DEVICE static int column(int at) { return at / 4 % ALONG * 8 + 2 * member() + at % 2; }
  DEVICE static bool owns_rows() { return member() == 0; }
  template <class Op, class V> DEVICE static void combine(int part, V* of_slots) { combine_lanes<Op, StripTile>(part, of_slots); }
  // Nothing goes on while the threads do.
  DEVICE static void publish() {}
  DEVICE static void begin() {}
  DEVICE static void commit() {}
  template <int GROUPS> DEVICE static void wait() {}
  DEVICE void keep(int) {}
  template <int COUNT> DEVICE static void keep_words(u32 (&)[COUNT]) {}

  // The panel at `start`, which lies as the operand does.
  template <int ROWS, int DEPTH, class Operand> DEVICE static auto panel(Element* start, const Operand&) {
    return DeepPanel<Element, ROWS, DEPTH, Operand::ALONG_ROWS>{start};
  }

  // The fragments of this warp's rows of a panel.
  template <int DEPTH, class P> DEVICE static void load_rows(u32* fragments, const P& panel) {
    UNROLL
    for (int i = 0; i < DOWN; i++)
      UNROLL
      for (int k = 0; k < DEPTH; k += 16)
        Loader::template load<false>(fragments + i * DEPTH / 4 + k / 4, panel, first_row() + 16 * i, k);
  }

  // A word of fragments of numbers that lie as sums do: those of the sums 2i and 2i + 1 are word i.
  DEVICE static u32 pack(float x, float y) { return TensorCore<Core>::pack(x, y); }

  // Adds the products of `DEPTH` terms of rows, whose fragments are in registers, or which lie in a panel, and those of a panel.
  template <int DEPTH, class P> DEVICE void multiply(int, const u32* fragments, const P& panel) {
    UNROLL
    for (int k = 0; k < DEPTH; k += 16) {
      const u32* rows[DOWN];
      UNROLL
      for (int i = 0; i < DOWN; i++) rows[i] = fragments + i * DEPTH / 4 + k / 4;
      step(rows, panel, k);
    }
  }
  template <int DEPTH, class A, class P> DEVICE void multiply_panels(int, const A& of_rows, const P& panel) {
    UNROLL
    for (int k = 0; k < DEPTH; k += 16) {
      u32 words[DOWN][4];
      const u32* rows[DOWN];
      UNROLL
      for (int i = 0; i < DOWN; i++) {
        Loader::template load<false>(words[i], of_rows, first_row() + 16 * i, k);
        rows[i] = words[i];
      }
      step(rows, panel, k);
    }
  }

  // Adds the products of 16 terms from k on.
  template <class P> DEVICE void step(const u32* const* rows, const P& panel, int k) {
    UNROLL
    for (int j = 0; j < ALONG; j += 2) {
      u32 words[4];
      Loader::template load<true>(words, panel, 8 * j, k);
      UNROLL
      for (int i = 0; i < DOWN; i++)
        UNROLL
        for (int half = 0; half < 2; half++)
          TensorCore<Core>::multiply(sums + 4 * (i * ALONG + j + half), rows[i], words + 2 * half);
    }
  }

};

// Multiplies the sums of each row of a part by a number.
template <class Tile> DEVICE void scale_rows(int part, Tile& tile, const float* of_slots) {
  constexpr int OF_PART = Tile::COUNT / Tile::PARTS;
  UNROLL
  for (int at = part * OF_PART; at < (part + 1) * OF_PART; at++) tile.sums[at] *= of_slots[Tile::slot(at)];
}

// Copies the block's rows of an operand to shared memory.
template <class Tile, int DEPTH, class Operand>
DEVICE void fill_rows(typename Tile::Element* start, int first, int rows, int depth, const Operand& operand) {
  fill_deep<Tile, Tile::ROWS, DEPTH>(start, first, rows, 0, depth, operand);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
}

// Calls `act(first column, panels, fill_next)` for each tile of the columns `begin` to `end`, after `fill(first column, panels)`. While one
// of the stages of panels, of `SIZE` numbers, is read, the others are filled: `act` calls `fill_next()` where that is best.
template <int STAGES, int SIZE, class Tile, class Fill, class Act>
DEVICE void for_each_tile(typename Tile::Element* panels, int begin, int end, const Fill& fill, const Act& act) {
  // Every tile has a group of copies, if only an empty one.
  const auto fill_tile = [&](int first, int stage) {
    if (first < end) fill(first, panels + stage * SIZE);
    copy_commit();
  };
  UNROLL
  for (int stage = 0; stage < STAGES - 1; stage++) fill_tile(begin + stage * Tile::COLUMNS, stage);
  int stage = 0;
  ROLLED
  for (int first = begin; first < end; first += Tile::COLUMNS) {
    copy_wait<STAGES - 2>();
    Tile::publish();
    __syncthreads();
    act(first, panels + stage * SIZE, [&] { fill_tile(first + (STAGES - 1) * Tile::COLUMNS, (stage + STAGES - 1) % STAGES); });
    stage = (stage + 1) % STAGES;
  }
  __syncthreads();
}

// A maximum so far of a row, as it is subtracted: where nothing but −∞ was there, differences are −∞, too.
DEVICE float finite_maximum(float x) { return x == -float_of_bits(POSITIVE_INFINITY) ? 0.0f : x; }

// Powers of 2 that sums are taken of are 2^VALUE at most: what is subtracted follows the maximum only when that has risen by more.
// (FlashAttention-4, by Zadouri et al., leaves out corrections so.) Numbers of f16 have no room for more than 1.
template <class T> struct MostRise {
  static constexpr float VALUE = 8.0f;
};
template <> struct MostRise<f16> {
  static constexpr float VALUE = 0.0f;
};

// Takes the maxima of rows of a tile's part into those so far. Sums are of 2^(… − rate · subtracted): whether they have to be corrected, then
// by these factors.
template <class Tile>
DEVICE bool raise_maxima(int part, float* maxima, float* subtracted, float* of_tile, float rate, float* factors) {
  Tile::template combine<Max>(part, of_tile);
  bool rises = false;
  for_each_slot<Tile>(part, [&](int slot) {
    maxima[slot] = Max::combine(maxima[slot], of_tile[slot]);
    // Where one of these is no number, it does.
    rises |= !((maxima[slot] - subtracted[slot]) * rate <= MostRise<typename Tile::Element>::VALUE);
  });
  if (!any_of_warp(rises)) return false;
  for_each_slot<Tile>(part, [&](int slot) {
    const float before = subtracted[slot];
    subtracted[slot] = maxima[slot];
    factors[slot] = fast_exp2((before - finite_maximum(maxima[slot])) * rate);
  });
  return true;
}

// The factor of a row's sums when its maximum itself is subtracted.
DEVICE float correction(float maximum, float subtracted, float rate) {
  return fast_exp2((finite_maximum(subtracted) - finite_maximum(maximum)) * rate);
}
