//! Some training steps of a small model, and all that they leave.

use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target};
use kernfusion::models::{Experts, FeedForwardKind, GptConfig, ModelConfig, RecurrentLmConfig};
use kernfusion::optim::{Optimizer, TrainStep};
use kernfusion::trace::Trace;
use kernfusion_ir::random::element_bits;
use kernfusion_passes::microbatch::RESERVED;
use std::collections::BTreeMap;

/// How many steps are done.
pub(crate) const STEPS: u64 = 3;

/// Steps of a model on random tokens. Clipping makes every update depend on all gradients; the norm is small enough to matter.
#[derive(Clone)]
pub(crate) struct Steps {
    pub(crate) config: ModelConfig,
    pub(crate) batch: usize,
    pub(crate) clip: Option<f64>,
    /// Groups in which layers look at the batch.
    pub(crate) groups: usize,
}

/// What steps leave behind: losses and norms, and all states but accumulators, whole.
pub(crate) struct Ran {
    pub(crate) numbers: Vec<f32>,
    pub(crate) states: BTreeMap<String, Vec<f32>>,
    /// Bytes of the optimizer's states in this process.
    pub(crate) optimizer_bytes: usize,
    pub(crate) program: Compiled,
}

/// A small decoder with dropout, whose random numbers are those of the whole batch.
pub(crate) fn small() -> GptConfig {
    GptConfig {
        vocabulary: 11,
        context: 6,
        layers: 2,
        heads: 2,
        width: 8,
        dropout: 0.2,
        ..GptConfig::default()
    }
}

/// As [`small`], with two of four experts for each token, noise to choose them by, and the balancing loss.
pub(crate) fn with_experts() -> GptConfig {
    let experts = Some(Experts { count: 4, active: 2, noise: 0.1, balance: 0.5 });
    let kind = FeedForwardKind::Swiglu;
    GptConfig { experts, feed_forward: kind, hidden: Some(8), bias: false, ..small() }
}

/// Small recurrent layers with all that regularises them.
pub(crate) fn recurrent() -> RecurrentLmConfig {
    RecurrentLmConfig {
        vocabulary: 11,
        context: 6,
        width: 8,
        hidden: 12,
        dropout: 0.2,
        weight_drop: 0.3,
        activation_penalty: 2.0,
        change_penalty: 1.0,
        ..RecurrentLmConfig::default()
    }
}

impl Ran {
    /// Whether all numbers have the same bits.
    pub(crate) fn equals(&self, other: &Ran) -> bool {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        bits(&self.numbers) == bits(&other.numbers)
            && self.states.keys().eq(other.states.keys())
            && self.states.iter().all(|(name, value)| bits(value) == bits(&other.states[name]))
    }
}

impl Steps {
    pub(crate) fn new(config: impl Into<ModelConfig>, batch: usize) -> Self {
        Steps { config: config.into(), batch, clip: Some(0.5), groups: 1 }
    }

    pub(crate) fn step(&self) -> TrainStep {
        let trace = Trace::training();
        trace.set_groups(self.groups);
        let loss = self.config.loss(&trace, self.batch).unwrap();
        TrainStep::new(&loss, &Optimizer::adamw(1e-2), self.clip).unwrap()
    }

    pub(crate) fn tokens(&self, step: u64, stream: u32) -> HostTensor {
        let (context, vocabulary) = (self.config.context(), self.config.vocabulary());
        let token = |at| (element_bits(5, stream, step as u32, at) as usize % vocabulary) as i32;
        let tokens = (0..(self.batch * context) as u64).map(token);
        HostTensor::new([self.batch, context], tokens.collect::<Vec<_>>())
    }

    pub(crate) fn inputs(&self, step: &TrainStep, number: u64) -> Vec<(&'static str, HostTensor)> {
        let mut inputs = step.scalars(number, 1e-2, 77);
        inputs.extend([("x", self.tokens(number, 1)), ("y", self.tokens(number, 2))]);
        inputs
    }

    pub(crate) fn run(&self, target: &Target) -> Ran {
        let step = self.step();
        let states = target.states();
        for (name, value) in step.program.initial_parameters(3) {
            states.set(&name, &value).unwrap();
        }
        let mut program = step.program.compile(&states, target).unwrap();
        let mut numbers = vec![];
        for number in 0..STEPS {
            let given = self.inputs(&step, number);
            let given: Vec<_> = given.iter().map(|(name, tensor)| (*name, tensor)).collect();
            let outputs = program.run(&given).unwrap();
            let names = ["loss"].into_iter().chain(self.clip.map(|_| "grad_norm"));
            numbers.extend(names.map(|name| outputs.scalar(name).unwrap()));
        }
        let names: Vec<_> = states.names().into_iter().filter(|name| !name.starts_with(RESERVED)).collect();
        let moments = names.iter().filter(|name| name.starts_with("optimizer."));
        let optimizer_bytes = moments.map(|name| states.ty(name).unwrap().bytes()).sum();
        let whole = |name: &String| program.shards().whole(name, &states).unwrap().unwrap();
        let whole = |name: &String| (name.clone(), whole(name).as_f32().unwrap().to_vec());
        Ran { numbers, states: names.iter().map(whole).collect(), optimizer_bytes, program }
    }
}
