// contraction kernel0 over outer [1] rows [70] columns [140], column ≤ row + 100
#include "chain.cuh"

KERNEL __launch_bounds__(128, BLOCKS(3)) kernel_kernel0(
    const bf16* __restrict__ g_q,
    const bf16* __restrict__ g_key,
    const bf16* __restrict__ g_u,
    const bf16* __restrict__ g_v,
    const bf16* __restrict__ g_w,
    bf16* g_along,
    float* g_largest,
    float* g_statistic,
    float* g_statistic_2)
{
  const int first_row = blockIdx.x * 128;
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
  using Tile = StripTile<bf16, 4, 2, 32>;
  LAUNCHED_SHARED(bf16, panels, 0, 10240);
  fill_rows<Tile, 48>(panels + 0, first_row, 70, 48, a0);
  u32 rows0[24];
  Tile::load_rows<48>(rows0, Tile::panel<Tile::ROWS, 48>(panels + 0, a0));
  __syncthreads();
  fill_rows<Tile, 48>(panels + 0, first_row, 70, 48, a1);
  u32 rows1[24];
  Tile::load_rows<48>(rows1, Tile::panel<Tile::ROWS, 48>(panels + 0, a1));
  __syncthreads();
  using Out0 = StripTile<bf16, 4, 2, 32>;
  Out0 out0;
  const int begin = 0, end = clamped((first_row + 128 < 70 ? first_row + 128 : 70) + 100, 140 + 1);
  float sum_v11[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v11[slot] = 0.0f;
  float sum_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  float subtracted_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) subtracted_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  const auto fill0 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 32, 48>(stage + 0, first_column, 140, 0, 48, b0);
    fill_deep<Tile, 32, 48>(stage + 1920, first_column, 140, 0, 48, b1);
    fill_deep<Tile, 32, 32>(stage + 3840, 0, 24, first_column, 140, with0);
  };
  for_each_tile<2, 5120, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    fill_next();
    Tile product0;
    Tile product1;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply<48>(part, rows0, Tile::panel<32, 48>(stage + 0, b0));
      product1.multiply<48>(part, rows1, Tile::panel<32, 48>(stage + 1920, b1));
      Tile::commit();
    });
    u32 packed0[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      product1.keep(part);
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
      for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
        float value0[2] = {};
        UNROLL
        for (int at = 2 * pair; at < 2 * pair + 2; at++) {
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
          const float v12 = v10 * reciprocal(v11);
          const float v14 = v12 * v13;
          sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
          value0[at % 2] = v14;
        }
        packed0[pair] = Tile::pack(value0[0], value0[1]);
      }
      Tile::begin();
      out0.multiply<32>(part, packed0, Tile::panel<32, 32>(stage + 3840, with0));
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
      out0.keep(part);
    });
    Tile::keep_words(packed0);
  });
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

KERNEL __launch_bounds__(128, BLOCKS(3)) kernel_kernel0_across(
    const bf16* __restrict__ g_q,
    const bf16* __restrict__ g_key,
    const bf16* __restrict__ g_u,
    const bf16* __restrict__ g_v,
    const bf16* __restrict__ g_d,
    float* g_across,
    const float* g_statistic,
    const float* g_statistic_2)
{
  const int first_row = blockIdx.x * 128;
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
  using Tile = StripTile<bf16, 4, 2, 32>;
  LAUNCHED_SHARED(bf16, panels, 0, 10240);
  fill_rows<Tile, 48>(panels + 0, first_row, 140, 48, a0);
  u32 rows0[24];
  Tile::load_rows<48>(rows0, Tile::panel<Tile::ROWS, 48>(panels + 0, a0));
  __syncthreads();
  fill_rows<Tile, 48>(panels + 0, first_row, 140, 48, a1);
  u32 rows1[24];
  Tile::load_rows<48>(rows1, Tile::panel<Tile::ROWS, 48>(panels + 0, a1));
  __syncthreads();
  using Out0 = StripTile<bf16, 4, 2, 32>;
  Out0 out0;
  const int begin = clamped(first_row - 100, 70 + 1) / 32 * 32, end = 70;
  const auto fill0 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 32, 48>(stage + 0, first_column, 70, 0, 48, b0);
    fill_deep<Tile, 32, 48>(stage + 1920, first_column, 70, 0, 48, b1);
    fill_deep<Tile, 32, 32>(stage + 3840, 0, 24, first_column, 70, with0);
  };
  for_each_tile<2, 5120, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    fill_next();
    Tile product0;
    Tile product1;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply<48>(part, rows0, Tile::panel<32, 48>(stage + 0, b0));
      product1.multiply<48>(part, rows1, Tile::panel<32, 48>(stage + 1920, b1));
      Tile::commit();
    });
    u32 packed0[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      product1.keep(part);
      if (first_row + Tile::ROWS <= 140 && first_column + 31 < 70 && first_column >= first_row + Tile::ROWS - 1 + -100) {
        UNROLL
        for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
          float value0[2] = {};
          UNROLL
          for (int at = 2 * pair; at < 2 * pair + 2; at++) {
            const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
            const int slot = Tile::slot(at);
            const float v3 = product0.sums[at];
            const float v13 = product1.sums[at];
            const int v0 = (int)(column);
            const int v1 = (int)(row);
            const int v2 = (int)((u32)v1 - (u32)v0);
            const float v4 = -float_of_bits(POSITIVE_INFINITY);
            const int v5 = 100;
            const bool v6 = v2 <= v5;
            const float v7 = v6 ? v3 : v4;
            const float v8 = g_statistic[column];
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v11 = g_statistic_2[column];
            const float v12 = v10 * reciprocal(v11);
            const float v14 = v12 * v13;
            value0[at % 2] = v14;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
        }
      }
      else {
        UNROLL
        for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
          float value0[2] = {};
          UNROLL
          for (int at = 2 * pair; at < 2 * pair + 2; at++) {
            const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
            if (row >= 140 || column >= 70) continue;
            const int slot = Tile::slot(at);
            const float v3 = product0.sums[at];
            const float v13 = product1.sums[at];
            const int v0 = (int)(column);
            const int v1 = (int)(row);
            const int v2 = (int)((u32)v1 - (u32)v0);
            const float v4 = -float_of_bits(POSITIVE_INFINITY);
            const int v5 = 100;
            const bool v6 = v2 <= v5;
            const float v7 = v6 ? v3 : v4;
            const float v8 = g_statistic[column];
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v11 = g_statistic_2[column];
            const float v12 = v10 * reciprocal(v11);
            const float v14 = v12 * v13;
            value0[at % 2] = v14;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
        }
      }
      Tile::begin();
      out0.multiply<32>(part, packed0, Tile::panel<32, 32>(stage + 3840, with0));
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
      out0.keep(part);
    });
    Tile::keep_words(packed0);
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at++) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 140 || column >= 24) continue;
    g_across[row + 140 * column] = out0.sums[at];
  }
}
