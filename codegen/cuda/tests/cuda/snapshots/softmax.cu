// reduce rows.softmax.[7, 13]/reduce+sub+…+div over rows [7] columns [13]
//   reduce, sub, exp, reduce, div in rows.softmax.[7, 13]
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_rows_softmax_7_13_reduce_sub_div(
    const float* __restrict__ g_x0,
    float* g_rows_softmax_7_13_div_7)
{
  const int row = blockIdx.x * 8 + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (row >= 7) return;
  float early_v0[1];
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 13) continue;
    const float v0 = g_x0[13 * row + column];
    early_v0[i] = v0;
  }
  float sum_v1 = -float_of_bits(POSITIVE_INFINITY);
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 13) continue;
    const float v0 = early_v0[i];
    sum_v1 = Max::combine(sum_v1, v0);
  }
  const float v1 = reduce_warp<Max>(sum_v1);
  float sum_v4 = 0.0f;
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 13) continue;
    const float v0 = early_v0[i];
    const float v2 = v0 - v1;
    const float v3 = expf(v2);
    sum_v4 = Sum::combine(sum_v4, v3);
  }
  const float v4 = reduce_warp<Sum>(sum_v4);
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 13) continue;
    const float v0 = early_v0[i];
    const float v2 = v0 - v1;
    const float v3 = expf(v2);
    const float v5 = v3 / v4;
    g_rows_softmax_7_13_div_7[13 * row + column] = v5;
  }
}
