//! Optimizers, traced into the graph of the training step, and learning-rate schedules on the host.

mod session;
#[cfg(test)]
mod tests;
mod train_step;

pub use session::Session;
pub use train_step::TrainStep;

use crate::trace::{Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};

/// How parameters follow their gradients. Each rule is that of the class of this name in `torch.optim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "lowercase")]
pub enum Optimizer {
    /// b ← momentum·b + g; p ← p − rate·b, with g = gradient + weight_decay·p.
    Sgd {
        /// The rate that a schedule scales.
        learning_rate: f64,
        /// The share of the last direction that is kept; without it there is no state.
        momentum: f64,
        /// The strength of the pull to zero.
        weight_decay: f64,
    },
    /// Adam (Kingma, Ba, 2015); weight decay is added to the gradient.
    Adam(Moments),
    /// Adam with decoupled weight decay (Loshchilov, Hutter, 2019): p ← p·(1 − rate·weight_decay) before each step, for every
    /// parameter.
    AdamW(Moments),
    /// Averaged SGD (Polyak, Juditsky, 1992).
    Asgd(Averaging),
}

/// Settings of averaged SGD: η = rate / (1 + λ·rate·t)^α, p ← p·(1 − λη) − η·g, and the average
/// a ← a + (p − a) / max(1, t − start), with t = 0, 1, …. Until t = start + 1 the average is p itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Averaging {
    /// The rate that a schedule scales.
    pub learning_rate: f64,
    /// λ, how fast the rate falls.
    pub decay: f64,
    /// α, the power with which it falls.
    pub power: f64,
    /// The step from which on parameters are averaged.
    pub start: u64,
    /// The strength of the pull to zero.
    pub weight_decay: f64,
}

/// Settings of Adam: m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g²,
/// p ← p − rate · m/(1 − β₁ᵗ) / (√(v/(1 − β₂ᵗ)) + ε) in step t = 1, 2, ….
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// The rate that a schedule scales.
    pub learning_rate: f64,
    /// β₁ and β₂.
    pub betas: [f64; 2],
    /// ε, outside the root.
    pub epsilon: f64,
    /// The strength of the pull to zero.
    pub weight_decay: f64,
}

impl Moments {
    /// PyTorch's defaults: β 0.9 and 0.999, ε 10⁻⁸.
    fn new(learning_rate: f64, weight_decay: f64) -> Self {
        Moments { learning_rate, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay }
    }
}

impl Optimizer {
    /// Plain gradient descent.
    pub fn sgd(learning_rate: f64) -> Self {
        Optimizer::Sgd { learning_rate, momentum: 0.0, weight_decay: 0.0 }
    }

    /// Adam with PyTorch's defaults.
    pub fn adam(learning_rate: f64) -> Self {
        Optimizer::Adam(Moments::new(learning_rate, 0.0))
    }

    /// AdamW with PyTorch's defaults, a weight decay of 0.01 among them.
    pub fn adamw(learning_rate: f64) -> Self {
        Optimizer::AdamW(Moments::new(learning_rate, 0.01))
    }

    /// Averaged SGD with PyTorch's defaults, λ = 10⁻⁴ and α = 0.75, that averages from step `start` on.
    pub fn asgd(learning_rate: f64, start: u64) -> Self {
        Optimizer::Asgd(Averaging { learning_rate, decay: 1e-4, power: 0.75, start, weight_decay: 0.0 })
    }

