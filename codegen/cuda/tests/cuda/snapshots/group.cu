// 5 kernels at once
// map kernel0 over columns [300]
// map kernel1 over columns [7]
// map kernel3 over columns [513]
// map kernel4 over columns [300]
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_kernel0_and_4_more(
    const __grid_constant__ Pointers<16> pointers)
{
  int block = blockIdx.x;
  const auto kernel0 = [&](const float* __restrict__ g_w_0, const float* __restrict__ g_d_0, const float* __restrict__ g_rate, float* g_new0) {
    const int point = block * 256 + threadIdx.x;
    if (point >= 300) return;
    const float v0 = g_w_0[point];
    const float v1 = g_d_0[point];
    const float v2 = g_rate[0];
    const float v3 = v2 * v1;
    const float v4 = v0 - v3;
    g_new0[point] = v4;
  };
  const auto kernel1 = [&](const float* __restrict__ g_w_1, const float* __restrict__ g_d_1, const float* __restrict__ g_rate, float* g_new1) {
    const int point = block * 256 + threadIdx.x;
    if (point >= 7) return;
    const float v0 = g_w_1[point];
    const float v1 = g_d_1[point];
    const float v2 = g_rate[0];
    const float v3 = v2 * v1;
    const float v4 = v0 - v3;
    g_new1[point] = v4;
  };
  const auto kernel2 = [&](const float* __restrict__ g_w_3, const float* __restrict__ g_d_3, const float* __restrict__ g_rate, float* g_new3) {
    const int point = block * 256 + threadIdx.x;
    if (point >= 513) return;
    const float v0 = g_w_3[point];
    const float v1 = g_d_3[point];
    const float v2 = g_rate[0];
    const float v3 = v2 * v1;
    const float v4 = v0 - v3;
    g_new3[point] = v4;
  };
  const auto kernel3 = [&](const float* __restrict__ g_w_4, const float* __restrict__ g_d_4, const float* __restrict__ g_rate, float* g_new4) {
    const int point = block * 256 + threadIdx.x;
    if (point >= 300) return;
    const float v0 = g_w_4[point];
    const float v1 = g_d_4[point];
    const float v2 = tanhf(v1);
    const float v3 = g_rate[0];
    const float v4 = v3 * v2;
    const float v5 = v0 - v4;
    g_new4[point] = v5;
  };
  if (block < 4) {
    const int at = block / 2;
    block %= 2;
    return kernel0((const float*)pointers.at[0 + at], (const float*)pointers.at[2 + at], (const float*)pointers.at[4], (float*)pointers.at[5 + at]);
  }
  block -= 4;
  if (block < 1) {
    return kernel1((const float*)pointers.at[7], (const float*)pointers.at[8], (const float*)pointers.at[4], (float*)pointers.at[9]);
  }
  block -= 1;
  if (block < 3) {
    return kernel2((const float*)pointers.at[10], (const float*)pointers.at[11], (const float*)pointers.at[4], (float*)pointers.at[12]);
  }
  block -= 3;
  if (block < 2) {
    return kernel3((const float*)pointers.at[13], (const float*)pointers.at[14], (const float*)pointers.at[4], (float*)pointers.at[15]);
  }
}
