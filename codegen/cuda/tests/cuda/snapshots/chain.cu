// contraction kernel0 over outer [1] rows [70] columns [140], column ≤ row + 100
#include "chain.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0(
    const float* __restrict__ g_q,
    const float* __restrict__ g_key,
    const float* __restrict__ g_u,
    const float* __restrict__ g_v,
    const float* __restrict__ g_w,
    float* g_along,
    float* g_largest,
    float* g_statistic,
    float* g_statistic_2)
{
  const int first_row = blockIdx.x * 64;
  using Tile = PlainTile<float, 64, 64>;
  LAUNCHED_SHARED(float, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<false, 48, 1>([&](int row, int k) {
    return g_q + 48 * row + k;
  });
  const auto b0 = copied<false, 48, 1>([&](int row, int k) {
    return g_key + 48 * row + k;
  });
  const auto a1 = copied<false, 48, 1>([&](int row, int k) {
    return g_u + 48 * row + k;
  });
  const auto b1 = copied<false, 48, 1>([&](int row, int k) {
    return g_v + 48 * row + k;
  });
  const auto with0 = copied<true, 1, 24>([&](int row, int k) {
    return g_w + 24 * k + row;
  });
  using Out0 = PlainTile<float, 64, 32>;
  Out0 out0;
  LAUNCHED_SHARED(float, values_f32, 40960, 4352);
  const int begin = 0, end = clamped((first_row + 64 < 70 ? first_row + 64 : 70) + 100, 140 + 1);
  float sum_v11[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v11[slot] = 0.0f;
  float sum_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  float subtracted_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) subtracted_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<4>(product0, panels, first_row, 70, a0, first_column, 140, b0, 0, 48);
    Tile product1;
    multiply<4>(product1, panels, first_row, 70, a1, first_column, 140, b1, 0, 48);
    fill_for_values<Out0, 40960, 64>((float*)panels, 24, with0, first_column, 140);
    float value0[Tile::COUNT] = {};
    for_each_part<Tile>([&](auto part) {
      if (first_row + Tile::ROWS <= 70 && first_column + 63 < 140 && first_column + 63 <= first_row + 100) {
        float of_tile_v8[Tile::SLOTS];
        UNROLL
        for (int slot = 0; slot < Tile::SLOTS; slot++) of_tile_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v3 = product0.sums[at];
          const int v0 = (int)(row);
          const int v1 = (int)(column);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          of_tile_v8[slot] = Max::combine(of_tile_v8[slot], v7);
        }
        float factors[Tile::SLOTS];
        if (raise_maxima<Tile>(part, sum_v8, subtracted_v8, of_tile_v8, 1.442695f, factors)) {
          for_each_slot<Tile>(part, [&](int slot) { sum_v11[slot] *= factors[slot]; });
          scale_rows(part, out0, factors);
        }
        UNROLL
        for (int at = 0; at < Tile::COUNT; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v8 = finite_maximum(subtracted_v8[slot]);
          const float v11 = 1.0f;
          const float v3 = product0.sums[at];
          const float v13 = product1.sums[at];
          const int v0 = (int)(row);
          const int v1 = (int)(column);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 / v11;
          const float v14 = v12 * v13;
          sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
          value0[at] = v14;
        }
      }
      else {
        float of_tile_v8[Tile::SLOTS];
        UNROLL
        for (int slot = 0; slot < Tile::SLOTS; slot++) of_tile_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          if (row >= 70 || column >= 140) continue;
          const int slot = Tile::slot(at);
          const float v3 = product0.sums[at];
          const int v0 = (int)(row);
          const int v1 = (int)(column);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          of_tile_v8[slot] = Max::combine(of_tile_v8[slot], v7);
        }
        float factors[Tile::SLOTS];
        if (raise_maxima<Tile>(part, sum_v8, subtracted_v8, of_tile_v8, 1.442695f, factors)) {
          for_each_slot<Tile>(part, [&](int slot) { sum_v11[slot] *= factors[slot]; });
          scale_rows(part, out0, factors);
        }
        UNROLL
        for (int at = 0; at < Tile::COUNT; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          if (row >= 70 || column >= 140) continue;
          const int slot = Tile::slot(at);
          const float v8 = finite_maximum(subtracted_v8[slot]);
          const float v11 = 1.0f;
          const float v3 = product0.sums[at];
          const float v13 = product1.sums[at];
          const int v0 = (int)(row);
          const int v1 = (int)(column);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 / v11;
          const float v14 = v12 * v13;
          sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
          value0[at] = v14;
        }
      }
      UNROLL
      for (int at = 0; at < Tile::COUNT; at++) values_f32[Tile::row(at) * 68 + Tile::column(at)] = value0[at];
      multiply_values<64, 68>(out0, values_f32, (float*)panels, with0);
    });
  }
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v11);
  });
  float inverse[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) inverse[slot] = 1.0f / sum_v11[slot];
  for_each_part<Tile>([&](auto part) {
    scale_rows(part, out0, inverse);
  });
  float corrections[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) corrections[slot] = correction(sum_v8[slot], subtracted_v8[slot], 1.442695f);
  for_each_part<Tile>([&](auto part) {
    for_each_slot<Tile>(part, [&](int slot) { sum_v11[slot] *= corrections[slot]; });
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 70 || column >= 24) continue;
    store_pair(g_along + 24 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
  __syncthreads();
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) {
    const int row = first_row + Tile::slot_row(slot);
    if (row >= 70 || !Tile::owns_rows()) continue;
    const float v8 = sum_v8[slot];
    const float v11 = sum_v11[slot];
    g_largest[row] = v8;
    g_statistic[row] = v8;
    g_statistic_2[row] = v11;
  }
}

