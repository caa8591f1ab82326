// contraction kernel0 over outer [2] rows [256] columns [256], column ≤ row
#include "chain.cuh"

KERNEL __launch_bounds__(128, BLOCKS(2)) kernel_kernel0(
    const bf16* __restrict__ g_q,
    const bf16* __restrict__ g_k,
    const bf16* __restrict__ g_d,
    const bf16* __restrict__ g_v,
    float* g_dq,
    float* g_largest,
    float* g_sum,
    float* g_statistic,
    float* g_statistic_2,
    float* g_statistic_3)
{
  const int first_row = blockIdx.x * 128;
  const int batch = blockIdx.z;
  const auto a0 = copied<false, 64, 1>([&](int row, int k) {
    return g_q + 16384 * batch + 64 * row + k;
  });
  const auto b0 = copied<false, 64, 1>([&](int row, int k) {
    return g_k + 16384 * batch + 64 * row + k;
  });
  const auto a1 = copied<false, 64, 1>([&](int row, int k) {
    return g_d + 16384 * batch + 64 * row + k;
  });
  const auto b1 = copied<false, 64, 1>([&](int row, int k) {
    return g_v + 16384 * batch + 64 * row + k;
  });
  const auto with0 = copied<true, 1, 64>([&](int row, int k) {
    return g_k + 16384 * batch + 64 * k + row;
  });
  using Tile = StripTile<bf16, 4, 2, 32>;
  LAUNCHED_SHARED(bf16, panels, 0, 10240);
  fill_rows<Tile, 64>(panels + 0, first_row, 256, 64, a0);
  u32 rows0[32];
  Tile::load_rows<64>(rows0, Tile::panel<Tile::ROWS, 64>(panels + 0, a0));
  __syncthreads();
  fill_rows<Tile, 64>(panels + 0, first_row, 256, 64, a1);
  u32 rows1[32];
  Tile::load_rows<64>(rows1, Tile::panel<Tile::ROWS, 64>(panels + 0, a1));
  __syncthreads();
  using Out0 = StripTile<bf16, 4, 2, 64>;
  Out0 out0;
  const int begin = 0, end = clamped((first_row + 128 < 256 ? first_row + 128 : 256) + 0, 256 + 1);
  float sum_v11[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v11[slot] = 0.0f;
  float sum_v16[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v16[slot] = 0.0f;
  float sum_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  float subtracted_v8[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) subtracted_v8[slot] = -float_of_bits(POSITIVE_INFINITY);
  const auto fill0 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 32, 64>(stage + 0, first_column, 256, 0, 64, b0);
    fill_deep<Tile, 32, 64>(stage + 2560, first_column, 256, 0, 64, b1);
  };
  for_each_tile<2, 5120, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    fill_next();
    Tile product0;
    Tile product1;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply<64>(part, rows0, Tile::panel<32, 64>(stage + 0, b0));
      product1.multiply<64>(part, rows1, Tile::panel<32, 64>(stage + 2560, b1));
      Tile::commit();
    });
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      product1.keep(part);
      if (first_column + 31 <= first_row + 0) {
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
          for_each_slot<Tile>(part, [&](int slot) { sum_v16[slot] *= factors[slot]; });
        }
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v8 = finite_maximum(subtracted_v8[slot]);
          const float v11 = 1.0f;
          const float v0 = product0.sums[at];
          const float v14 = product1.sums[at];
          const bool v5 = true;
          const float v6 = -float_of_bits(POSITIVE_INFINITY);
          const float v7 = v5 ? v0 : v6;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 * reciprocal(v11);
          const float v15 = v12 * v14;
          sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
          sum_v16[slot] = Sum::combine(sum_v16[slot], v15);
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
          for_each_slot<Tile>(part, [&](int slot) { sum_v16[slot] *= factors[slot]; });
        }
        UNROLL
        for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          const int slot = Tile::slot(at);
          const float v8 = finite_maximum(subtracted_v8[slot]);
          const float v11 = 1.0f;
          const float v0 = product0.sums[at];
          const float v14 = product1.sums[at];
          const int v1 = (int)(row);
          const int v2 = (int)(column);
          const int v3 = 0;
          const int v4 = (int)((u32)v2 - (u32)v1);
          const bool v5 = v4 <= v3;
          const float v6 = -float_of_bits(POSITIVE_INFINITY);
          const float v7 = v5 ? v0 : v6;
          const float v10 = shifted_exp(v7, 1.0f, v8);
          const float v12 = v10 * reciprocal(v11);
          const float v15 = v12 * v14;
          sum_v11[slot] = Sum::combine(sum_v11[slot], v10);
          sum_v16[slot] = Sum::combine(sum_v16[slot], v15);
        }
      }
      Tile::begin();
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
    });
  });
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v11);
  });
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v16);
  });
  float inverse[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) inverse[slot] = 1.0f / sum_v11[slot];
  for_each_part<Tile>([&](auto part) {
    for_each_slot<Tile>(part, [&](int slot) { sum_v16[slot] *= inverse[slot]; });
  });
  float corrections[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) corrections[slot] = correction(sum_v8[slot], subtracted_v8[slot], 1.442695f);
  for_each_part<Tile>([&](auto part) {
    for_each_slot<Tile>(part, [&](int slot) { sum_v11[slot] *= corrections[slot]; });
  });
  const auto fill1 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 32, 64>(stage + 0, first_column, 256, 0, 64, b0);
    fill_deep<Tile, 32, 64>(stage + 2560, first_column, 256, 0, 64, b1);
  };
  for_each_tile<2, 5120, Tile>(panels, begin, end, fill1, [&](int first_column, bf16* stage, const auto& fill_next) {
    fill_next();
    Tile product0;
    Tile product1;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply<64>(part, rows0, Tile::panel<32, 64>(stage + 0, b0));
      product1.multiply<64>(part, rows1, Tile::panel<32, 64>(stage + 2560, b1));
      Tile::commit();
    });
    u32 packed0[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      product1.keep(part);
      if (first_column + 31 <= first_row + 0) {
        UNROLL
        for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
          float value0[2] = {};
          UNROLL
          for (int at = 2 * pair; at < 2 * pair + 2; at++) {
            const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
            const int slot = Tile::slot(at);
            const float v8 = sum_v8[slot];
            const float v11 = sum_v11[slot];
            const float v16 = sum_v16[slot];
            const float v0 = product0.sums[at];
            const float v14 = product1.sums[at];
            const bool v5 = true;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            const float v17 = v14 - v16;
            const float v18 = v12 * v17;
            value0[at % 2] = v18;
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
            const int slot = Tile::slot(at);
            const float v8 = sum_v8[slot];
            const float v11 = sum_v11[slot];
            const float v16 = sum_v16[slot];
            const float v0 = product0.sums[at];
            const float v14 = product1.sums[at];
            const int v1 = (int)(row);
            const int v2 = (int)(column);
            const int v3 = 0;
            const int v4 = (int)((u32)v2 - (u32)v1);
            const bool v5 = v4 <= v3;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            const float v17 = v14 - v16;
            const float v18 = v12 * v17;
            value0[at % 2] = v18;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
        }
      }
      Tile::begin();
      out0.multiply<32>(part, packed0, Tile::panel<64, 32>(stage + 0, with0));
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
      out0.keep(part);
    });
    Tile::keep_words(packed0);
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 256 || column >= 64) continue;
    store_pair(g_dq + 16384 * batch + 64 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
  __syncthreads();
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) {
    const int row = first_row + Tile::slot_row(slot);
    if (row >= 256 || !Tile::owns_rows()) continue;
    const float v8 = sum_v8[slot];
    const float v11 = sum_v11[slot];
    const float v16 = sum_v16[slot];
    g_largest[256 * batch + row] = v8;
    g_sum[256 * batch + row] = v11;
    g_statistic[256 * batch + row] = v8;
    g_statistic_2[256 * batch + row] = v11;
    g_statistic_3[256 * batch + row] = v16;
  }
}