    /// The rate that a schedule scales.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Optimizer::Sgd { learning_rate, .. } => *learning_rate,
            Optimizer::Adam(moments) | Optimizer::AdamW(moments) => moments.learning_rate,
            Optimizer::Asgd(averaging) => averaging.learning_rate,
        }
    }

    /// Checks that all settings are in their ranges.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn validate(&self) -> Result<()> {
        let fraction = |x: f64| (0.0..1.0).contains(&x);
        let size = |x: f64| x.is_finite() && x >= 0.0;
        let (decay, checks) = match self {
            Optimizer::Sgd { momentum, weight_decay, .. } => {
                (*weight_decay, vec![("momentum", *momentum, fraction(*momentum))])
            }
            Optimizer::Adam(m) | Optimizer::AdamW(m) => {
                let betas = m.betas.map(|beta| ("beta", beta, fraction(beta)));
                (m.weight_decay, [&betas[..], &[("epsilon", m.epsilon, size(m.epsilon))]].concat())
            }
            Optimizer::Asgd(a) => {
                let checks = [("decay of the rate", a.decay), ("power", a.power)];
                (a.weight_decay, checks.map(|(name, value)| (name, value, size(value))).to_vec())
            }
        };
        let rate = self.learning_rate();
        let always = [("learning rate", rate, size(rate)), ("weight decay", decay, size(decay))];
        match always.into_iter().chain(checks).find(|(_, _, valid)| !valid) {
            Some((name, value, _)) => Err(Error::Configuration(format!("{name} {value} is out of range"))),
            None => Ok(()),
        }
    }

    /// The scalar `f32` inputs of the traced update in a step counted from 0: `lr`; Adam's corrections
    /// `bias1` = 1 − β₁ᵗ and `bias2` = 1 − β₂ᵗ with t = step + 1; of ASGD `lr` = η and `share` = 1 / max(1, t − start). They are computed here because powers close to 1 lose
    /// their digits in `f32`.
    pub fn scalars(&self, step: u64, learning_rate: f64) -> Vec<(&'static str, f32)> {
        let rate = ("lr", learning_rate as f32);
        match self {
            Optimizer::Sgd { .. } => vec![rate],
            Optimizer::Adam(Moments { betas, .. }) | Optimizer::AdamW(Moments { betas, .. }) => {
                let correction = |beta: f64| -((step as f64 + 1.0) * beta.ln()).exp_m1();
                let [first, second] = betas.map(|beta| correction(beta) as f32);
                vec![rate, ("bias1", first), ("bias2", second)]
            }
            Optimizer::Asgd(averaging) => {
                let fallen = 1.0 + averaging.decay * learning_rate * step as f64;
                let share = 1.0 / step.saturating_sub(averaging.start).max(1) as f64;
                vec![("lr", (learning_rate / fallen.powf(averaging.power)) as f32), ("share", share as f32)]
            }
        }
    }

    /// Appends the update of each parameter by its gradient. States are `optimizer.m.<parameter>` and
    /// `optimizer.v.<parameter>`; ASGD's averages are `optimizer.a.<parameter>`.
    #[track_caller]
    pub(crate) fn update(&self, trace: &Trace, updates: &[(String, Tensor, Tensor)]) {
        let scalar = |name| trace.input(name, [], DType::F32);
        let rate = scalar("lr");
        let _scope = trace.scope("optimizer");
        match self {
            Optimizer::Sgd { momentum, weight_decay, .. } => {
                for (name, p, gradient) in updates {
                    let mut direction = with_decay(p, gradient, *weight_decay);
                    if *momentum != 0.0 {
                        let m = trace.state(&format!("m.{name}"), p.shape(), p.dtype());
                        direction = &m * *momentum + direction;
                        trace.update(&m, &direction);
                    }
                    trace.update(p, &(p - &rate * direction));
                }
            }
            Optimizer::Adam(moments) => {
                let corrected = corrected(&rate, &scalar("bias1"), &scalar("bias2"));
                for (name, p, gradient) in updates {
                    let gradient = with_decay(p, gradient, moments.weight_decay);
                    let change = moments.change(trace, name, &gradient, &corrected);
                    trace.update(p, &(p - change));
                }
            }
            Optimizer::AdamW(moments) => {
                let corrected = corrected(&rate, &scalar("bias1"), &scalar("bias2"));
                let kept = 1.0 - &rate * moments.weight_decay;
                for (name, p, gradient) in updates {
                    let change = moments.change(trace, name, gradient, &corrected);
                    trace.update(p, &(p * &kept - change));
                }
            }
            Optimizer::Asgd(averaging) => {
                let (kept, share) = (1.0 - &rate * averaging.decay, scalar("share"));
                for (name, p, gradient) in updates {
                    let gradient = with_decay(p, gradient, averaging.weight_decay);
                    let new = p * &kept - &rate * gradient;
                    let average = trace.state(&format!("a.{name}"), p.shape(), p.dtype());
                    trace.update(&average, &(&average + (&new - &average) * &share));
                    trace.update(p, &new);
                }
            }
        }
    }
}

