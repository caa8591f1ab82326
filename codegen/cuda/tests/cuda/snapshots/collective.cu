// collective all_reduce among 4 ranks
//   all_reduce
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_sum_of_parts(const bf16* __restrict__ g_parts, bf16* __restrict__ g_sum) {
  const int point = blockIdx.x * 256 + threadIdx.x;
  if (point >= 12) return;
  float sum = 0.0f;
  for (int part = 0; part < 4; part++) sum += widen(g_parts[part * 32ll + point]);
  g_sum[point] = narrow<bf16>(sum);
}
