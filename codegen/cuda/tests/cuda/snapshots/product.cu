// contraction kernel0 over outer [1] rows [33] columns [20]
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0(
    const float* __restrict__ g_a,
    const float* __restrict__ g_b,
    float* g_c)
{
  const int first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
  using Tile = PlainTile<float, 64, 64>;
  LAUNCHED_SHARED(float, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<false, 112, 1>([&](int row, int k) {
    return g_a + 112 * row + k;
  });
  const auto b0 = copied<false, 112, 1>([&](int row, int k) {
    return g_b + 112 * row + k;
  });
  Tile product0;
  multiply<4>(product0, panels, first_row, 33, a0, first_column, 20, b0, 0, 112);
  UNROLL
  for (int at = 0; at < Tile::COUNT; at++) {
    const int row = first_row + product0.row(at), column = first_column + product0.column(at);
    if (column >= 20 || row >= 33) continue;
    const float v0 = product0.sums[at];
    const float v1 = erff(v0);
    const float v2 = v1 * v0;
    g_c[20 * row + column] = v2;
  }
}