// contraction kernel0 over outer [2] rows [256] columns [256], column ≤ row
#include "chain.cuh"

KERNEL __launch_bounds__(128, BLOCKS(2)) kernel_kernel0_across(
    const bf16* __restrict__ g_q,
    const bf16* __restrict__ g_k,
    const bf16* __restrict__ g_d,
    const bf16* __restrict__ g_v,
    float* g_dk,
    float* g_dv,
    const float* g_statistic,
    const float* g_statistic_2,
    const float* g_statistic_3)
{
  const int first_row = blockIdx.x * 128;
  const int batch = blockIdx.z;
  const auto a0 = copied<false, 64, 1>([&](int row, int k) {
    return g_k + 16384 * batch + 64 * row + k;
  });
  const auto b0 = copied<false, 64, 1>([&](int row, int k) {
    return g_q + 16384 * batch + 64 * row + k;
  });
  const auto a1 = copied<false, 64, 1>([&](int row, int k) {
    return g_v + 16384 * batch + 64 * row + k;
  });
  const auto b1 = copied<false, 64, 1>([&](int row, int k) {
    return g_d + 16384 * batch + 64 * row + k;
  });
  const auto with0 = copied<true, 1, 64>([&](int row, int k) {
    return g_q + 16384 * batch + 64 * k + row;
  });
  const auto with1 = copied<true, 1, 64>([&](int row, int k) {
    return g_d + 16384 * batch + 64 * k + row;
  });
  using Tile = StripTile<bf16, 4, 2, 32>;
  LAUNCHED_SHARED(bf16, panels, 0, 29056);
  fill_rows<Tile, 64>(panels + 10624, first_row, 256, 64, a0);
  fill_rows<Tile, 64>(panels + 19840, first_row, 256, 64, a1);
  using Out0 = StripTile<bf16, 4, 2, 64>;
  Out0 out0;
  using Out1 = StripTile<bf16, 4, 2, 64>;
  Out1 out1;
  const int begin = clamped(first_row + 0, 256 + 1) / 32 * 32, end = 256;
  const auto fill0 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 32, 64>(stage + 0, first_column, 256, 0, 64, b0);
    fill_deep<Tile, 32, 64>(stage + 2560, first_column, 256, 0, 64, b1);
    fill_vector<Tile::BLOCK, 32>((float*)(stage + 5120), g_statistic + 256 * batch + first_column, 256 - first_column);
    fill_vector<Tile::BLOCK, 32>((float*)(stage + 5184), g_statistic_2 + 256 * batch + first_column, 256 - first_column);
    fill_vector<Tile::BLOCK, 32>((float*)(stage + 5248), g_statistic_3 + 256 * batch + first_column, 256 - first_column);
  };
  for_each_tile<2, 5312, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    const float* of_columns_v8 = (const float*)(stage + 5120);
    const float* of_columns_v11 = (const float*)(stage + 5184);
    const float* of_columns_v15 = (const float*)(stage + 5248);
    fill_next();
    Tile product0;
    Tile product1;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply_panels<64>(part, Tile::panel<Tile::ROWS, 64>(panels + 10624, a0), Tile::panel<32, 64>(stage + 0, b0));
      product1.multiply_panels<64>(part, Tile::panel<Tile::ROWS, 64>(panels + 19840, a1), Tile::panel<32, 64>(stage + 2560, b1));
      Tile::commit();
    });
    u32 packed0[Tile::COUNT / 2];
    u32 packed1[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      product1.keep(part);
      if (first_column >= first_row + Tile::ROWS - 1 + 0) {
        UNROLL
        for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
          float value0[2] = {}, value1[2] = {};
          UNROLL
          for (int at = 2 * pair; at < 2 * pair + 2; at++) {
            const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
            const int slot = Tile::slot(at);
            const float v8 = of_columns_v8[Tile::column(at)];
            const float v11 = of_columns_v11[Tile::column(at)];
            const float v15 = of_columns_v15[Tile::column(at)];
            const float v0 = product0.sums[at];
            const float v13 = product1.sums[at];
            const bool v5 = true;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            const float v16 = v13 - v15;
            const float v17 = v12 * v16;
            value0[at % 2] = v12;
            value1[at % 2] = v17;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
          packed1[pair] = Tile::pack(value1[0], value1[1]);
        }
      }
      else {
        UNROLL
        for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
          float value0[2] = {}, value1[2] = {};
          UNROLL
          for (int at = 2 * pair; at < 2 * pair + 2; at++) {
            const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
            const int slot = Tile::slot(at);
            const float v8 = of_columns_v8[Tile::column(at)];
            const float v11 = of_columns_v11[Tile::column(at)];
            const float v15 = of_columns_v15[Tile::column(at)];
            const float v0 = product0.sums[at];
            const float v13 = product1.sums[at];
            const int v1 = (int)(column);
            const int v2 = (int)(row);
            const int v3 = 0;
            const int v4 = (int)((u32)v2 - (u32)v1);
            const bool v5 = v4 <= v3;
            const float v6 = -float_of_bits(POSITIVE_INFINITY);
            const float v7 = v5 ? v0 : v6;
            const float v10 = shifted_exp(v7, 1.0f, v8);
            const float v12 = v10 * reciprocal(v11);
            const float v16 = v13 - v15;
            const float v17 = v12 * v16;
            value0[at % 2] = v12;
            value1[at % 2] = v17;
          }
          packed0[pair] = Tile::pack(value0[0], value0[1]);
          packed1[pair] = Tile::pack(value1[0], value1[1]);
        }
      }
      Tile::begin();
      out1.multiply<32>(part, packed0, Tile::panel<64, 32>(stage + 2560, with1));
      out0.multiply<32>(part, packed1, Tile::panel<64, 32>(stage + 0, with0));
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
      out0.keep(part);
      out1.keep(part);
    });
    Tile::keep_words(packed0);
    Tile::keep_words(packed1);
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 256 || column >= 64) continue;
    store_pair(g_dk + 16384 * batch + 64 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
  UNROLL
  for (int at = 0; at < Out1::COUNT; at += 2) {
    const int row = first_row + Out1::row(at), column = Out1::column(at);
    if (row >= 256 || column >= 64) continue;
    store_pair(g_dv + 16384 * batch + 64 * row + column, out1.sums[at], out1.sums[at + 1]);
  }
}