// contraction kernel0 over outer [1] rows [70] columns [140], column ≤ row + 100
#include "chain.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0_across(
    const float* __restrict__ g_q,
    const float* __restrict__ g_key,
    const float* __restrict__ g_u,
    const float* __restrict__ g_v,
    const float* __restrict__ g_d,
    float* g_across,
    const float* g_statistic,
    const float* g_statistic_2)
{
  const int first_row = blockIdx.x * 64;
  using Tile = PlainTile<float, 64, 64>;
  LAUNCHED_SHARED(float, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<false, 48, 1>([&](int row, int k) {
    return g_key + 48 * row + k;
  });
  const auto b0 = copied<false, 48, 1>([&](int row, int k) {
    return g_q + 48 * row + k;
  });
  const auto a1 = copied<false, 48, 1>([&](int row, int k) {
    return g_v + 48 * row + k;
  });
  const auto b1 = copied<false, 48, 1>([&](int row, int k) {
    return g_u + 48 * row + k;
  });
  const auto with0 = copied<true, 1, 24>([&](int row, int k) {
    return g_d + 24 * k + row;
  });
  using Out0 = PlainTile<float, 64, 32>;
  Out0 out0;
  LAUNCHED_SHARED(float, values_f32, 40960, 4352);
  const int begin = clamped(first_row - 100, 70 + 1) / 64 * 64, end = 70;
  for (int first_column = begin; first_column < end; first_column += 64) {
    float column_v8[Tile::COLUMN_SLOTS];
    float column_v11[Tile::COLUMN_SLOTS];
    UNROLL
    for (int slot = 0; slot < Tile::COLUMN_SLOTS; slot++) {
      const int any = first_column + Tile::slot_column(slot);
      const int column = any < 70 ? any : 70 - 1;
      const float v8 = g_statistic[column];
      const float v11 = g_statistic_2[column];
      column_v8[slot] = v8;
      column_v11[slot] = v11;
    }
    Tile product0;
    multiply<4>(product0, panels, first_row, 140, a0, first_column, 70, b0, 0, 48);
    Tile product1;
    multiply<4>(product1, panels, first_row, 140, a1, first_column, 70, b1, 0, 48);
    fill_for_values<Out0, 40960, 64>((float*)panels, 24, with0, first_column, 70);
    float value0[Tile::COUNT] = {};
    for_each_part<Tile>([&](auto part) {
      if (first_row + Tile::ROWS <= 140 && first_column + 63 < 70 && first_column >= first_row + Tile::ROWS - 1 + -100) {
        UNROLL
        for (int at = 0; at < Tile::COUNT; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v8 = column_v8[Tile::column_slot(at)];
          const float v11 = column_v11[Tile::column_slot(at)];
          const float v3 = product0.sums[at];
          const float v13 = product1.sums[at];
          const int v0 = (int)(column);
          const int v1 = (int)(row);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 / v11;
          const float v14 = v12 * v13;
          value0[at] = v14;
        }
      }
      else {
        UNROLL
        for (int at = 0; at < Tile::COUNT; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          if (row >= 140 || column >= 70) continue;
          const int slot = Tile::slot(at);
          const float v8 = column_v8[Tile::column_slot(at)];
          const float v11 = column_v11[Tile::column_slot(at)];
          const float v3 = product0.sums[at];
          const float v13 = product1.sums[at];
          const int v0 = (int)(column);
          const int v1 = (int)(row);
          const int v2 = (int)((u32)v1 - (u32)v0);
          const float v4 = -float_of_bits(POSITIVE_INFINITY);
          const int v5 = 100;
          const bool v6 = v2 <= v5;
          const float v7 = v6 ? v3 : v4;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 / v11;
          const float v14 = v12 * v13;
          value0[at] = v14;
        }
      }
      UNROLL
      for (int at = 0; at < Tile::COUNT; at++) values_f32[Tile::row(at) * 68 + Tile::column(at)] = value0[at];
      multiply_values<64, 68>(out0, values_f32, (float*)panels, with0);
    });
  }
  UNROLL
  for (int at = 0; at < Out0::COUNT; at++) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 140 || column >= 24) continue;
    g_across[row + 140 * column] = out0.sums[at];
  }
}
