// reduce rows.bias_gradient/tanh+mul+reduce over rows [3, 50] columns [17]
//   tanh, mul, reduce in rows.bias_gradient
#include "tile.cuh"

KERNEL __launch_bounds__(32, BLOCKS(2)) kernel_rows_bias_gradient_tanh_mul_reduce_chunks(
    const float* __restrict__ g_x0,
    float* g_partial)
{
  const int unit = blockIdx.y, chunk = blockIdx.x;
  float sum_v2[1];
  UNROLL
  for (int i = 0; i < 1; i++) sum_v2[i] = 0.0f;
  const int end = chunk * 8 + 8 < 150 ? chunk * 8 + 8 : 150;
  for (int first_row = chunk * 8; first_row < end; first_row += 4) {
    float early_v0[4];
    UNROLL
    for (int next = 0; next < 4; next++) {
      const int row = first_row + next;
      if (row >= end) continue;
      UNROLL
      for (int i = 0; i < 1; i++) {
        const int column = threadIdx.x + i * 32;
        if (column >= 17) continue;
        const float v0 = g_x0[17 * row + column];
        early_v0[next * 1 + i] = v0;
      }
    }
    UNROLL
    for (int next = 0; next < 4; next++) {
      const int row = first_row + next;
      if (row >= end) continue;
      UNROLL
      for (int i = 0; i < 1; i++) {
        const int column = threadIdx.x + i * 32;
        if (column >= 17) continue;
        const float v0 = early_v0[next * 1 + i];
        const float v1 = tanhf(v0);
        const float v2 = v1 * v1;
        sum_v2[i] = Sum::combine(sum_v2[i], v2);
      }
    }
  }
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = threadIdx.x + i * 32;
    if (column < 17) g_partial[(unit * 19 + chunk) * 17 + column] = sum_v2[i];
  }
}

// reduce rows.bias_gradient/tanh+mul+reduce over rows [3, 50] columns [17]
//   tanh, mul, reduce in rows.bias_gradient
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_rows_bias_gradient_tanh_mul_reduce_combine(
    float* g_rows_bias_gradient_reduce_3,
    const float* g_partial)
{
  const int row = blockIdx.x * 8 + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (row >= 17) return;
  float early_v0[1];
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 19) continue;
    const float v0 = g_partial[row + 17 * column];
    early_v0[i] = v0;
  }
  float sum_v1 = 0.0f;
  UNROLL
  for (int i = 0; i < 1; i++) {
    const int column = lane + i * 32;
    if (column >= 19) continue;
    const float v0 = early_v0[i];
    sum_v1 = Sum::combine(sum_v1, v0);
  }
  const float v1 = reduce_warp<Sum>(sum_v1);
  __syncwarp();
  if (lane == 0) {
    g_rows_bias_gradient_reduce_3[row] = v1;
  }
}