impl Moments {
    /// What Adam subtracts from a parameter; updates m and v.
    #[track_caller]
    fn change(&self, trace: &Trace, name: &str, gradient: &Tensor, [rate, root]: &[Tensor; 2]) -> Tensor {
        let [beta1, beta2] = self.betas;
        let state =
            |moment: &str| trace.state(&format!("{moment}.{name}"), gradient.shape(), gradient.dtype());
        let (old_m, old_v) = (state("m"), state("v"));
        let m = &old_m * beta1 + gradient * (1.0 - beta1);
        let v = &old_v * beta2 + gradient.square() * (1.0 - beta2);
        trace.update(&old_m, &m);
        trace.update(&old_v, &v);
        rate * m / (v.sqrt() / root + self.epsilon)
    }
}

/// Both bias corrections as scalars common to all parameters: rate/(1 − β₁ᵗ) for m, √(1 − β₂ᵗ) for √v.
#[track_caller]
fn corrected(rate: &Tensor, bias1: &Tensor, bias2: &Tensor) -> [Tensor; 2] {
    [rate / bias1, bias2.sqrt()]
}

/// gradient + decay·p
#[track_caller]
fn with_decay(p: &Tensor, gradient: &Tensor, decay: f64) -> Tensor {
    if decay == 0.0 { gradient.clone() } else { gradient + p * decay }
}

/// How the learning rate changes with the step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Not at all.
    #[default]
    Constant,
    /// The rate grows linearly over the first steps, then stays.
    WarmUp {
        /// How many steps it grows.
        steps: u64,
    },
    /// The rate grows linearly, then falls along half a cosine, then stays (Loshchilov, Hutter, 2017).
    Cosine {
        /// How many steps it grows; fewer than `steps`.
        warm_up: u64,
        /// The step at which it has fallen, counted from the beginning of the training: the steps of the warm-up are among these.
        steps: u64,
        /// To which share of the full rate it falls, from 0 to 1.
        floor: f64,
    },
}

impl Schedule {
    /// Checks that the schedule is possible.
    ///
    /// # Errors
    /// A floor that is not between 0 and 1, or a warm-up that is not shorter than all steps.
    pub fn validate(&self) -> Result<()> {
        let reason = match *self {
            Schedule::Cosine { floor, .. } if !(0.0..=1.0).contains(&floor) => {
                format!("the floor {floor} of the schedule is not between 0 and 1")
            }
            Schedule::Cosine { warm_up, steps, .. } if warm_up >= steps => {
                format!(
                    "a warm-up of {warm_up} steps is not shorter than the schedule, which has {steps} with it"
                )
            }
            _ => return Ok(()),
        };
        Err(Error::Configuration(reason))
    }

    /// The learning rate in a step counted from 0, when the full one is `full`.
    pub fn rate(&self, full: f64, step: u64) -> f64 {
        match *self {
            Schedule::Constant => full,
            Schedule::WarmUp { steps } => full * growth(step, steps),
            Schedule::Cosine { warm_up, .. } if step < warm_up => full * growth(step, warm_up),
            Schedule::Cosine { warm_up, steps, floor } => {
                let length = steps.saturating_sub(warm_up).max(1);
                let done = ((step - warm_up) as f64 / length as f64).min(1.0);
                full * (floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()))
            }
        }
    }
}

/// The share reached by linear growth that is complete in the last of `steps` steps.
fn growth(step: u64, steps: u64) -> f64 {
    if step < steps { (step as f64 + 1.0) / steps as f64 } else { 1.0 }
}
