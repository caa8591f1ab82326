//! Elementary functions one value at a time: `f64`, and the portable path of `f32`.

use super::elementary::{ERF, ERF_SCALE};
use std::f64::consts::FRAC_2_SQRT_PI;

/// `dst[i] = f(src[i])` for n values; `dst` may be `src`.
///
/// # Safety
/// Both pointers cover n values, and are equal or do not overlap.
#[inline(always)]
pub(super) unsafe fn map<T: Copy>(dst: *mut T, src: *const T, n: usize, f: impl Fn(T) -> T) {
    for i in 0..n {
        // SAFETY: the caller's contract; memory of any alignment.
        unsafe { dst.add(i).write_unaligned(f(src.add(i).read_unaligned())) };
    }
}

/// `dst[i] = f(x[i], y[i])` for n values; `dst` may be `x` or `y`.
///
/// # Safety
/// All pointers cover n values, and are equal or do not overlap.
#[inline(always)]
pub(super) unsafe fn map2<T: Copy>(dst: *mut T, x: *const T, y: *const T, n: usize, f: impl Fn(T, T) -> T) {
    for i in 0..n {
        // SAFETY: the caller's contract; memory of any alignment.
        unsafe { dst.add(i).write_unaligned(f(x.add(i).read_unaligned(), y.add(i).read_unaligned())) };
    }
}

/// The logistic function, 1 / (1 + e⁻ˣ).
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function, absolute error below 1e-15, and the same relative to small results.
///
/// Below 2.5 by the series erf(x) = 2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n + 1)!!, whose terms are all positive;
/// above by the continued fraction of erfc (Abramowitz and Stegun, Handbook of Mathematical Functions,
/// 7.1.6 and 7.1.14).
pub(super) fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.5 {
        let (mut sum, mut term, mut n) = (a, a, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        return (FRAC_2_SQRT_PI * (-a * a).exp() * sum).copysign(x);
    }
    // erfc(6) = 2e-17 disappears beside 1, and the fraction needs no infinite arguments. NaN stays.
    if a >= 6.0 {
        return 1f64.copysign(x);
    }
    let fraction = (1..60).rev().fold(a, |rest, n| a + 0.5 * f64::from(n) / rest);
    (1.0 - (-a * a).exp() * 0.5 * FRAC_2_SQRT_PI / fraction).copysign(x)
}

/// The error function of an `f32`: the polynomials of the vector form, evaluated in `f64`.
pub(super) fn erf_f32(x: f32) -> f32 {
    // NaN stays.
    let x = f64::from(x).clamp(-4.0, 4.0);
    let scaled = x.abs() * f64::from(ERF_SCALE);
    let number = scaled.round_ties_even();
    let coefficients = ERF.iter().map(|table| f64::from(f32::from_bits(table[number as usize])));
    let sum = coefficients.fold(0.0, |sum, c| sum * (scaled - number) + c);
    (x * sum) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_published_values() {
        // Abramowitz and Stegun table 7.1, and 30-digit arithmetic.
        let table = [
            (1e-10, 1.128_379_167_095_512_6e-10),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.4999, 0.999_592_830_099_666_5),
            (2.5, 0.999_593_047_982_555),
            (3.0, 0.999_977_909_503_001_4),
            (5.0, 0.999_999_999_998_462_5),
        ];
        for (x, expected) in table {
            for (x, expected) in [(x, expected), (-x, -expected)] {
                let error: f64 = (erf(x) - expected) / f64::abs(expected);
                assert!(error.abs() < 1e-15, "erf({x}) = {}, not {expected}", erf(x));
            }
        }
        assert_eq!((erf(0.0), erf(f64::INFINITY), erf(f64::NEG_INFINITY)), (0.0, 1.0, -1.0));
        assert!(erf(-0.0).is_sign_negative() && erf(f64::NAN).is_nan());
    }
}
