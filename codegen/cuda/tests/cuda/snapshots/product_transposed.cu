// contraction kernel0 over outer [1] rows [40] columns [72]
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0(
    const bf16* __restrict__ g_a,
    const bf16* __restrict__ g_b,
    float* g_c)
{
  const int first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
  using Tile = TensorTile<bf16, 64, 64>;
  LAUNCHED_SHARED(bf16, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<true, 1, 40>([&](int row, int k) {
    return g_a + row + 40 * k;
  });
  const auto b0 = copied<true, 1, 72>([&](int row, int k) {
    return g_b + row + 72 * k;
  });
  Tile product0;
  multiply<4>(product0, panels, first_row, 40, a0, first_column, 72, b0, 0, 48);
  Pair<float> pair_0;
  UNROLL
  for (int at = 0; at < Tile::COUNT; at++) {
    const int row = first_row + product0.row(at), column = first_column + product0.column(at);
    if (column >= 72 || row >= 40) continue;
    const float v0 = product0.sums[at];
    const float v1 = erff(v0);
    const float v2 = v1 * v0;
    pair_0.put(at, false, &g_c[72 * row + column], v2);
  }
}
