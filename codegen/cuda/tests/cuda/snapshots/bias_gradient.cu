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
  const int unit = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x % 256;
  if (blockIdx.z == 0) {
    const float combined = combine_chunks<Sum, 256, 1, 19, 17>(g_partial + unit * 323, column, 0.0f);
    if (threadIdx.x < 256 && column < 17) {
      const float v3 = combined;
      g_rows_bias_gradient_reduce_3[column] = v3;
    }
  }
}
