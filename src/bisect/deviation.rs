//! How far results are from what they should be.

use kernfusion_ir::evaluate::Array;
use std::collections::BTreeMap;

/// Magnitudes below this count as this: what is left of numbers that cancel has no digits to agree in.
const LEAST: f64 = 1e-6;

/// The largest distance among several results.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// As a share of the largest magnitude of its tensor; infinite if one number is finite and the other is not.
    pub size: f64,
    /// The name of the result.
    pub of: String,
}

impl Deviation {
    /// The largest distance of two lists of numbers, as a share of the largest finite magnitude of the first. NaN agrees with
    /// NaN, and an infinity with itself.
    pub(super) fn between(expected: &[f64], found: &[f64]) -> f64 {
        let magnitudes = expected.iter().map(|x| x.abs()).filter(|x| x.is_finite());
        let scale = magnitudes.fold(LEAST, f64::max);
        let distance = |(&a, &b): (&f64, &f64)| match () {
            () if a == b || (a.is_nan() && b.is_nan()) => 0.0,
            () if a.is_finite() && b.is_finite() => (a - b).abs() / scale,
            () => f64::INFINITY,
        };
        if expected.len() != found.len() {
            return f64::INFINITY;
        }
        expected.iter().zip(found).map(distance).fold(0.0, f64::max)
    }

    pub(super) fn is_above(&self, tolerance: f64) -> bool {
        self.size > tolerance
    }
}

/// The result that is farthest from what is expected. One that is missing is infinitely far.
pub(super) fn worst(expected: &BTreeMap<String, Array>, found: &BTreeMap<String, Array>) -> Deviation {
    let none = Deviation { size: 0.0, of: String::new() };
    expected.iter().fold(none, |worst, (name, array)| {
        let size = found.get(name).map_or(f64::INFINITY, |it| Deviation::between(&array.values, &it.values));
        if size > worst.size { Deviation { size, of: name.clone() } } else { worst }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_shares_of_the_largest() {
        let between = Deviation::between;
        assert_eq!(between(&[1.0, -4.0], &[1.0, -3.0]), 0.25);
        assert_eq!(between(&[f64::NAN, f64::INFINITY, 2.0], &[f64::NAN, f64::INFINITY, 2.0]), 0.0);
        assert_eq!(between(&[1.0], &[f64::NAN]), f64::INFINITY);
        assert_eq!(between(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(between(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        // Nothing is left of what has cancelled but its rounding.
        assert!(between(&[0.0], &[1e-15]) < 1e-8);
    }
}
