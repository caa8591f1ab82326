// contraction kernel0 over rows [20] columns [72]
#include "chain.cuh"

KERNEL __launch_bounds__(128, BLOCKS(3)) kernel_kernel0(
    const bf16* __restrict__ g_a,
    const bf16* __restrict__ g_b,
    const bf16* __restrict__ g_w,
    float* g_product,
    float* g_sum,
    float* g_squares)
{
  const int first_row = blockIdx.x * 128;
  const auto a0 = copied<false, 16, 1>([&](int row, int k) {
    return g_a + 16 * row + k;
  });
  const auto b0 = copied<false, 16, 1>([&](int row, int k) {
    return g_b + 16 * row + k;
  });
  const auto with0 = copied<false, 72, 1>([&](int row, int k) {
    return g_w + k + 72 * row;
  });
  using Tile = StripTile<bf16, 4, 2, 64>;
  LAUNCHED_SHARED(bf16, panels, 0, 6144);
  fill_rows<Tile, 16>(panels + 0, first_row, 20, 16, a0);
  u32 rows0[8];
  Tile::load_rows<16>(rows0, Tile::panel<Tile::ROWS, 16>(panels + 0, a0));
  __syncthreads();
  using Out0 = StripTile<bf16, 4, 2, 16>;
  Out0 out0;
  const int begin = 0, end = 72;
  float sum_v2[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v2[slot] = 0.0f;
  float sum_v3[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v3[slot] = 0.0f;
  const auto fill0 = [&](int first_column, bf16* stage) {
    fill_deep<Tile, 64, 16>(stage + 0, first_column, 72, 0, 16, b0);
    fill_deep<Tile, 16, 64>(stage + 1536, 0, 8, first_column, 72, with0);
  };
  for_each_tile<2, 3072, Tile>(panels, begin, end, fill0, [&](int first_column, bf16* stage, const auto& fill_next) {
    fill_next();
    Tile product0;
    for_each_part<Tile>([&](auto part) {
      Tile::begin();
      product0.multiply<16>(part, rows0, Tile::panel<64, 16>(stage + 0, b0));
      Tile::commit();
    });
    u32 packed0[Tile::COUNT / 2];
    for_each_part<Tile>([&](auto part) {
      Tile::wait<Tile::PARTS - 1>();
      product0.keep(part);
      UNROLL
      for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++) {
        float value0[2] = {};
        UNROLL
        for (int at = 2 * pair; at < 2 * pair + 2; at++) {
          const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
          if (row >= 20 || column >= 72) continue;
          const int slot = Tile::slot(at);
          const float v0 = product0.sums[at];
          const float v1 = v0 * v0;
          sum_v2[slot] = Sum::combine(sum_v2[slot], v0);
          sum_v3[slot] = Sum::combine(sum_v3[slot], v1);
          value0[at % 2] = v0;
        }
        packed0[pair] = Tile::pack(value0[0], value0[1]);
      }
      Tile::begin();
      out0.multiply<64>(part, packed0, Tile::panel<16, 64>(stage + 1536, with0));
      Tile::commit();
    });
    Tile::wait<0>();
    for_each_part<Tile>([&](auto part) {
      out0.keep(part);
    });
    Tile::keep_words(packed0);
  });
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v2);
  });
  for_each_part<Tile>([&](auto part) {
    Tile::template combine<Sum>(part, sum_v3);
  });
  float inverse[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) inverse[slot] = 1.0f / sum_v2[slot];
  for_each_part<Tile>([&](auto part) {
  });
  UNROLL
  for (int at = 0; at < Out0::COUNT; at += 2) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 20 || column >= 8) continue;
    store_pair(g_product + 8 * row + column, out0.sums[at], out0.sums[at + 1]);
  }
  __syncthreads();
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) {
    const int row = first_row + Tile::slot_row(slot);
    if (row >= 20 || !Tile::owns_rows()) continue;
    const float v2 = sum_v2[slot];
    const float v3 = sum_v3[slot];
    g_sum[row] = v2;
    g_squares[row] = v3;
  }
}
