// contraction attention.causal/dot_general+mul+…+dot_general over outer [2] rows [9] columns [9], column ≤ row
//   dot_general, mul, select, reduce, sub, exp, reduce, div, dot_general in attention.causal
#include "chain.cuh"

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
  using Out0 = PlainTile<float, 64, 32>;
  Out0 out0;
  LAUNCHED_SHARED(float, values_f32, 40960, 4352);
  const int begin = 0, end = clamped((first_row + 64 < 9 ? first_row + 64 : 9) + 0, 9 + 1);
  float sum_v13[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v13[slot] = 0.0f;
  float sum_v9[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v9[slot] = -float_of_bits(POSITIVE_INFINITY);
  float subtracted_v9[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) subtracted_v9[slot] = -float_of_bits(POSITIVE_INFINITY);
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<4>(product0, panels, first_row, 9, a0, first_column, 9, b0, 0, 4);
    fill_for_values<Out0, 40960, 64>((float*)panels, 4, with0, first_column, 9);
    float value0[Tile::COUNT] = {};
    for_each_part<Tile>([&](auto part) {
      float of_tile_v9[Tile::SLOTS];
      UNROLL
      for (int slot = 0; slot < Tile::SLOTS; slot++) of_tile_v9[slot] = -float_of_bits(POSITIVE_INFINITY);
      UNROLL
      for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
        const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
        if (row >= 9 || column >= 9) continue;
        const int slot = Tile::slot(at);
        const float v3 = product0.sums[at];
        const int v0 = (int)(row);
        const int v1 = (int)(column);
        const bool v2 = v0 >= v1;
        const float v6 = -float_of_bits(POSITIVE_INFINITY);
        const float v7 = v2 ? v3 : v6;
        of_tile_v9[slot] = Max::combine(of_tile_v9[slot], v7);
      }
      float factors[Tile::SLOTS];
      if (raise_maxima<Tile>(part, sum_v9, subtracted_v9, of_tile_v9, 0.7213475f, factors)) {
        for_each_slot<Tile>(part, [&](int slot) { sum_v13[slot] *= factors[slot]; });
        scale_rows(part, out0, factors);
      }
      UNROLL
      for (int at = 0; at < Tile::COUNT; at++) {
        const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
        if (row >= 9 || column >= 9) continue;
        const int slot = Tile::slot(at);
        const float v9 = finite_maximum(subtracted_v9[slot]);
        const float v13 = 1.0f;
        const float v3 = product0.sums[at];
        const int v0 = (int)(row);
        const int v1 = (int)(column);
        const bool v2 = v0 >= v1;
        const float v4 = 0.5f;
        const float v6 = -float_of_bits(POSITIVE_INFINITY);
        const float v7 = v2 ? v3 : v6;
        const float v10 = v9 * v4;
        const float v12 = shifted_exp(v7, 0.5f, v10);
        const float v14 = v12 / v13;
        sum_v13[slot] = Sum::combine(sum_v13[slot], v12);
        value0[at] = v14;
      }
      UNROLL
      for (int at = 0; at < Tile::COUNT; at++) values_f32[Tile::row(at) * 68 + Tile::column(at)] = value0[at];
      multiply_values<64, 68>(out0, values_f32, (float*)panels, with0);
    });
  }
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v13);
  });
  float inverse[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) inverse[slot] = 1.0f / sum_v13[slot];
  for_each_part<Tile>([&](auto part) {
    scale_rows(part, out0, inverse);
  });
  float corrections[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) corrections[slot] = correction(sum_v9[slot], subtracted_v9[slot], 0.7213475f);
  for_each_part<Tile>([&](auto part) {
    for_each_slot<Tile>(part, [&](int slot) { sum_v13[slot] *= corrections[slot]; });
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 9 || column >= 4) continue;
    store_pair(g_attention_causal_dot_general_20 + 36 * batch + 4 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
}
