// Reductions of one number of each thread, in one order: lanes by halves, then warps one after another.
#pragma once
#include "numbers.cuh"

struct Sum {
  template <class T> DEVICE static T combine(T x, T y) { return x + y; }
};
struct Max {
  template <class T> DEVICE static T combine(T x, T y) { return larger(x, y); }
};
struct Min {
  template <class T> DEVICE static T combine(T x, T y) { return smaller(x, y); }
};

// Of a warp; every lane gets the result.
template <class Op, class T> DEVICE T reduce_warp(T x) {
  UNROLL
  for (int bits = WARP / 2; bits > 0; bits /= 2) x = Op::combine(x, shuffle_xor(x, bits));
  return x;
}

// Of a block; every thread gets the result. All of its threads must call it.
template <class Op, int SIZE, class T> DEVICE T reduce_block(T x) {
  SHARED(T, of_warps, SIZE / WARP);
  x = reduce_warp<Op>(x);
  if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = x;
  __syncthreads();
  T result = of_warps[0];
  for (int warp = 1; warp < SIZE / WARP; warp++) result = Op::combine(result, of_warps[warp]);
  __syncthreads();
  return result;
}

// Combines what the warps of a block have of each column, in their order, and writes it to memory. Lanes have runs of LENGTH neighbours: lane l
// has the runs l + 32i.
template <class Op, class T, int COLUMNS, int LENGTH, int SIZE, class V> DEVICE void combine_warps(const V* of_lane, T* place) {
  SHARED(T, of_columns, COLUMNS);
  constexpr int AT_ONCE = WARP * LENGTH;
  const int lane = threadIdx.x % WARP;
  for (int warp = 0; warp < SIZE / WARP; warp++) {
    if ((int)threadIdx.x / WARP == warp) {
      UNROLL
      for (int i = 0; i < (COLUMNS + AT_ONCE - 1) / AT_ONCE * LENGTH; i++) {
        const int column = (lane + i / LENGTH * WARP) * LENGTH + i % LENGTH;
        if (column < COLUMNS) of_columns[column] = warp == 0 ? of_lane[i] : Op::combine(of_columns[column], of_lane[i]);
      }
    }
    __syncthreads();
  }
  for (int column = threadIdx.x; column < COLUMNS; column += SIZE) place[column] = of_columns[column];
  __syncthreads();
}

// Combines the results of CHUNKS chunks for one column, `COLUMNS` numbers apart in memory: each of the WARPS warps that share a column takes every
// WARPS-th chunk, and the first of them combines the warps' results in their order. All threads of the block must call it.
template <class Op, int SIZE, int WARPS, int CHUNKS, int COLUMNS, class T>
DEVICE T combine_chunks(const T* partial, int column, T identity) {
  const int first = WARPS > 1 ? threadIdx.x / (SIZE / WARPS) : 0;
  T result = identity;
  if (column < COLUMNS) {
    UNROLL_MANY
    for (int i = 0; i < (CHUNKS + WARPS - 1) / WARPS; i++) {
      const int chunk = first + i * WARPS;
      if (CHUNKS % WARPS == 0 || chunk < CHUNKS) result = Op::combine(result, partial[COLUMNS * chunk + column]);
    }
  }
  if constexpr (WARPS > 1) {
    SHARED(T, of_warps, SIZE);
    of_warps[threadIdx.x] = result;
    __syncthreads();
    if (threadIdx.x < SIZE / WARPS) {
      UNROLL
      for (int warp = 1; warp < WARPS; warp++) result = Op::combine(result, of_warps[warp * (SIZE / WARPS) + threadIdx.x]);
    }
  }
  return result;
}
