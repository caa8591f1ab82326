//! The first values of parameters, drawn on the host.

use kernfusion_ir::random::philox4x32;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// Keeps these numbers apart from all others drawn with the same seed: the last word of the Philox counter, which is 0
/// inside programs, 1 for training windows and 2 for sampling.
const STREAM: u32 = 3;

/// What a parameter starts from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Independent normal numbers of mean 0.
    Normal {
        /// Their standard deviation.
        std: f64,
    },
    /// Independent numbers, uniform between −bound and bound.
    Uniform {
        /// The largest absolute value.
        bound: f64,
    },
}

impl Init {
    /// The first elements of a parameter, row-major. A function of seed, name and element alone: neither the order in
    /// which parameters are declared nor their number changes it.
    pub fn draw(self, seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
        let elements: usize = shape.iter().product();
        match self {
            Init::Zeros => vec![0.0; elements],
            Init::Ones => vec![1.0; elements],
            Init::Normal { std } => blocks(seed, name, elements, normals, std),
            Init::Uniform { bound } => blocks(seed, name, elements, |u| u.map(|u| 2.0 * u - 1.0), bound),
        }
    }
}

/// Four independent normal numbers from four uniform ones, two from two (Box and Muller, 1958).
fn normals([a, b, c, d]: [f64; 4]) -> [f64; 4] {
    let [first, second] = [(-2.0 * a.ln()).sqrt(), (-2.0 * c.ln()).sqrt()];
    [first * (TAU * b).cos(), first * (TAU * b).sin(), second * (TAU * d).cos(), second * (TAU * d).sin()]
}

/// Four elements from each Philox block, times `scale`.
fn blocks(
    seed: u64,
    name: &str,
    elements: usize,
    transform: impl Fn([f64; 4]) -> [f64; 4],
    scale: f64,
) -> Vec<f32> {
    let (seed, name) = (words(seed), words(hash(name)));
    let count = u32::try_from(elements.div_ceil(4)).expect("a parameter has fewer than 2³⁴ elements");
    let mut values = vec![0.0; elements];
    for (block, values) in (0..count).zip(values.chunks_mut(4)) {
        // In the middle of one of 2³² equal parts of (0, 1): never 0, whose logarithm is infinite.
        let uniform = philox4x32([block, name[0], name[1], STREAM], seed)
            .map(|word| (f64::from(word) + 0.5) * (-32f64).exp2());
        for (value, number) in values.iter_mut().zip(transform(uniform)) {
            *value = (number * scale) as f32;
        }
    }
    values
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn words(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_their_moments_and_depend_on_seed_and_name_only() {
        let init = Init::Normal { std: 0.02 };
        let values = init.draw(7, "wte.weight", &[500, 401]);
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let moment = |k: i32| values.iter().map(|&x| (f64::from(x) / 0.02).powi(k)).sum::<f64>() / n;
        assert!(mean.abs() < 3.0 * 0.02 / n.sqrt(), "{mean}");
        assert!((moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.1);
        assert_eq!(values, init.draw(7, "wte.weight", &[500, 401]));
        assert_eq!(values[..10], init.draw(7, "wte.weight", &[10]));
        assert_ne!(values[..10], init.draw(8, "wte.weight", &[10]));
        assert_ne!(values[..10], init.draw(7, "wpe.weight", &[10]));
        assert_ne!(init.draw(1, "a", &[9]), init.draw(1 + (1 << 32), "a", &[9]));
    }

    #[test]
    fn uniform_numbers_fill_their_range() {
        let values = Init::Uniform { bound: 0.5 }.draw(3, "w", &[10_001]);
        assert_eq!(values.len(), 10_001);
        assert!(values.iter().all(|x| x.abs() <= 0.5));
        let (low, high) = values.iter().fold((0f32, 0f32), |(low, high), &x| (low.min(x), high.max(x)));
        assert!(low < -0.499 && high > 0.499);
    }

    #[test]
    fn constants() {
        assert_eq!(Init::Zeros.draw(1, "b", &[3]), [0.0; 3]);
        assert_eq!(Init::Ones.draw(1, "b", &[2, 2]), [1.0; 4]);
    }
}
