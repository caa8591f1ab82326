// Products of a few rows with a matrix: C[row, column] = Σ_k A[row, k] · B[column, k]. Such a product takes as long as B's numbers take to come
// from memory: each is read once, in accesses of 16 bytes, many of which are under way together.
//
// A block's threads are teams: those of a team share COLUMNS columns, each has some terms of their sums, and what they have is added up in one
// order, which is that of the threads.
#pragma once
#include "reduce.cuh"

// A number of memory as one that is multiplied, rounded to the type U. Bytes are numbers of every type.
template <class U> struct Multiplied {
  template <class T> DEVICE static float of(T x) { return round_to<U>(widen(x)); }
  DEVICE static float of(U x) { return widen(x); }
  DEVICE static float of(i8 x) { return (float)widen(x); }
};
template <> struct Multiplied<float> {
  template <class T> DEVICE static float of(T x) { return (float)widen(x); }
};

// COUNT numbers, in accesses of 16 bytes if they are aligned neighbours, and of their size if that is less.
template <class T, class U, int COUNT, bool IS_ALIGNED> struct Neighbours {
  static constexpr int BYTES = COUNT * sizeof(T), OF_ACCESS = !IS_ALIGNED ? sizeof(T) : BYTES < 16 ? BYTES : 16;
  static constexpr int PER_ACCESS = OF_ACCESS / sizeof(T);
  struct alignas(OF_ACCESS) Access {
    T at[PER_ACCESS];
  };
  Access accesses[COUNT / PER_ACCESS];

  // From a row's term on; if they are not aligned, they are the row's next terms, wherever these lie.
  template <class Place> DEVICE void load(const Place& place, int row, int k) {
    const T* start = place(row, k);
    UNROLL
    for (int i = 0; i < COUNT / PER_ACCESS; i++)
      accesses[i] = *(const Access*)(IS_ALIGNED ? start + i * PER_ACCESS : place(row, k + i));
  }
  DEVICE float get(int number) const {
    return Multiplied<U>::of(accesses[number / PER_ACCESS].at[number % PER_ACCESS]);
  }
};

// Bytes: a card converts few at a time, so their numbers are made of bits. 2²³ + 128 + x has x + 128 in its last byte, which is x with its sign changed.
template <class U, int COUNT> struct Neighbours<i8, U, COUNT, true> {
  static constexpr int WORDS = COUNT / 4;
  struct alignas(COUNT < 16 ? COUNT : 16) Words {
    u32 at[WORDS];
  };
  static_assert(COUNT % 4 == 0 && COUNT <= 16);
  Words words;

  template <class Place> DEVICE void load(const Place& place, int row, int k) {
    words = *(const Words*)place(row, k);
    UNROLL
    for (int i = 0; i < WORDS; i++) words.at[i] ^= 0x80808080u;
  }
  DEVICE float get(int number) const {
    return float_of_bits(bytes_of(words.at[number / 4], 0x4B000000u, 0x7650u + number % 4)) - 8388736.0f;
  }
};

// Half bytes, of which a group lies in 16 bytes: numbers 0 to 15 in the lower halves, the others in the upper ones, each plus 8. 2²³ + x has x in its last
// bits. Their scale comes to the sum of the group.
template <class Scale> struct HalfByte {};
template <class Scale> struct HalfBytes {
  const i8* bytes;
  const Scale* scale;
};
template <class Scale, class U> struct Neighbours<HalfByte<Scale>, U, 32, true> {
  struct alignas(16) Words {
    u32 at[4];
  };
  Words words;
  float scale;

  template <class Place> DEVICE void load(const Place& place, int row, int k) {
    const HalfBytes<Scale> group = place(row, k);
    words = *(const Words*)group.bytes;
    scale = widen(*group.scale);
  }
  DEVICE float get(int number) const {
    const u32 halves = words.at[number % 16 / 4] >> (number / 16 * 4) & 0x0F0F0F0Fu;
    return float_of_bits(bytes_of(halves, 0x4B000000u, 0x7650u + number % 4)) - 8388616.0f;
  }
};

// How the products of a piece's numbers come to a sum: one after another, or together, times what all of these numbers are multiplied with.
template <class T> struct SumOf {
  template <class Piece> DEVICE static float begin(float sum, const Piece&) { return sum; }
  template <class Piece> DEVICE static float end(float, float own, const Piece&) { return own; }
};
template <class Scale> struct SumOf<HalfByte<Scale>> {
  template <class Piece> DEVICE static float begin(float, const Piece&) { return 0.0f; }
  template <class Piece> DEVICE static float end(float sum, float own, const Piece& piece) { return sum + own * piece.scale; }
};

