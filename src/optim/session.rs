//! A training run of the user's own model: the step, its states, and what changes from step to step.

#[cfg(feature = "files")]
mod files;

use super::{Schedule, TrainStep};
use crate::compile::{Compiled, Target};
use crate::trace::Program;
use crate::{Error, Result};
use kernfusion_codegen::{Outputs, States, check_inputs};
use kernfusion_ir::{InputRole, Tensor as HostTensor, TensorType};

/// The input of a program that draws random numbers.
const SEED: &str = "seed";

/// A compiled training step with its parameters, the optimizer's states, the learning rate and the random numbers of each step.
///
/// ```
/// use kernfusion::prelude::*;
///
/// let trace = Trace::training();
/// let (x, y) = (trace.input("x", [4, 2], DType::F32), trace.input("y", [4, 1], DType::F32));
/// let loss = mse(&Linear::new(&trace, "linear", 2, 1).forward(&x), &y);
/// let mut session = TrainStep::new(&loss, &Optimizer::sgd(0.1), None)?.session(&Target::cpu(), 1)?;
///
/// let xs = HostTensor::new([4, 2], [0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
/// let ys = HostTensor::new([4, 1], [1.0f32, 3.0, 0.0, 2.0]);
/// let first = session.step(&[("x", &xs), ("y", &ys)])?;
/// for _ in 0..50 {
///     session.step(&[("x", &xs), ("y", &ys)])?;
/// }
/// assert!(session.step(&[("x", &xs), ("y", &ys)])? < first / 10.0);
/// # Ok::<(), kernfusion::Error>(())
/// ```
///
/// Every number of a step is a function of the inputs, the seed and the step's number. So a session that was saved and loaded goes on
/// as if it had never stopped, bit for bit.
///
/// A session can be moved to another thread; a [`Trace`](crate::trace::Trace) and its tensors stay where they were made.
pub struct Session {
    step: TrainStep,
    compiled: Compiled,
    states: States,
    /// The same, and those of evaluated programs' own.
    evaluated: States,
    target: Target,
    schedule: Schedule,
    seed: u64,
    done: u64,
    /// The program that was evaluated last.
    evaluation: Option<(Program, Compiled)>,
}

impl TrainStep {
    /// Compiles the step, with first parameters and random numbers from a seed.
    ///
    /// # Errors
    /// As [`compile`](crate::compile::compile).
    pub fn session(self, target: &Target, seed: u64) -> Result<Session> {
        let states = target.states();
        for (name, value) in self.program.initial_parameters(seed) {
            states.set(&name, &value)?;
        }
        let compiled = self.program.compile(&states, target)?;
        let (states, evaluated) = (states.closed(), states.fork().closed());
        let (target, schedule) = (target.clone(), Schedule::Constant);
        Ok(Session {
            step: self,
            compiled,
            states,
            evaluated,
            target,
            schedule,
            seed,
            done: 0,
            evaluation: None,
        })
    }
}

/// The values that each run of a program is given.
fn data_inputs(program: &Program) -> Vec<(&str, TensorType)> {
    let data = program.graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
    data.map(|(id, name, _)| (name, program.graph[id].ty.clone())).collect()
}

impl Session {
    /// Lets the learning rate change with the step. Without it, it stays what the optimizer says. A session that [loads](Self::load)
    /// keeps its own schedule, and goes on in it where the file's steps ended.
    ///
    /// # Errors
    /// As [`Schedule::validate`].
    pub fn with_schedule(self, schedule: Schedule) -> Result<Self> {
        schedule.validate()?;
        Ok(Session { schedule, ..self })
    }

    /// Does one step: the loss.
    ///
    /// # Errors
    /// An input is missing, unknown or of another type than declared (the error lists those that there are; nothing has happened
    /// then), or as [`Compiled::run`].
    pub fn step(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<f32> {
        Ok(self.step_outputs(inputs)?.scalar("loss")?)
    }

    /// Does one step: all outputs, such as `loss` and, with clipping, `grad_norm`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_outputs(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<Outputs> {
        let scalars = self.step.scalars(self.done, self.learning_rate(), self.seed);
        // What a session gives is no business of the caller's: errors name the other inputs.
        let types = data_inputs(&self.step.program);
        let is_own = |name: &str| scalars.iter().any(|(own, _)| *own == name);
        let declared: Vec<_> =
            types.iter().filter(|(name, _)| !is_own(name)).map(|(name, ty)| (*name, ty)).collect();
        check_inputs(&declared, inputs)?;
        let scalars = scalars.iter().map(|(name, value)| (*name, value));
        let outputs = self.compiled.run(&inputs.iter().copied().chain(scalars).collect::<Vec<_>>())?;
        self.done += 1;
        Ok(outputs)
    }

    /// Runs another program over the parameters of the moment: its outputs by name. Its parameters must be some of the session's. Other
    /// states of its own, such as caches, begin with zeros and are kept for this and other programs that are evaluated;
    /// [`get`](Self::get) and [`set`](Self::set) know them, files do not. The program that was evaluated last stays compiled.
    ///
    /// # Errors
    /// The session lacks a parameter of the program; the program was traced in training mode, and draws random numbers; or as
    /// [`compile`](crate::compile::compile) and [`Compiled::run`].
    pub fn evaluate(&mut self, program: &Program, inputs: &[(&str, &HostTensor)]) -> Result<Outputs> {
        let draws = data_inputs(program).iter().any(|(name, _)| *name == SEED);
        if draws && inputs.iter().all(|(name, _)| *name != SEED) {
            let reason = "the program draws random numbers, for dropout perhaps: trace it with `Trace::new`, which does not drop, or \
                          give the inputs `seed` and `step`, numbers of u32";
            return Err(Error::Mismatch(reason.into()));
        }
        if self.evaluation.as_ref().is_none_or(|(last, _)| last != program) {
            let target = self.target.clone().share_arena(&self.compiled);
            self.evaluation = Some((program.clone(), program.compile(&self.evaluated, &target)?));
        }
        let (_, compiled) = self.evaluation.as_mut().expect("just made");
        compiled.run(inputs)
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.schedule.rate(self.step.optimizer.learning_rate(), self.done)
    }

    /// Steps done.
    pub fn steps_done(&self) -> u64 {
        self.done
    }

    /// The compiled step: its kernels, its memory, what compiling took.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Parameters, the optimizer's states and others of the step, which programs may be compiled over. They are
    /// [closed](States::closed).
    pub fn states(&self) -> &States {
        &self.states
    }

    /// The value of a parameter or another state. Where [each rank keeps a part](Target::shard_optimizer) of it, all ranks have to ask together.
    ///
    /// # Errors
    /// There is none of that name; the error lists those that there are. Or another rank has ended.
    pub fn get(&self, name: &str) -> Result<HostTensor> {
        let value = self.compiled.shards().whole(name, &self.evaluated)?;
        Ok(value.ok_or_else(|| self.evaluated.unknown(name))?)
    }

    /// Gives a parameter or another state a value; on each of several ranks, the whole one. It has an effect from the next step or evaluation on.
    ///
    /// # Errors
    /// There is none of that name, and the error lists those that there are; or it has another type.
    pub fn set(&self, name: &str, value: &HostTensor) -> Result<()> {
        Ok(self.evaluated.set(name, &self.compiled.shards().part(name, value)?)?)
    }
}
