//! Normalisation of vectors.

use crate::init::Init;
use crate::trace::{Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// (x − mean) / √(var + ε) · weight + bias over the last axis, with the biased variance (Ba, Kiros, Hinton, 2016).
pub struct LayerNorm {
    path: Arc<str>,
    /// `[width]`, from one.
    pub weight: Tensor,
    /// `[width]`, from zero.
    pub bias: Tensor,
    /// ε, inside the root.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Declares `name.weight` and `name.bias`; ε is 10⁻⁵.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, width: usize) -> Self {
        let _scope = trace.scope(name);
        LayerNorm {
            path: trace.path(),
            weight: trace.parameter("weight", [width], Init::Ones),
            bias: trace.parameter("bias", [width], Init::Zeros),
            epsilon: 1e-5,
        }
    }

    /// With another ε.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        LayerNorm { epsilon, ..self }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        expect_width("layer_norm", x, &self.weight);
        x.normalize(&[-1], self.epsilon) * &self.weight + &self.bias
    }
}

/// Records a mistake unless the last axis is as wide as the weight.
#[track_caller]
fn expect_width(op: &'static str, x: &Tensor, weight: &Tensor) {
    x.expect_of([x, weight], op, |[x, weight]| {
        let width = weight.shape.first();
        (x.shape.last() != width).then(|| format!("takes [.., {}]", width.copied().unwrap_or(0)))
    });
}

/// x / √(mean x² + ε) · weight over the last axis (Zhang, Sennrich, 2019), or with 1 + weight in its place, as in Gemma.
pub struct RmsNorm {
    path: Arc<str>,
    /// `[width]`, from one, or from zero where one is added to it.
    pub weight: Tensor,
    /// ε, inside the root.
    pub epsilon: f64,
    /// Whether rows are multiplied by 1 + weight: then weight decay draws the factor towards one.
    plus_one: bool,
}

impl RmsNorm {
    /// Declares `name.weight`; ε is 10⁻⁵.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, width: usize) -> Self {
        RmsNorm::of(trace, name, width, false)
    }

    /// As [`RmsNorm::new`], with 1 + weight in place of the weight.
    #[track_caller]
    pub fn plus_one(trace: &Trace, name: &str, width: usize) -> Self {
        RmsNorm::of(trace, name, width, true)
    }

    #[track_caller]
    fn of(trace: &Trace, name: &str, width: usize, plus_one: bool) -> Self {
        let _scope = trace.scope(name);
        let init = if plus_one { Init::Zeros } else { Init::Ones };
        let weight = trace.parameter("weight", [width], init);
        RmsNorm { path: trace.path(), weight, epsilon: 1e-5, plus_one }
    }

    /// With another ε.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        RmsNorm { epsilon, ..self }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        expect_width("rms_norm", x, &self.weight);
        // One root and one division for each row.
        let scale = (x.square().mean_keep(&[-1]) + self.epsilon).sqrt().recip();
        let normalized = x * scale;
        if self.plus_one { normalized * (&self.weight + 1.0) } else { normalized * &self.weight }
    }
}

/// Which normalisation a model uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// [`LayerNorm`].
    #[default]
    Layer,
    /// [`RmsNorm`].
    Rms,
    /// [`RmsNorm::plus_one`].
    RmsPlusOne,
}

impl Normalization {
    /// The number of parameters of a norm.
    pub(crate) fn parameters(self, width: usize) -> usize {
        match self {
            Normalization::Layer => 2 * width,
            Normalization::Rms | Normalization::RmsPlusOne => width,
        }
    }
}

/// A norm of either kind.
pub enum Norm {
    /// With mean and bias.
    Layer(LayerNorm),
    /// Without.
    Rms(RmsNorm),
}

impl Norm {
    /// Declares the parameters of the kind under `name`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, width: usize, kind: Normalization, epsilon: f64) -> Self {
        match kind {
            Normalization::Layer => Norm::Layer(LayerNorm::new(trace, name, width).with_epsilon(epsilon)),
            Normalization::Rms => Norm::Rms(RmsNorm::new(trace, name, width).with_epsilon(epsilon)),
            Normalization::RmsPlusOne => {
                Norm::Rms(RmsNorm::plus_one(trace, name, width).with_epsilon(epsilon))
            }
        }
    }

    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}
