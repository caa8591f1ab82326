//! How a model knows positions without a vector for each: sinusoids that are added, rotations of queries and keys, and biases of
//! scores by distance.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
        let shape = [positions.shape(), vec![width]].concat();
        let last = shape.len() - 1;
        let position = positions.cast(DType::F32).unsqueeze(-1);
        let dimension = self.iota(shape.clone(), last, DType::F32);
        let pair = (dimension * 0.5).floor();
        let is_even = self.iota(shape, last, DType::I32).and(1).eq(0);
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
    /// How wavelengths are stretched for a context that is longer than that of training, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
}

/// Wavelengths that are longer than their pair has by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// All of them by a factor: positions are divided by it (Chen et al., "Extending context window of large language models via
    /// positional interpolation", 2023, equation 4).
    Linear {
        /// By how much.
        factor: f64,
    },
    /// That of Llama 3.1 (Meta, 2024): with c positions in training, wavelengths above c / `low` by the factor, those below
    /// c / `high` not at all, and in between frequencies are those of both, mixed by how often c positions turn the pair.
    Llama3 {
        /// By how much.
        factor: f64,
        /// Pairs that turn less often than this within `context` are stretched.
        low: f64,
        /// Pairs that turn more often than this within `context` stay as they are.
        high: f64,
        /// The context of training, in positions.
        context: usize,
    },
}

impl RopeScaling {
    /// What is wrong with the numbers, if something is.
    pub(crate) fn fault(&self) -> Option<String> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match *self {
            RopeScaling::Linear { factor } if !positive(factor) => {
                Some(format!("the factor {factor} of rope's scaling is not a number above 0"))
            }
            RopeScaling::Llama3 { factor, low, high, context } => {
                let wrong = [factor, low, high, context as f64].into_iter().find(|x| !positive(*x));
                wrong.map(|x| format!("rope's scaling has numbers above 0, not {x}")).or_else(|| {
                    (low >= high)
                        .then(|| format!("rope's scaling has low {low}, which is not below high {high}"))
                })
            }
            RopeScaling::Linear { .. } => None,
        }
    }

    /// The radians of each pair from one position to the next, made fewer.
    #[track_caller]
    fn scale(&self, frequencies: &Tensor) -> Tensor {
        match *self {
            RopeScaling::Linear { factor } => frequencies / factor,
            RopeScaling::Llama3 { factor, low, high, context } => {
                let turns = frequencies * (context as f64 / std::f64::consts::TAU);
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequencies * (&kept + (1.0 - &kept) / factor)
            }
        }
    }
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
        Rope { base: BASE, pairing: Pairing::Adjacent, scaling: None }
    }
}

impl Rope {
    /// Rotates `[.., length, width]` with an even width; `positions` are `i32[length]`, or such that
    /// they broadcast to all but the last axis.
    #[track_caller]
    pub fn rotate(&self, x: &Tensor, positions: &Tensor) -> Tensor {
        let width = x.dim(-1);
        if !width.is_multiple_of(2) || x.rank() < 2 {
            x.expect("rope", |_| Some("takes [.., length, width] with an even width".into()));
            return x.clone();
        }
        let pair = x.trace().arange(width / 2, DType::F32);
        let frequencies = frequencies(&pair, width, self.base);
        let frequencies = self.scaling.map_or(frequencies.clone(), |scaling| scaling.scale(&frequencies));
        let angle = positions.cast(DType::F32).unsqueeze(-1) * frequencies;
        let (sine, cosine) = (angle.sin(), angle.cos());
        let [first, second] = self.pairing.apart(x);
        let turned = [&first * &cosine - &second * &sine, &first * &sine + &second * &cosine];
        self.pairing.together(turned)
    }
}

/// Into how many buckets distances are sorted (Raffel et al., "Exploring the limits of transfer learning", 2020, section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativeShape {
    /// How many there are; where both directions count, each has half of them.
    pub buckets: usize,
    /// From here on all distances have the same one.
    pub distance: usize,
}

/// A trained bias of attention's scores for each head and bucket of distances.
pub struct RelativePositions {
    path: Arc<str>,
    shape: RelativeShape,
    bidirectional: bool,
    /// `[buckets, heads]`.
    pub weight: Tensor,
}

impl RelativeShape {
    /// The least distance of each bucket of one direction that holds more than one, in ascending order. The first half of the
    /// buckets has one distance each.
    fn starts(self, bidirectional: bool) -> (usize, Vec<usize>) {
        let buckets = if bidirectional { self.buckets / 2 } else { self.buckets };
        let exact = buckets / 2;
        // In f32, as published models were trained: at some limits rounding decides.
        let span = (self.distance as f64 / exact as f64).ln() as f32;
        let bucket = |distance: usize| {
            let place = (distance as f32 / exact as f32).ln() / span * (buckets - exact) as f32;
            (exact + place as usize).min(buckets - 1)
        };
        // A bucket begins where the one before it does, or later.
        let mut distance = exact;
        let start = |wanted: usize| {
            while bucket(distance) < wanted {
                distance += 1;
            }
            distance
        };
        (exact, (exact + 1..buckets).map(start).collect())
    }
}

impl RelativePositions {
    /// Declares `name.weight`. Without `bidirectional`, keys after the query have the bucket of distance 0.
    #[track_caller]
    pub fn new(
        trace: &Trace,
        name: &str,
        heads: usize,
        shape: RelativeShape,
        bidirectional: bool,
        init: Init,
    ) -> Self {
        let _scope = trace.scope(name);
        let weight = trace.parameter("weight", [shape.buckets, heads], init);
        RelativePositions { path: trace.path(), shape, bidirectional, weight }
    }

    /// `[heads, queries, keys]`: what is added to the scores.
    #[track_caller]
    pub fn forward(&self, queries: usize, keys: usize) -> Tensor {
        let trace = self.weight.trace();
        let _scope = trace.at(self.path.clone());
        let (exact, starts) = self.shape.starts(self.bidirectional);
        let ahead = trace.columns_less_rows(queries, keys);
        let distance = if self.bidirectional { ahead.abs() } else { (-&ahead).maximum(0.0) };
        let first = distance.minimum(exact as f64);
        let mut bucket =
            starts.iter().fold(first, |bucket, start| bucket + distance.ge(*start as f64).cast(DType::I32));
        if self.bidirectional {
            bucket = bucket + ahead.gt(0.0).cast(DType::I32) * (self.shape.buckets / 2) as f64;
        }
        self.weight.gather(0, &bucket).permute(&[2, 0, 1])
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
