// map scatter_add.[9, 5].[2, 3].0.f32.i32/scatter_add over columns [2, 3, 5]
//   scatter_add in scatter_add.[9, 5].[2, 3].0.f32.i32
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_scatter_add_9_5_2_3_0_f32_i32_scatter_add(
    const int* __restrict__ g_x0,
    const float* __restrict__ g_x1,
    float* g_scatter_add_9_5_2_3_0_f32_i32_scatter_add_2)
{
  const int block = blockIdx.x;
  const int point = block * 256 + threadIdx.x;
  if (point >= 5) return;
  const int owner = blockIdx.y;
  float sum = 0.0f;
  for (int walk0 = 0; walk0 < 6; walk0++) {
    const int v0 = g_x0[walk0];
    if (clamped(v0, 9) != owner) continue;
    const float v1 = g_x1[point + 5 * walk0];
    sum = sum + v1;
  }
  g_scatter_add_9_5_2_3_0_f32_i32_scatter_add_2[point + 5 * owner] = sum;
}
