//! How a model knows positions without learning them: sinusoids that are added, and rotations of queries and keys.

use crate::trace::{Tensor, Trace};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};

/// The base of all wavelengths: from 2π to 2π · 10,000 positions.
pub const BASE: f64 = 10_000.0;

impl Trace {
    /// `f32[length, width]`: at position p the even dimension 2i is sin(p / 10000^(2i/width)) and the odd one 2i + 1 the
    /// cosine of the same angle (Vaswani et al., 2017, section 3.5).
    #[track_caller]
    pub fn sinusoidal_positions(&self, length: usize, width: usize) -> Tensor {
        self.sinusoids(&self.arange(length, DType::I32), width)
    }

    /// As [`Trace::sinusoidal_positions`], of these positions `i32[length]`.
    #[track_caller]
    pub fn sinusoids(&self, positions: &Tensor, width: usize) -> Tensor {
        let shape = [positions.dim(0), width];
        let position = positions.cast(DType::F32).unsqueeze(-1);
        let dimension = self.iota(shape, 1, DType::F32);
        let pair = (dimension * 0.5).floor();
        let is_even = self.iota(shape, 1, DType::I32).and(1).eq(0);
        let angle = position * frequencies(&pair, width, BASE);
        is_even.select(angle.sin(), angle.cos())
    }
}

/// base^(−2·pair/width), the radians by which each pair of dimensions turns from one position to the next.
#[track_caller]
fn frequencies(pair: &Tensor, width: usize, base: f64) -> Tensor {
    pair.trace().full([], base, DType::F32).pow(pair * (-2.0 / width as f64))
}

/// Rotary positions (Su et al., "RoFormer", 2021, equation 34): the vector at position p is cut into pairs, and pair i
/// of `width` dimensions turns by the angle p / base^(2i/width). The scalar product of two rotated vectors depends on
/// the distance of their positions alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// The base of the wavelengths, 10,000 in the paper.
    #[serde(default = "base")]
    pub base: f64,
    /// Which dimensions are a pair.
    #[serde(default)]
    pub pairing: Pairing,
}

/// Which dimensions turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// 2i and 2i + 1, as in the paper.
    #[default]
    Adjacent,
    /// i and i + width/2, as in most published checkpoints.
    Halves,
}

fn base() -> f64 {
    BASE
}

impl Default for Rope {
    fn default() -> Self {
        Rope { base: BASE, pairing: Pairing::Adjacent }
    }
}

impl Rope {
    /// Rotates `[.., length, width]` with an even width; `positions` are `i32[length]`.
    #[track_caller]
    pub fn rotate(&self, x: &Tensor, positions: &Tensor) -> Tensor {
        let width = x.dim(-1);
        if !width.is_multiple_of(2) || x.rank() < 2 {
            x.expect("rope", |_| Some("takes [.., length, width] with an even width".into()));
            return x.clone();
        }
        let pair = x.trace().arange(width / 2, DType::F32);
        let angle = positions.cast(DType::F32).unsqueeze(-1) * frequencies(&pair, width, self.base);
        let (sine, cosine) = (angle.sin(), angle.cos());
        let [first, second] = self.pairing.apart(x);
        let turned = [&first * &cosine - &second * &sine, &first * &sine + &second * &cosine];
        self.pairing.together(turned)
    }
}

impl Pairing {
    /// Both sides of all pairs, each `[.., length, width/2]`.
    #[track_caller]
    fn apart(self, x: &Tensor) -> [Tensor; 2] {
        let width = x.dim(-1);
        match self {
            Pairing::Adjacent => {
                let pairs = x.reshape([&x.shape()[..x.rank() - 1], &[width / 2, 2]].concat());
                [pairs.index(-1, 0), pairs.index(-1, 1)]
            }
            Pairing::Halves => [x.slice(-1, 0..width / 2), x.slice(-1, width / 2..width)],
        }
    }

    #[track_caller]
    fn together(self, [first, second]: [Tensor; 2]) -> Tensor {
        let trace = first.trace();
        match self {
            Pairing::Adjacent => {
                let mut shape = first.shape();
                shape.last_mut().into_iter().for_each(|extent| *extent *= 2);
                trace.stack(&[&first, &second], -1).reshape(shape)
            }
            Pairing::Halves => trace.concat(&[&first, &second], -1),
        }
    }
}
