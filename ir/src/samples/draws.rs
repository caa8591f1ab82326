//! Deterministic random numbers for samples.

use crate::random::element_bits;
use crate::{DType, Tensor, TensorType};

/// A stream of random numbers, a function of its seed.
#[derive(Debug, Clone)]
pub struct Draws {
    seed: u64,
    drawn: u64,
}

impl Draws {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Draws { seed, drawn: 0 }
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.drawn += 1;
        element_bits(self.seed as u32, (self.seed >> 32) as u32, 0, self.drawn)
    }

    /// A number of `0..limit`; the limit is positive and below 2³².
    pub fn below(&mut self, limit: usize) -> usize {
        ((u64::from(self.word()) * limit as u64) >> 32) as usize
    }

    /// One of the choices, of which there is one at least.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Uniform between `low` (inclusive) and `high` (exclusive).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + f64::from(self.word()) / 4_294_967_296.0 * (high - low)
    }

    /// A tensor with elements drawn as `values` says.
    pub(super) fn tensor(&mut self, ty: &TensorType, values: Values) -> Tensor {
        let drawn: Vec<_> =
            (0..ty.elements()).map(|element| self.element(ty.dtype, values, element)).collect();
        Tensor::from_f64(ty, &drawn)
    }

    fn element(&mut self, dtype: DType, values: Values, element: usize) -> f64 {
        match values {
            Values::Between(..) if dtype == DType::Bool => self.below(2) as f64,
            Values::Between(low, high) if !dtype.is_float() => self.between(low, high).floor(),
            Values::Between(low, high) => self.between(low, high),
            Values::OffWhole => self.below(6) as f64 - 3.0 + self.between(0.1, 0.9),
            Values::Bits if dtype == DType::I8 => self.below(256) as f64 - 128.0,
            Values::Bits => dtype.round(f64::from(self.word())),
            Values::Few(choices) => *self.choose(choices),
            Values::Listed(list) => list[element % list.len()],
        }
    }
}

/// How the elements of an input are drawn.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// Uniform; whole numbers if the dtype is an integer, either truth value if it is `bool`.
    Between(f64, f64),
    /// Between −3 and 3, a tenth at least from every whole number.
    OffWhole,
    /// All bits of an integer.
    Bits,
    /// Each at random from a list.
    Few(&'static [f64]),
    /// The list, over and over.
    Listed(&'static [f64]),
}
