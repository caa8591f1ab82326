// contraction kernel0 over rows [20] columns [72]
#include "tile.cuh"

KERNEL __launch_bounds__(256, TWO_BLOCKS) kernel_kernel0(
    const bf16* __restrict__ g_a,
    const bf16* __restrict__ g_b,
    const bf16* __restrict__ g_w,
    float* g_product,
    float* g_sum,
    float* g_squares)
{
  const int first_row = blockIdx.x * 64;
  using Tile = TensorTile<bf16, 64, 64>;
  SHARED(bf16, panels, panel_count<Tile>(2));
  const auto a0 = copied<false>([&](int row, int k) {
    return g_a + 16 * row + k;
  });
  const auto b0 = copied<false>([&](int row, int k) {
    return g_b + 16 * row + k;
  });
  const auto with0 = copied<false>([&](int row, int k) {
    return g_w + k + 72 * row;
  });
  const int begin = 0, end = 72;
  float sum_v3[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v3[slot] = 0.0f;
  float sum_v4[Tile::SLOTS];
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) sum_v4[slot] = 0.0f;
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<2>(product0, panels, first_row, 20, a0, first_column, 72, b0, 0, 16);
    UNROLL
    for (int at = 0; at < Tile::COUNT; at++) {
      const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
      if (row >= 20 || column >= 72) continue;
      const float v0 = product0.sums[at];
      const float v2 = v0 * v0;
      sum_v3[Tile::slot(at)] = Sum::combine(sum_v3[Tile::slot(at)], v0);
      sum_v4[Tile::slot(at)] = Sum::combine(sum_v4[Tile::slot(at)], v2);
    }
  }
  Tile::combine<Sum>(sum_v3);
  Tile::combine<Sum>(sum_v4);
  using Out0 = TensorTile<bf16, 64, 32>;
  Out0 out0;
  SHARED(bf16, values_bf16, 4608);
  for (int first_column = begin; first_column < end; first_column += 64) {
    Tile product0;
    multiply<2>(product0, panels, first_row, 20, a0, first_column, 72, b0, 0, 16);
    UNROLL
    for (int at = 0; at < Tile::COUNT; at++) {
      const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);
      values_bf16[Tile::row(at) * 72 + Tile::column(at)] = bf16{};
      if (row >= 20 || column >= 72) continue;
      const float v0 = product0.sums[at];
      const float v1 = round_to<bf16>((float)v0);
      values_bf16[Tile::row(at) * 72 + Tile::column(at)] = narrow<bf16>(v1);
    }
    multiply_values<64, 72>(out0, values_bf16, (bf16*)panels, 8, with0, first_column, 72);
  }
  UNROLL
  for (int at = 0; at < Out0::COUNT; at++) {
    const int row = first_row + Out0::row(at), column = Out0::column(at);
    if (row >= 20 || column >= 8) continue;
    g_product[8 * row + column] = out0.sums[at];
  }
  __syncthreads();
  UNROLL
  for (int slot = 0; slot < Tile::SLOTS; slot++) {
    const int row = first_row + Tile::slot_row(slot);
    if (row >= 20 || !Tile::owns_rows()) continue;
    const float v3 = sum_v3[slot];
    const float v4 = sum_v4[slot];
    g_sum[row] = v3;
    g_squares[row] = v4;
  }
}
