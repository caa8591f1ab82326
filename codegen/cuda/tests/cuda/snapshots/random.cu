// map random_bits.[].u32/random_bits over one point
//   random_bits in random_bits.[].u32
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_random_bits_u32_random_bits(
    const u32* __restrict__ g_x0,
    const u32* __restrict__ g_x1,
    u32* g_random_bits_u32_random_bits_2)
{
  const int block = blockIdx.x;
  const int point = block * 256 + threadIdx.x;
  if (point >= 1) return;
  const u32 v0 = g_x0[0];
  const u32 v1 = g_x1[0];
  const u32 v2 = random_bits(v0, v1, 2654435769u, (u64)(0));
  g_random_bits_u32_random_bits_2[0] = v2;
}
