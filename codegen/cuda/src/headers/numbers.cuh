// Numbers as kernels keep them: bf16 and f16 are rounded floats in registers and two bytes in memory, truth values are
// one byte. Every function has one definition for device and host.
#pragma once
#include "seam.cuh"

struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

constexpr u32 POSITIVE_INFINITY = 0x7f800000u;
constexpr u32 NOT_A_NUMBER = 0x7fc00000u;

// From memory to registers.
DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE int widen(int x) { return x; }
DEVICE u32 widen(u32 x) { return x; }
DEVICE int widen(i8 x) { return x; }
DEVICE bool widen(u8 x) { return x != 0; }
DEVICE float widen(bf16 x) { return float_of_bits((u32)x.bits << 16); }
DEVICE float widen(f16 x) { return half_value(x.bits); }

// From registers to memory.
template <class T, class V> struct Narrow {
  DEVICE static T of(V x) { return (T)x; }
};
template <> struct Narrow<bf16, float> {
  DEVICE static bf16 of(float x) { return bf16{bf16_bits(x)}; }
};
template <> struct Narrow<f16, float> {
  DEVICE static f16 of(float x) { return f16{half_bits(x)}; }
};
template <class T, class V> DEVICE T narrow(V x) { return Narrow<T, V>::of(x); }

// The nearest float that the type has.
template <class T> DEVICE float round_to(float x) { return widen(narrow<T>(x)); }

// The larger and the smaller; NaN if either is.
template <class T> DEVICE T larger(T x, T y) { return x > y ? x : y >= x ? y : x + y; }
DEVICE float larger(float x, float y) { return maximum(x, y); }
template <class T> DEVICE T smaller(T x, T y) { return x < y ? x : y <= x ? y : x + y; }

// −1, 0 or 1; NaN of NaN.
template <class T> DEVICE T sign_of(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }

// Shifts by 32 and more give 0.
DEVICE u32 shift_left(u32 x, u32 by) { return by < 32 ? x << by : 0; }
DEVICE u32 shift_right(u32 x, u32 by) { return by < 32 ? x >> by : 0; }

// Truncated and saturated; 0 of NaN.
template <class T> DEVICE int to_i32(T x) {
  return x != x ? 0 : x >= T(2147483648.0) ? 2147483647 : x <= T(-2147483648.0) ? -2147483647 - 1 : (int)x;
}
template <class T> DEVICE u32 to_u32(T x) { return !(x > T(0)) ? 0 : x >= T(4294967296.0) ? 4294967295u : (u32)x; }

// Saturated.
DEVICE int to_i8(int x) { return x > 127 ? 127 : x < -128 ? -128 : x; }
DEVICE int to_i8(u32 x) { return x > 127u ? 127 : (int)x; }
DEVICE int to_i8(bool x) { return x; }

// An index within 0..limit.
DEVICE int clamped(int index, int limit) { return index < 0 ? 0 : index < limit ? index : limit - 1; }
DEVICE int clamped(u32 index, int limit) { return index < (u32)limit ? (int)index : limit - 1; }

DEVICE bool within(i64 index, i64 limit) { return (u64)index < (u64)limit; }

// The word of one element of a random node: Philox4x32-10 with the key (seed, node) and the counter
// (element / 4, step).
DEVICE u32 random_bits(u32 seed, u32 step, u32 node, u64 element) {
  const u64 block = element / 4;
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = step, c3 = 0, key0 = seed, key1 = node;
  UNROLL
  for (int round = 0; round < 10; round++) {
    const u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(p1 >> 32) ^ c1 ^ key0;
    c2 = (u32)(p0 >> 32) ^ c3 ^ key1;
    c1 = (u32)p1;
    c3 = (u32)p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const u32 word = (u32)(element % 4);
  return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}
