//! Low-rank adaptation (Hu et al., "LoRA: low-rank adaptation of large language models", 2021, section 4.1):
//! h = W·x + (α/r)·B·A·x, where W stays as it is, A is `[r, inputs]` and B `[outputs, r]`. B starts from zero, so that
//! a model begins as what it was.
//!
//! [`Trace::adapt`] says which layers have such a pair. The product is traced as the paper writes the change of the weight,
//! (B·A)·x; the simplifier finds that B·(A·x) costs less, and that gradients need nothing of the weight's shape either. Eager
//! mode computes what is written.

use crate::init::Init;
use crate::nn::Dropout;
use crate::trace::{Tensor, Trace};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the names of adapters end.
const ENDS: [&str; 2] = [".lora_a", ".lora_b"];

/// Which layers are adapted, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// r, at least 1.
    pub rank: usize,
    /// α: the change of the weight is scaled by α/r.
    pub alpha: f64,
    /// Probability with which inputs of the adapters are dropped in training.
    pub dropout: f64,
    /// Module paths, or parts of them: `attn.qkv` is that layer in every block, `blocks.3` all of one block.
    pub targets: Vec<String>,
}

impl Lora {
    /// Of all projections to queries, keys and values, with α = 2·rank and no dropout.
    pub fn new(rank: usize) -> Self {
        Lora { rank, alpha: 2.0 * rank as f64, dropout: 0.0, targets: vec!["attn.qkv".into()] }
    }

    /// Checks that such adapters exist.
    ///
    /// # Errors
    /// If the rank is 0, α no number, the dropout probability outside [0, 1), or there is no target.
    pub fn validate(&self) -> Result<()> {
        let reason = match self {
            Lora { rank: 0, .. } => "the rank of adapters is 0, but must be at least 1".into(),
            Lora { alpha, .. } if !alpha.is_finite() => format!("alpha {alpha} of adapters is no number"),
            Lora { dropout, .. } if !(0.0..1.0).contains(dropout) => {
                format!("dropout {dropout} of adapters is not in the range from 0 to below 1")
            }
            Lora { targets, .. } if targets.is_empty() => "adapters have no target".into(),
            _ => return Ok(()),
        };
        Err(Error::Configuration(reason))
    }

    /// α/r
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Adds the change of a pair to a matrix, W + (α/r)·B·A, summed in `f64`.
    ///
    /// # Panics
    /// If A, `[r, inputs]`, and B, `[outputs, r]`, do not fit the matrix, `[outputs, inputs]`.
    pub fn merge(&self, weight: &mut [f32], a: &[f32], b: &[f32]) {
        let inputs = a.len() / self.rank;
        assert_eq!(weight.len() * self.rank, b.len() * inputs, "a pair fits its matrix");
        if inputs == 0 {
            return;
        }
        for (row, b) in weight.chunks_mut(inputs).zip(b.chunks(self.rank)) {
            for (column, w) in row.iter_mut().enumerate() {
                let product = |(i, b): (usize, &f32)| f64::from(*b) * f64::from(a[i * inputs + column]);
                let sum: f64 = b.iter().enumerate().map(product).sum();
                *w = (f64::from(*w) + self.scale() * sum) as f32;
            }
        }
    }

    fn adapts(&self, path: &str) -> bool {
        // Whole segments: `blocks.1` is not part of `blocks.12`.
        let path = format!(".{path}.");
        self.targets.iter().any(|target| path.contains(&format!(".{target}.")))
    }
}

impl Trace {
    /// Gives the linear layers that are declared from now on adapters where they are targets, and so the matrices of programs that are
    /// [inserted](Trace::insert), and freezes everything else.
    pub fn adapt(&self, lora: &Lora) {
        self.tell_layers(lora.clone());
        self.train_only(is_adapter);
    }

    /// A parameter of a model that another program describes: if it is a matrix whose name has a target in it, with the change of a pair.
    /// The pair is `NAME.lora_a` and `NAME.lora_b`. Which inputs the matrix is given is not known, so none are dropped.
    #[track_caller]
    pub fn adapted(&self, name: &str, parameter: &Tensor) -> Tensor {
        let &[outputs, inputs] = parameter.ty().shape.as_slice() else { return parameter.clone() };
        let _scope = self.scope(name);
        Adapter::new(self, inputs, outputs)
            .map_or_else(|| parameter.clone(), |adapter| parameter + adapter.change())
    }
}

/// Whether a parameter of this name belongs to an adapter.
pub fn is_adapter(name: &str) -> bool {
    ENDS.iter().any(|end| name.ends_with(end))
}

/// The pair of a layer.
pub(super) struct Adapter {
    /// `[r, inputs]`
    a: Tensor,
    /// `[outputs, r]`
    b: Tensor,
    scale: f64,
    dropout: Dropout,
}

impl Adapter {
    /// Declares the pair under the open module path, if that is a target. A is uniform within 1/√inputs, as the weights of
    /// `torch.nn.Linear`.
    #[track_caller]
    pub(super) fn new(trace: &Trace, inputs: usize, outputs: usize) -> Option<Self> {
        let lora = trace.told::<Lora>().filter(|lora| lora.adapts(&trace.path()))?;
        let bound = 1.0 / (inputs as f64).sqrt();
        Some(Adapter {
            a: trace.parameter("lora_a", [lora.rank, inputs], Init::Uniform { bound }),
            b: trace.parameter("lora_b", [outputs, lora.rank], Init::Zeros),
            scale: lora.scale(),
            dropout: Dropout { probability: lora.dropout },
        })
    }

    /// What the pair adds to the layer's weight when it does not train.
    #[track_caller]
    pub(super) fn change(&self) -> Tensor {
        self.b.matmul(&self.a) * self.scale
    }

    /// What the pair adds to the layer's result.
    #[track_caller]
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.dropout.forward(x).linear(&self.b.matmul(&self.a)) * self.scale
    }
}
