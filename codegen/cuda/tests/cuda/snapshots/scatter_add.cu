// map scatter_add.[9, 5].[2, 3].0.f32.i32/scatter_add over columns [2, 3, 5]
//   scatter_add in scatter_add.[9, 5].[2, 3].0.f32.i32
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_scatter_add_9_5_2_3_0_f32_i32_scatter_add_sort(
    const int* __restrict__ g_x0,
    int* g_order,
    int* g_ends)
{
  const int point = blockIdx.x * 8 + threadIdx.x / WARP;
  if (point >= 6) return;
  int position;
  {
    const int walked = point;
    const int v0 = g_x0[walked];
    position = clamped(v0, 9);
  }
  int below = 0, equal = 0, earlier = 0;
  for (int other = threadIdx.x % WARP; other < 6; other += WARP) {
    const int walked = other;
    const int v0 = g_x0[walked];
    const int found = clamped(v0, 9);
    below += found < position;
    equal += found == position;
    earlier += found == position && other < point;
  }
  below = reduce_warp<Sum>(below);
  equal = reduce_warp<Sum>(equal);
  earlier = reduce_warp<Sum>(earlier);
  if (threadIdx.x % WARP != 0) return;
  const int place = below + earlier;
  g_order[place] = point;
  g_ends[place] = earlier == 0 ? below + equal : 0;
}

// map scatter_add.[9, 5].[2, 3].0.f32.i32/scatter_add over columns [2, 3, 5]
//   scatter_add in scatter_add.[9, 5].[2, 3].0.f32.i32
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_scatter_add_9_5_2_3_0_f32_i32_scatter_add(
    const int* __restrict__ g_x0,
    const float* __restrict__ g_x1,
    float* g_scatter_add_9_5_2_3_0_f32_i32_scatter_add_2,
    const int* g_order,
    const int* g_ends)
{
  const int first = blockIdx.y;
  const int end = g_ends[first];
  const int element = blockIdx.x * 256 + threadIdx.x;
  if (end == 0 || element >= 5) return;
  int position;
  {
    const int walked = g_order[first];
    const int v0 = g_x0[walked];
    position = clamped(v0, 9);
  }
  float sum = 0.0f;
  for (int place = first; place < end; place++) {
    const int walked = g_order[place];
    const float v1 = g_x1[element + 5 * walked];
    sum = sum + v1;
  }
  g_scatter_add_9_5_2_3_0_f32_i32_scatter_add_2[element + 5 * position] = sum;
}
