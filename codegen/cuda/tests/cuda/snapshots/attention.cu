// contraction attention.causal/dot_general+mul+…+dot_general over outer [2] rows [9] columns [9], column ≤ row
//   dot_general, mul, select, reduce, sub, exp, reduce, div, dot_general in attention.causal
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_attention_causal_dot_general_mul_dot_general(
    const float* __restrict__ g_x0,
    const float* __restrict__ g_x1,
    const float* __restrict__ g_x2,
    float* g_attention_causal_dot_general_20)
{
  const int first_row = blockIdx.x * 64;
  const int batch = blockIdx.z;
  using Tile = PlainTile<float, 64, 64>;
  LAUNCHED_SHARED(float, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<false, 4, 1>([&](int row, int k) {
    return g_x0 + 36 * batch + 4 * row + k;
  });
  const auto b0 = copied<false, 4, 1>([&](int row, int k) {
    return g_x1 + 36 * batch + 4 * row + k;
  });
  const auto with0 = copied<true, 1, 4>([&](int row, int k) {
    return g_x2 + 36 * batch + 4 * k + row;
  });
  const int begin = 0, end = clamped((first_row + 64 < 9 ? first_row + 64 : 9) + 0, 9 + 1);
  float sum_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<4>(product0, panels, first_row, 9, a0, first_column, 9, b0, 0, 4);
    UNROLL
    for (int at = 0; at < Tile::COUNT; at++) {
      const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
      if (row >= 9 || column >= 9) continue;
      const float v3 = product0.sums[at];
      const int v0 = (int)(row);
      const int v1 = (int)(column);
      const bool v2 = v0 >= v1;
      const float v4 = 0.5f;
      const float v5 = v3 * v4;
      const float v6 = -float_of_bits(POSITIVE_INFINITY);
      const float v7 = v2 ? v5 : v6;
      sum_v8[Tile::slot(at)] = Max::combine(sum_v8[Tile::slot(at)], v7);
    }
  }
  Tile::combine<Max>(sum_v8);
  float sum_v11[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v11[slot] = 0.0f;
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<4>(product0, panels, first_row, 9, a0, first_column, 9, b0, 0, 4);
    UNROLL
    for (int at = 0; at < Tile::COUNT; at++) {
      const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
      if (row >= 9 || column >= 9) continue;
      const float v8 = sum_v8[Tile::slot(at)];
      const float v3 = product0.sums[at];
      const int v0 = (int)(row);
      const int v1 = (int)(column);
      const bool v2 = v0 >= v1;
      const float v4 = 0.5f;
      const float v5 = v3 * v4;
      const float v6 = -float_of_bits(POSITIVE_INFINITY);
      const float v7 = v2 ? v5 : v6;
      const float v9 = v7 - v8;
      const float v10 = expf(v9);
      sum_v11[Tile::slot(at)] = Sum::combine(sum_v11[Tile::slot(at)], v10);
    }
  }
  Tile::combine<Sum>(sum_v11);
  using Out0 = PlainTile<float, 64, 32>;
  Out0 out0;
  LAUNCHED_SHARED(float, values_f32, 40960, 4352);
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<4>(product0, panels, first_row, 9, a0, first_column, 9, b0, 0, 4);
    fill_for_values<Out0, 40960, 64>((float*)panels, 4, with0, first_column, 9);
    UNROLL
    for (int at = 0; at < Tile::COUNT; at++) {
      const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
      values_f32[Tile::row(at) * 68 + Tile::column(at)] = float{};
      if (row >= 9 || column >= 9) continue;
      const float v8 = sum_v8[Tile::slot(at)];
      const float v11 = sum_v11[Tile::slot(at)];
      const float v3 = product0.sums[at];
      const int v0 = (int)(row);
      const int v1 = (int)(column);
      const bool v2 = v0 >= v1;
      const float v4 = 0.5f;
      const float v5 = v3 * v4;
      const float v6 = -float_of_bits(POSITIVE_INFINITY);
      const float v7 = v2 ? v5 : v6;
      const float v9 = v7 - v8;
      const float v10 = expf(v9);
      const float v12 = v10 / v11;
      values_f32[Tile::row(at) * 68 + Tile::column(at)] = v12;
    }
    multiply_values<64, 68>(out0, values_f32, (float*)panels, with0);
  }
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 9 || column >= 4) continue;
    store_pair(g_attention_causal_dot_general_20 + 36 * batch + 4 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
}
