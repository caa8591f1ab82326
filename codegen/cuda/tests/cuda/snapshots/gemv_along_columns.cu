// contraction kernel0 over outer [1] rows [1] columns [20]
#include "gemv.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0(
    const float* __restrict__ g_bias,
    const float* __restrict__ g_factor,
    const float* __restrict__ g_a0,
    const float* __restrict__ g_b0,
    const float* __restrict__ g_a1,
    const float* __restrict__ g_b1,
    float* g_c)
{
  using Few = FewRows<1, 4, 128, 2, 8>;
  const int first_column = (blockIdx.x * Few::TEAMS + Few::team()) * 4;
  const int wanted = first_column + Few::column(), row = Few::row();
  const int column = smaller(wanted, 19);
  const float v5 = g_bias[column];
  const float v8 = g_factor[column];
  const auto a0 = in_memory<float, false, false>([&](int row, int k) {
    return g_a0 + k;
  });
  const auto b0 = in_memory<float, true, true>([&](int row, int k) {
    return g_b0 + row + 20 * k;
  });
  Few few0;
  few0.add<4, 300>(a0, first_column, 20, b0);
  const float sum0 = few0.sum();
  const auto a1 = in_memory<float, false, false>([&](int row, int k) {
    return g_a1 + k;
  });
  const auto b1 = in_memory<float, true, true>([&](int row, int k) {
    return g_b1 + row + 20 * k;
  });
  Few few1;
  few1.add<4, 300>(a1, first_column, 20, b1);
  const float sum1 = few1.sum();
  if (!Few::speaks() || wanted >= 20) return;
  const float v0 = sum0;
  const float v1 = sum1;
  const float v2 = v0 + v1;
  const float v3 = 1.0f;
  const float v4 = v2 * v3;
  const float v6 = v4 + v5;
  const float v7 = tanhf(v6);
  const float v9 = v7 * v8;
  g_c[column] = v9;
}
