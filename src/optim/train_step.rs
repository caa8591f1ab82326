//! One training step as one program: forward, backward, clipping, update.

use super::Optimizer;
use crate::trace::{MAKES_SCALARS, Program, Tensor, Trace};
use crate::{Error, Result};
use kernfusion_ir::Tensor as HostTensor;

/// A program with the output `loss`, with clipping also `grad_norm`, and updates of all parameters and of the
/// optimizer's states. Beside the model's own inputs it takes the scalars that [`TrainStep::scalars`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainStep {
    /// The traced step.
    pub program: Program,
    /// The rule of the updates.
    pub optimizer: Optimizer,
}

impl TrainStep {
    /// Traces gradients of a scalar loss by every parameter of its trace that is not frozen, and the updates. `clip` is the largest norm
    /// of all gradients together; larger ones are scaled down to it. Dropout drops if the trace is one of [`Trace::training`].
    ///
    /// # Errors
    /// The first mistake made on the trace; a loss that is no scalar of floats; settings of the optimizer that are out of range; a `clip` that is not
    /// above 0; no parameters, or all of them frozen; an input that has the name of one of the [scalars](Self::scalars).
    #[track_caller]
    pub fn new(loss: &Tensor, optimizer: &Optimizer, clip: Option<f64>) -> Result<Self> {
        optimizer.validate()?;
        if let Some(clip) = clip.filter(|&clip| clip.is_nan() || clip <= 0.0) {
            return Err(Error::Configuration(format!("the clipping norm {clip} is not above 0")));
        }
        let trace = loss.trace();
        let own = optimizer.scalars(0, 0.0);
        let is_own = |name: &str| own.iter().any(|(own, _)| *own == name);
        if let Some((name, _)) = trace.data_inputs().into_iter().find(|(name, _)| is_own(name)) {
            let reason =
                format!("the input \"{name}\" has the name of one that the optimizer adds: choose another");
            return Err(Error::Mismatch(reason));
        }
        let all = trace.parameters();
        let which = if all.is_empty() { "there are no parameters" } else { "all parameters are frozen" };
        let trained = all.into_iter().filter(|(parameter, _)| parameter.trained);
        let (parameters, tensors): (Vec<_>, Vec<_>) = trained.unzip();
        if parameters.is_empty() {
            return Err(Error::Mismatch(format!("{which}: there is nothing to train")));
        }
        loss.expect("TrainStep::new", |ty| {
            let scalar = ty.rank() == 0 && ty.dtype.is_float();
            (!scalar).then(|| format!("the loss must be a scalar of floats: {MAKES_SCALARS}"))
        });
        let mut gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
        let norm = clip.map(|clip| clip_by_norm(trace, &mut gradients, clip));
        let named = parameters.into_iter().zip(tensors).zip(gradients);
        let updates: Vec<_> = named.map(|((parameter, p), gradient)| (parameter.name, p, gradient)).collect();
        optimizer.update(trace, &updates);
        let outputs: Vec<_> =
            [("loss", loss)].into_iter().chain(norm.iter().map(|n| ("grad_norm", n))).collect();
        Ok(TrainStep { program: trace.finish(&outputs)?, optimizer: optimizer.clone() })
    }

    /// The scalar inputs in a step counted from 0: the optimizer's, and `seed` and `step` if the program draws random
    /// numbers. Both halves of the seed count.
    pub fn scalars(&self, step: u64, learning_rate: f64, seed: u64) -> Vec<(&'static str, HostTensor)> {
        let optimizer = self.optimizer.scalars(step, learning_rate);
        let floats = optimizer.into_iter().map(|(name, x)| (name, HostTensor::new([], vec![x])));
        // Steps 2³² apart share their random numbers.
        let words = [("seed", (seed ^ (seed >> 32)) as u32), ("step", step as u32)];
        let words = words.into_iter().filter(|(name, _)| self.program.graph.input(name).is_some());
        floats.chain(words.map(|(name, x)| (name, HostTensor::new([], vec![x])))).collect()
    }
}

/// Scales all gradients by min(1, clip/(norm + 10⁻⁶)), where norm is the root of the sum of all squares, as
/// `torch.nn.utils.clip_grad_norm_` does. Returns the norm before.
#[track_caller]
fn clip_by_norm(trace: &Trace, gradients: &mut [Tensor], clip: f64) -> Tensor {
    let _scope = trace.scope("clip");
    let mut squares = trace.zeros([]);
    for gradient in gradients.iter() {
        squares = squares + gradient.square().sum_all();
    }
    let norm = squares.sqrt();
    let scale = (clip / (&norm + 1e-6)).minimum(1.0);
    for gradient in gradients {
        *gradient = &*gradient * &scale;
    }
    norm
}
