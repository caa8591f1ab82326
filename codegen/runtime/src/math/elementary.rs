//! `exp`, `log`, `tanh`, `sigmoid` and `erf` on registers of `f32`, written once for AVX-512, AVX2 and code that is generated.
//!
//! Each reduces its argument to a short interval and evaluates a polynomial there. The coefficients are
//! minimax fits of this project (weighted least squares with Lawson's weights, in 40 digits), rounded to
//! `f32` one after another so that later ones make up for earlier roundings. NaN stays NaN everywhere.

use super::vector::{Table, Vector, polynomial};
use std::f32::consts::LOG2_E;

/// ln 2 in two parts: n · `LN_2_HIGH` is exact for every exponent n of an `f32`.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// 2²³, from which on numbers of `f32` are integers.
const TO_INTEGER: f32 = 8_388_608.0;

/// A function of one register, as a type: passed as a value it would be called, not inlined.
pub trait Function {
    /// Its value.
    fn of<V: Vector>(x: V) -> V;
}

macro_rules! functions {
    ($($type:ident $function:ident),*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        #[derive(Debug)]
        pub struct $type;
        impl Function for $type {
            #[inline(always)]
            fn of<V: Vector>(x: V) -> V {
                $function(x)
            }
        }
    )*};
}
functions!(Exp exp, Log log, Tanh tanh, Sigmoid sigmoid, Erf erf);

/// Intervals of erf in a unit of its argument.
pub(super) const ERF_SCALE: f32 = 3.84;
/// erf(x) / x around n / `ERF_SCALE`, n = 0 … 15, by powers of what x · `ERF_SCALE` exceeds n by; highest power first.
#[expect(clippy::approx_constant, reason = "a fitted coefficient that comes close to 2/√π")]
pub(super) static ERF: [Table; 6] = table(&[
    [
        -0.000_949_151_93,
        -4.392_769e-5,
        -5.904_481_4e-5,
        -4.200_747e-5,
        -9.853_651e-6,
        1.405_015_1e-5,
        2.121_786_7e-5,
        1.563_822_7e-5,
        8.168_503e-6,
        2.332_745_5e-6,
        -2.705_483_8e-7,
        -1.045_963_7e-6,
        -1.074_344_5e-6,
        -7.124_753_6e-7,
        -5.715_770_6e-7,
        -1.653_784_1e-6,
    ],
    [
        0.001_697_681_7,
        0.000_394_011_18,
        0.000_118_305_055,
        -0.000_136_827_47,
        -0.000_270_540_3,
        -0.000_257_068_87,
        -0.000_164_778_28,
        -6.380_242e-5,
        -6.721_713_4e-6,
        1.997_867_4e-5,
        2.408_548_6e-5,
        2.008_145_7e-5,
        1.539_566_3e-5,
        9.955_877e-6,
        7.781_958e-6,
        3.908_881_4e-6,
    ],
    [
        -0.000_515_006_2,
        0.001_914_208_6,
        0.002_991_213_2,
        0.002_929_453_5,
        0.002_052_873,
        0.000_962_518_97,
        0.000_118_761_316,
        -0.000_329_201_66,
        -0.000_461_917_3,
        -0.000_426_883_75,
        -0.000_337_602_6,
        -0.000_250_373_76,
        -0.000_182_492_93,
        -0.000_133_930_98,
        -9.984_738e-5,
        -7.573_326e-5,
    ],
    [
        -0.025_415_685,
        -0.022_515_28,
        -0.014_877_535,
        -0.005_731_067_6,
        0.001_873_539_6,
        0.006_379_84,
        0.007_907_787,
        0.007_495_105_7,
        0.006_248_814,
        0.004_890_17,
        0.003_739_320_4,
        0.002_861_335_9,
        0.002_217_108_6,
        0.001_747_002_7,
        0.001_399_108_4,
        0.001_137_932_4,
    ],
    [
        -5.768_764_4e-6,
        -0.048_988_99,
        -0.086_925_95,
        -0.107_501_55,
        -0.110_915_04,
        -0.102_113_6,
        -0.087_404_57,
        -0.071_778_44,
        -0.057_968_77,
        -0.046_848,
        -0.038_263_142,
        -0.031_705_91,
        -0.026_661_007,
        -0.022_720_94,
        -0.019_591_697,
        -0.017_066_648,
    ],
    [
        1.128_379_2,
        1.103_382_1,
        1.034_142_4,
        0.935_394_94,
        0.824_915,
        0.717_650_3,
        0.622_639_7,
        0.543_119_97,
        0.478_456_2,
        0.426_275_04,
        0.383_911_43,
        0.349_073_1,
        0.319_996_83,
        0.295_384_1,
        0.274_285_64,
        0.255_999_98,
    ],
]);

/// Tables of these numbers.
const fn table<const N: usize>(numbers: &[[f32; 16]; N]) -> [Table; N] {
    let mut bits = [[0; 16]; N];
    let mut at = 0;
    while at < 16 * N {
        bits[at / 16][at % 16] = numbers[at / 16][at % 16].to_bits();
        at += 1;
    }
    bits
}

/// exp(x) = 2ⁿ · exp(r) with n an integer and |r| ≤ ½ ln 2; exp(r) = 1 + r + r² · q(r).
#[inline(always)]
fn exp<V: Vector>(x: V) -> V {
    // Beyond this bound the result is infinite anyway. NaN passes, being the second operand.
    let x = V::min(x.all(89.0), x);
    let n = V::round(x * x.all(LOG2_E));
    let r = V::fma(n, x.all(-LN_2_HIGH), x);
    let r = V::fma(n, x.all(-LN_2_LOW), r);
    let q = polynomial(r, [0.001_382_122_5, 0.008_368_667, 0.041_668_26, 0.166_665_21, 0.499_999_94]);
    // Less than half of the smallest number.
    V::scale_unless_less(V::fma(q, r * r, r) + x.all(1.0), n, x, x.all(-104.0))
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

/// 1 / (1 + e⁻ˣ); 0 where e⁻ˣ is infinite and the result subnormal.
#[inline(always)]
fn sigmoid<V: Vector>(x: V) -> V {
    let one = x.all(1.0);
    one / (exp(x.all(0.0) - x) + one)
}

/// erf(x) = x · p(|x|), with a polynomial for each of sixteen intervals up to 4; erfc(4) = 1.5e-8 is less than half a unit in
/// the last place of 1.
#[inline(always)]
fn erf<V: Vector>(x: V) -> V {
    // NaN passes, being the second operand.
    let x = V::max(x.all(-4.0), V::min(x.all(4.0), x));
    let (a, scale, shift) = (V::abs(x), x.all(ERF_SCALE), x.all(TO_INTEGER));
    // Adding 2²³ rounds to an integer, and leaves it in the lowest bits.
    let number = V::fma(a, scale, shift);
    let d = V::fma(a, scale, shift - number);
    let mut sum = V::lookup(number, &ERF[0]);
    for coefficients in &ERF[1..] {
        sum = V::fma(sum, d, V::lookup(number, coefficients));
    }
    x * sum
}
