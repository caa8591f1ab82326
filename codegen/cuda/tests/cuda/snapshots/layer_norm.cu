// reduce rows.layer_norm/reduce+mul+…+mul over rows [6] columns [37]
//   reduce, mul, sub, mul, reduce, mul, add, sqrt, div, mul in rows.layer_norm
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_rows_layer_norm_reduce_mul_mul(
    const float* __restrict__ g_x0,
    const float* __restrict__ g_x1,
    float* g_rows_layer_norm_mul_20)
{
  const int row = blockIdx.x * 8 + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (row >= 6) return;
  float early_v0[2];
  float early_v12[2];
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int column = lane + i * 32;
    if (column >= 37) continue;
    const float v0 = g_x0[37 * row + column];
    const float v12 = g_x1[column];
    early_v0[i] = v0;
    early_v12[i] = v12;
  }
  float sum_v1 = 0.0f;
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int column = lane + i * 32;
    if (column >= 37) continue;
    const float v0 = early_v0[i];
    sum_v1 = Sum::combine(sum_v1, v0);
  }
  const float v1 = reduce_warp<Sum>(sum_v1);
  const float v2 = 0.027027028f;
  const float v3 = v1 * v2;
  float sum_v6 = 0.0f;
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int column = lane + i * 32;
    if (column >= 37) continue;
    const float v0 = early_v0[i];
    const float v4 = v0 - v3;
    const float v5 = v4 * v4;
    sum_v6 = Sum::combine(sum_v6, v5);
  }
  const float v6 = reduce_warp<Sum>(sum_v6);
  const float v7 = v6 * v2;
  const float v8 = 1e-5f;
  const float v9 = v7 + v8;
  const float v10 = sqrtf(v9);
  UNROLL
  for (int i = 0; i < 2; i++) {
    const int column = lane + i * 32;
    if (column >= 37) continue;
    const float v0 = early_v0[i];
    const float v12 = early_v12[i];
    const float v4 = v0 - v3;
    const float v11 = v4 / v10;
    const float v13 = v11 * v12;
    g_rows_layer_norm_mul_20[37 * row + column] = v13;
  }
}
