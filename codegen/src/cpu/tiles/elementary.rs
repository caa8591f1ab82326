//! `exp`, `log`, `tanh` and `erf` on registers of `f32`, written once for AVX-512 and AVX2.
//!
//! Each reduces its argument to a short interval and evaluates a polynomial there. The coefficients are
//! minimax fits of this project (weighted least squares with Lawson's weights, in 40 digits), rounded to
//! `f32` one after another so that later ones make up for earlier roundings. NaN stays NaN everywhere.

use super::vector::{Vector, polynomial};
use std::f32::consts::LOG2_E;

/// ln 2 in two parts: n · `LN_2_HIGH` is exact for every exponent n of an `f32`.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// A function of one register, as a type: passed as a value it would be called, not inlined.
pub(super) trait Function {
    fn of<V: Vector>(x: V) -> V;
}

macro_rules! functions {
    ($($type:ident $function:ident),*) => {$(
        pub(super) struct $type;
        impl Function for $type {
            #[inline(always)]
            fn of<V: Vector>(x: V) -> V {
                $function(x)
            }
        }
    )*};
}
functions!(Exp exp, Log log, Tanh tanh, Erf erf);

/// log(erfc(x)) / x for `ERF_NEAR_END` ≤ x ≤ 4, highest power first.
pub(super) const ERF_FAR: [f32; 7] = [
    -1.188_750_9e-5,
    3.294_002_7e-4,
    -0.003_669_401_2,
    0.023_819_312,
    -0.106_303_66,
    -0.635_110_74,
    -1.128_658_5,
];
/// erf(x) / x - 1 by powers of x², below `ERF_NEAR_END`.
pub(super) const ERF_NEAR: [f32; 6] =
    [-5.945_756e-4, 0.004_985_118, -0.026_761_856, 0.112_817_146, -0.376_124_9, 0.128_379_15];
/// Where the two forms of erf meet.
pub(super) const ERF_NEAR_END: f32 = 0.9375;

/// exp(x) = 2ⁿ · exp(r) with n an integer and |r| ≤ ½ ln 2; exp(r) = 1 + r + r² · q(r).
#[inline(always)]
fn exp<V: Vector>(x: V) -> V {
    // Beyond these bounds the result is infinite or zero anyway. NaN passes, being the second operand.
    let x = V::max(x.all(-104.0), V::min(x.all(89.0), x));
    let n = V::round(x * x.all(LOG2_E));
    let r = V::fma(n, x.all(-LN_2_HIGH), x);
    let r = V::fma(n, x.all(-LN_2_LOW), r);
    let q = polynomial(r, [0.001_382_122_5, 0.008_368_667, 0.041_668_26, 0.166_665_21, 0.499_999_94]);
    V::scale(V::fma(q, r * r, r) + x.all(1.0), n)
}

/// log(x) = e · ln 2 + log(1 + f) with x = (1 + f) · 2ᵉ; log(1 + f) = f - f²/2 + f³ · q(f).
#[inline(always)]
fn log<V: Vector>(x: V) -> V {
    let (m, e) = x.split();
    let f = m - x.all(1.0);
    let square = f * f;
    let q = polynomial(
        f,
        [
            0.067_492_69,
            -0.116_700_985,
            0.118_835_49,
            -0.124_062_34,
            0.142_203_58,
            -0.166_679_89,
            0.200_020_72,
            -0.250_000_1,
            0.333_333_13,
        ],
    );
    // Small terms first.
    let sum = V::fma(e, x.all(LN_2_LOW), f * square * q);
    let sum = f + V::fma(square, x.all(-0.5), sum);
    let finite = V::fma(e, x.all(LN_2_HIGH), sum);
    // Infinity and NaN give themselves, zeros -∞, negative numbers NaN.
    let result = V::where_less(x, x.all(f32::INFINITY), finite, x);
    let result = V::where_less(x, x.all(f32::from_bits(1)), x.all(f32::NEG_INFINITY), result);
    V::where_less(x, x.all(0.0), x.all(f32::NAN), result)
}

/// tanh(x) = 1 - 2 / (exp(2x) + 1) far from zero; x + x³ · q(x²) near it, where that would cancel.
#[inline(always)]
fn tanh<V: Vector>(x: V) -> V {
    let (a, one, two) = (V::abs(x), x.all(1.0), x.all(2.0));
    let far = one - two / (exp(a + a) + one);
    let z = x * x;
    let q = polynomial(z, [-0.005_714_063_5, 0.020_648_062, -0.053_742_774, 0.133_314_83, -0.333_332_84]);
    V::with_sign(V::where_less(a, x.all(0.625), V::fma(q, z * a, a), far), x)
}

/// erf(x) = 1 - exp(x · q(x)), where x · q(x) is log(erfc(x)), far from zero; x + x · p(x²) near it.
#[inline(always)]
fn erf<V: Vector>(x: V) -> V {
    // erfc(4) = 1.5e-8 is less than half a unit in the last place of 1.
    let a = V::min(x.all(4.0), V::abs(x));
    let far = V::with_sign(x.all(1.0) - exp(a * polynomial(a, ERF_FAR)), x);
    V::where_less(a, x.all(ERF_NEAR_END), V::fma(polynomial(x * x, ERF_NEAR), x, x), far)
}
