// map tanh.[7, 13].f32/tanh over columns [7, 13]
//   tanh in tanh.[7, 13].f32
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_tanh_7_13_f32_tanh(
    const float* __restrict__ g_x0,
    float* g_tanh_7_13_f32_tanh_1)
{
  const int block = blockIdx.x;
  const int point = block * 256 + threadIdx.x;
  if (point >= 91) return;
  const float v0 = g_x0[point];
  const float v1 = tanhf(v0);
  g_tanh_7_13_f32_tanh_1[point] = v1;
}
