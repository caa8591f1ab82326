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

// tanh x = ±(1 − 2 / (e^2|x| + 1)), with an absolute error of 4e-7 at most, by the errors of its parts, and less where |x| is large: enough
// for what is added to 1.
DEVICE float tanh_beside_one(float x) {
  const float size = 1.0f - 2.0f * reciprocal(1.0f + fast_exp2(fabsf(x) * 2.8853901f));
  return x < 0.0f ? -size : size;
}

// 0 where e to the power of −x is infinite. What is inverted is 1 at least, so the quick reciprocal, off by one unit in the last place, has no
// case that it gets wrong; a division takes registers that products of tiles need.
DEVICE float sigmoid(float x) { return reciprocal(1.0f + expf(-x)); }
DEVICE double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

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

// 32 zeros, then the binary digits of 2/π.
CONSTANT u32 TWO_OVER_PI[9] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                               0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};

// An angle as quarter turns, of which the last two bits count, and the rest, π/4 at most.
struct Angle {
  u32 quarters;
  float rest;
};

// Argument reduction (Payne and Hanek, 1983): the angle's 24 digits times 96 digits of 2/π, from the first one that is no multiple of a
// whole turn on; 64 digits of the product are kept. CUDA's own function does the same with an array in local memory.
DEVICE Angle angle_of(float x) {
  const u32 bits = bits_of_float(x), size = bits & 0x7fffffffu;
  if (size < 0x3f490fdbu) return Angle{0, x};
  if (size >= POSITIVE_INFINITY) return Angle{0, float_of_bits(NOT_A_NUMBER)};
  const u32 mantissa = (size & 0x7fffffu) | 0x800000u, start = (size >> 23) - 120, word = start / 32, shift = start % 32;
  u32 digits[3];
  UNROLL
  for (int i = 0; i < 3; i++) {
    const u64 both = (u64)TWO_OVER_PI[word + i] << 32 | TWO_OVER_PI[word + i + 1];
    digits[i] = (u32)(both >> (32 - shift));
  }
  const u64 low = (u64)mantissa * digits[2];
  const u64 middle = (u64)mantissa * digits[1] + (low >> 32);
  const u64 turns = (u64)(mantissa * digits[0] + (u32)(middle >> 32)) << 32 | (u32)middle;
  // To the nearest quarter.
  const u64 part = turns << 2;
  const u32 quarters = (u32)(turns >> 62) + (u32)(part >> 63);
  const float rest = (float)((double)(i64)part * 8.515303950216386e-20);
  return bits >> 31 ? Angle{0u - quarters, -rest} : Angle{quarters, rest};
}

// By Taylor's series; its next term is below half a unit of the last place.
DEVICE float sine_of(Angle angle) {
  const float x = angle.rest, square = x * x;
  const float sine = x + x * square * (-1.6666667e-1f + square * (8.3333333e-3f + square * (-1.9841270e-4f + square * 2.7557319e-6f)));
  const float series = 4.1666667e-2f + square * (-1.3888889e-3f + square * (2.4801587e-5f - square * 2.7557319e-7f));
  const float cosine = 1.0f - 0.5f * square + square * square * series;
  const float value = angle.quarters & 1u ? cosine : sine;
  return angle.quarters & 2u ? -value : value;
}

DEVICE float sine(float x) { return sine_of(angle_of(x)); }
DEVICE float cosine(float x) {
  const Angle angle = angle_of(x);
  return sine_of(Angle{angle.quarters + 1u, angle.rest});
}
DEVICE double sine(double x) { return sin(x); }
DEVICE double cosine(double x) { return cos(x); }
