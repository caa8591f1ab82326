// contraction kernel0 over outer [2] rows [3] columns [40]
#include "gemv.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0(
    const float* __restrict__ g_bias,
    const float* __restrict__ g_factor,
    const float* __restrict__ g_a0,
    const float* __restrict__ g_b0,
    float* g_c)
{
  using Few = FewRows<3, 1, 16, 1, 8>;
  const int first_column = (blockIdx.x * Few::TEAMS + Few::team()) * 1;
  const int wanted = first_column + Few::column(), row = Few::row();
  const int column = smaller(wanted, 39);
  const int batch = blockIdx.z;
  const float v3 = g_bias[column];
  const float v6 = g_factor[120 * batch + 40 * row + column];
  const auto a0 = in_memory<float, false, true>([&](int row, int k) {
    return g_a0 + 180 * batch + 60 * row + k;
  });
  const auto b0 = in_memory<float, false, true>([&](int row, int k) {
    return g_b0 + 2400 * batch + 60 * row + k;
  });
  Few few0;
  few0.add<4, 60>(a0, first_column, 40, b0);
  const float sum0 = few0.sum();
  if (!Few::speaks() || wanted >= 40) return;
  const float v0 = sum0;
  const float v1 = 1.0f;
  const float v2 = v0 * v1;
  const float v4 = v2 + v3;
  const float v5 = tanhf(v4);
  const float v7 = v5 * v6;
  g_c[120 * batch + 40 * row + column] = v7;
}