// An operand in memory: place(row, k) is the address of a number, which is multiplied as a U. ALIGNED says whether accesses of 16 bytes are, along
// the terms of a sum or, if neighbours lie along rows, along these.
template <class U_, bool ALONG_ROWS_, bool IS_ALIGNED_, class Place> struct InMemory {
  typedef U_ U;
  static constexpr bool ALONG_ROWS = ALONG_ROWS_, IS_ALIGNED = IS_ALIGNED_;
  Place place;
};
template <class U, bool ALONG_ROWS, bool IS_ALIGNED, class Place>
DEVICE InMemory<U, ALONG_ROWS, IS_ALIGNED, Place> in_memory(Place place) {
  return {place};
}

// The address's type of number.
template <class T> struct Pointed;
template <class T> struct Pointed<const T*> {
  typedef T Type;
};
template <class Scale> struct Pointed<HalfBytes<Scale>> {
  typedef HalfByte<Scale> Type;
};
template <class Operand> struct NumberOf {
  typedef typename Pointed<decltype(((const Operand*)0)->place(0, 0))>::Type Type;
};

// ROWS rows and COLUMNS columns of a team, whose TEAM threads are STEP apart; of each column, a thread has at most MOST pieces under way. Each of a team's first COUNT
// threads speaks for one entry.
template <int ROWS, int COLUMNS, int TEAM, int STEP, int MOST> struct FewRows {
  static constexpr int COUNT = ROWS * COLUMNS, TEAMS = THREADS / TEAM;
  static_assert(COUNT <= TEAM && STEP <= WARP);
  float sums[COUNT];

  DEVICE FewRows() {
    UNROLL
    for (int at = 0; at < COUNT; at++) sums[at] = 0.0f;
  }
  DEVICE static int lane() { return threadIdx.x / STEP % TEAM; }
  DEVICE static int team() { return threadIdx.x % STEP + threadIdx.x / (STEP * TEAM) * STEP; }
  DEVICE static bool speaks() { return lane() < COUNT; }
  DEVICE static int entry() { return lane() % COUNT; }
  DEVICE static int row() { return entry() / COLUMNS; }
  DEVICE static int column() { return entry() % COLUMNS; }

  // How many of `each` pieces of a thread are under way together: as many in the last step as in the others.
  static constexpr int together(int each) {
    const int steps = (each + MOST - 1) / MOST;
    return steps < 2 ? (each > 0 ? each : 1) : (each + steps - 1) / steps;
  }

  // Adds this thread's share of sums of DEPTH terms, for the columns from `first` on of `columns`.
  template <int PIECE, int DEPTH, class A, class B> DEVICE void add(const A& a, int first, int columns, const B& b) {
    if constexpr (B::ALONG_ROWS)
      add_along_columns<PIECE, DEPTH>(a, first, columns, b);
    else
      add_along_terms<PIECE, DEPTH>(a, first, columns, b);
  }

  // Pieces are neighbouring terms of a column.
  template <int PIECE, int DEPTH, class A, class B> DEVICE void add_along_terms(const A& a, int first, int columns, const B& b) {
    typedef Neighbours<typename NumberOf<A>::Type, typename A::U, PIECE, A::IS_ALIGNED> OfA;
    typedef Neighbours<typename NumberOf<B>::Type, typename B::U, PIECE, B::IS_ALIGNED> OfB;
    typedef SumOf<typename NumberOf<B>::Type> Sum;
    constexpr int PIECES = DEPTH / PIECE, EACH = (PIECES + TEAM - 1) / TEAM, TOGETHER = together(EACH);
    ROLLED
    for (int done = 0; done < EACH; done += TOGETHER) {
      OfB y[TOGETHER][COLUMNS];
      UNROLL
      for (int i = 0; i < TOGETHER; i++)
        UNROLL
        for (int j = 0; j < COLUMNS; j++) {
          // Without a branch around it, no load waits for another.
          const int piece = smaller(lane() + (done + i) * TEAM, PIECES - 1);
          y[i][j].load(b.place, smaller(first + j, columns - 1), piece * PIECE);
        }
      UNROLL
      for (int i = 0; i < TOGETHER; i++) {
        const int piece = lane() + (done + i) * TEAM;
        if (PIECES % (TEAM * TOGETHER) != 0 && piece >= PIECES) continue;
        UNROLL
        for (int row = 0; row < ROWS; row++) {
          OfA x;
          x.load(a.place, row, piece * PIECE);
          float* const whole = sums + row * COLUMNS;
          float own[COLUMNS];
          UNROLL
          for (int j = 0; j < COLUMNS; j++) own[j] = Sum::begin(whole[j], y[i][j]);
          UNROLL
          for (int k = 0; k < PIECE; k++)
            UNROLL
            for (int j = 0; j < COLUMNS; j++) own[j] += x.get(k) * y[i][j].get(k);
          UNROLL
          for (int j = 0; j < COLUMNS; j++) whole[j] = Sum::end(whole[j], own[j], y[i][j]);
        }
      }
    }
  }

  // Pieces are a term of all of the team's columns.
  template <int PIECE, int DEPTH, class A, class B> DEVICE void add_along_columns(const A& a, int first, int columns, const B& b) {
    static_assert(PIECE == COLUMNS);
    typedef Neighbours<typename NumberOf<A>::Type, typename A::U, 1, false> OfA;
    typedef Neighbours<typename NumberOf<B>::Type, typename B::U, PIECE, B::IS_ALIGNED> OfB;
    constexpr int EACH = (DEPTH + TEAM - 1) / TEAM, TOGETHER = together(EACH);
    ROLLED
    for (int done = 0; done < EACH; done += TOGETHER) {
      OfB y[TOGETHER];
      UNROLL
      for (int i = 0; i < TOGETHER; i++) {
        const int term = smaller(lane() + (done + i) * TEAM, DEPTH - 1);
        y[i].load(b.place, smaller(first, columns - PIECE), term);
      }
      UNROLL
      for (int i = 0; i < TOGETHER; i++) {
        const int term = lane() + (done + i) * TEAM;
        if (DEPTH % (TEAM * TOGETHER) != 0 && term >= DEPTH) continue;
        UNROLL
        for (int row = 0; row < ROWS; row++) {
          OfA x;
          x.load(a.place, row, term);
          UNROLL
          for (int j = 0; j < COLUMNS; j++) sums[row * COLUMNS + j] += x.get(0) * y[i].get(j);
        }
      }
    }
  }

  // What COUNT takes when it is doubled from 1 on, and the lanes of a team in one warp.
  static constexpr int doubled(int count) { return count <= 1 ? 1 : 2 * doubled((count + 1) / 2); }
  static constexpr int ENTRIES = doubled(COUNT), LANES = STEP * TEAM < WARP ? TEAM : WARP / STEP;

  // Adds up over lanes whose numbers differ in the bits from `BIT` on. Of the HAVE entries that are left, a lane keeps those with its own bit and gives
  // the others away, so that it has ever fewer.
  template <int HAVE, int BIT> DEVICE static void exchange(float* entries) {
    if constexpr (BIT < LANES) {
      if constexpr (HAVE > 1) {
        const bool odd = threadIdx.x / STEP & BIT;
        UNROLL
        for (int at = 0; at < HAVE / 2; at++) {
          const float even_one = entries[2 * at], odd_one = entries[2 * at + 1];
          entries[at] = (odd ? odd_one : even_one) + shuffle_xor(odd ? even_one : odd_one, STEP * BIT);
        }
      } else {
        entries[0] += shuffle_xor(entries[0], STEP * BIT);
      }
      exchange<(HAVE + 1) / 2, 2 * BIT>(entries);
    }
  }

  // The sum of this thread's entry, of what all threads of its team have: lanes of a warp in pairs, then warps one after another. All of the
  // block's threads must call it.
  DEVICE float sum() {
    float entries[ENTRIES];
    UNROLL
    for (int at = 0; at < ENTRIES; at++) entries[at] = at < COUNT ? sums[at] : 0.0f;
    exchange<ENTRIES, 1>(entries);
    if constexpr (STEP * TEAM > WARP) {
      constexpr int WARPS = STEP * TEAM / WARP, EACH = ENTRIES > LANES ? ENTRIES / LANES : 1;
      SHARED(float, of_warps, THREADS / WARP * STEP * COUNT);
      const int warp = threadIdx.x / WARP, beside = threadIdx.x % STEP, own = threadIdx.x % WARP / STEP;
      UNROLL
      for (int at = 0; at < EACH; at++)
        if (at * LANES + own < COUNT) of_warps[(warp * STEP + beside) * COUNT + at * LANES + own] = entries[at];
      __syncthreads();
      const float* first = of_warps + (warp / WARPS * WARPS * STEP + beside) * COUNT + entry();
      float result = first[0];
      UNROLL
      for (int other = 1; other < WARPS; other++) result += first[other * STEP * COUNT];
      __syncthreads();
      return result;
    } else {
      return entries[0];
    }
  }
};
