// contraction kernel0 over outer [2] rows [256] columns [256], column ≤ row
#include "warpgroup_chain.cuh"

KERNEL __launch_bounds__(128, BLOCKS(3)) kernel_kernel0(
    const bf16* __restrict__ g_q,
    const bf16* __restrict__ g_k,
    const bf16* __restrict__ g_v,
    float* g_o,
    float* g_largest,
    float* g_sum)
{
  const int first_row = blockIdx.x * 128;
  const int batch = blockIdx.z;
  const auto a0 = copied<false, 64, 1>([&](int row, int k) {
    return g_q + 16384 * batch + 64 * row + k;
  });
  const auto b0 = copied<false, 64, 1>([&](int row, int k) {
    return g_k + 16384 * batch + 64 * row + k;
  });
  const auto with0 = copied<true, 1, 64>([&](int row, int k) {
    return g_v + 16384 * batch + 64 * k + row;
  });
  using Tile = WarpgroupStrip<bf16, 2, 64>;
  LAUNCHED_SHARED(bf16, panels, 0, 24576);
  fill_rows<Tile, 64>(panels + 16384, first_row, 256, 64, a0);
  using Out0 = WarpgroupStrip<bf16, 2, 64>;
  Out0 out0;
  const int begin = 0, end = clamped((first_row + 128 < 256 ? first_row + 128 : 256) + 0, 256 + 1);
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
    fill_deep<Tile, 64, 64>(stage + 0, first_column, 256, 0, 64, b0);
    fill_deep<Tile, 64, 64>(stage + 4096, 0, 64, first_column, 256, with0);
  };
  for_each_tile<2, 8192, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    Tile product0;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply_panels<64>(part, Tile::panel<Tile::ROWS, 64>(panels + 16384, a0), Tile::panel<64, 64>(stage + 0, b0));
      Tile::commit();
    });
    fill_next();
    u32 packed0[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      if (first_column + 63 <= first_row + 0) {
        float of_tile_v8[Tile::SLOTS];
        UNROLL
        for (int slot = 0; slot < Tile::SLOTS; slot++) of_tile_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v0 = product0.sums[at];
          const bool v5 = true;
          const float v6 = -float_of_bits(POSITIVE_INFINITY);
          const float v7 = v5 ? v0 : v6;
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
            const int slot = Tile::slot(at);
            const float v8 = finite_maximum(subtracted_v8[slot]);
            const float v11 = 1.0f;
            const float v0 = product0.sums[at];
            const bool v5 = true;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
            value0[at % 2] = v12;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
        }
      }
      else {
        float of_tile_v8[Tile::SLOTS];
        UNROLL
        for (int slot = 0; slot < Tile::SLOTS; slot++) of_tile_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v0 = product0.sums[at];
          const int v1 = (int)(row);
          const int v2 = (int)(column);
          const int v3 = 0;
          const int v4 = (int)((u32)v2 - (u32)v1);
          const bool v5 = v4 <= v3;
          const float v6 = -float_of_bits(POSITIVE_INFINITY);
          const float v7 = v5 ? v0 : v6;
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
            const int slot = Tile::slot(at);
            const float v8 = finite_maximum(subtracted_v8[slot]);
            const float v11 = 1.0f;
            const float v0 = product0.sums[at];
            const int v1 = (int)(row);
            const int v2 = (int)(column);
            const int v3 = 0;
            const int v4 = (int)((u32)v2 - (u32)v1);
            const bool v5 = v4 <= v3;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
            value0[at % 2] = v12;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
        }
      }
      Tile::begin();
      out0.multiply<64>(part, packed0, Tile::panel<64, 64>(stage + 4096, with0));
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
    if (row >= 256 || column >= 64) continue;
    store_pair(g_o + 16384 * batch + 64 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
  __syncthreads();
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) {
    const int row = first_row + Tile::slot_row(slot);
    if (row >= 256 || !Tile::owns_rows()) continue;
    const float v8 = sum_v8[slot];
    const float v11 = sum_v11[slot];
    g_largest[256 * batch + row] = v8;
    g_sum[256 * batch + row] = v11;
  }
}
