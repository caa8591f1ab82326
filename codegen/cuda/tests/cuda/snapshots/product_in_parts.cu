// contraction kernel0 over outer [2] rows [24] columns [40]
#include "tile.cuh"

KERNEL __launch_bounds__(256, BLOCKS(2)) kernel_kernel0_parts(
    const bf16* __restrict__ g_a,
    const bf16* __restrict__ g_b,
    float* g_partial)
{
  const int first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
  const int batch = blockIdx.z;
  const int o0 = batch / 2, o1 = batch % 2;
  using Tile = TensorTile<bf16, 64, 64>;
  LAUNCHED_SHARED(bf16, panels, 0, panel_count<Tile>(4));
  const auto a0 = copied<true, 1, 24>([&](int row, int k) {
    return g_a + 50400 * o1 + row + 24 * k;
  });
  const auto b0 = copied<true, 1, 40>([&](int row, int k) {
    return g_b + 84000 * o1 + row + 40 * k;
  });
  const int begin = o0 * 1088, rest = 2100 - begin;
  Tile product0;
  multiply<4>(product0, panels, first_row, 24, a0, first_column, 40, b0, begin, begin + (rest < 1088 ? rest : 1088));
  using Entries0 = Entries<Tile, 4>;
  LAUNCHED_SHARED(Entries0::Sum, sums0, 0, Entries0::STRIDE * Tile::ROWS);
  const Entries0 entries0(product0, sums0);
  ROLLED
  for (int done = 0; done < 4; done += 4) {
    UNROLL
    for (int i = 0; i < 4; i++) {
      const int row = first_row + Entries0::row(done + i), first = first_column + Entries0::column(done + i);
      if (first >= 40 || row >= 24) continue;
      const auto run_of_sums0 = *(const Run<Entries0::Sum, 4>::Numbers*)entries0.at(done + i);
      Run<float, 4> run_0;
      UNROLL
      for (int at = 0; at < 4; at++) {
        const int column = first + at;
        const float v0 = run_of_sums0.at[at];
        run_0.put(at, false, &g_partial[1920 * o0 + 960 * o1 + 40 * row + column], v0);
      }
    }
  }
}

// contraction kernel0 over outer [2] rows [24] columns [40]
#include "tile.cuh"

KERNEL __launch_bounds__(256, 1) kernel_kernel0(float* g_c, const float* g_partial) {
  const int block = blockIdx.x;
  const int point = (block * 256 + threadIdx.x) * 4;
  if (point >= 1920) return;
  using Part = Run<float, 4>::Numbers;
  Part sum = *(const Part*)&g_partial[point];
  UNROLL
  for (int part = 1; part < 2; part++) {
    const Part next = *(const Part*)&g_partial[part * 1920 + point];
    UNROLL
    for (int at = 0; at < 4; at++) sum.at[at] += next.at[at];
  }
  const int i0 = point / 960, i1 = point / 40 % 24, i2 = point % 40;
  Run<float, 4> run_0;
  UNROLL
  for (int at = 0; at < 4; at++) {
    const int along = i2 + at;
    const float v0 = sum.at[at];
    const float v1 = erff(v0);
    const float v2 = v1 * v0;
    run_0.put(at, false, &g_c[960 * i0 + 40 * i1 + along], v2);
  }
}
