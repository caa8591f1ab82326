//! The steps that all methods take: a traced loss, its update, the parameters.

use crate::checkpoint::{Meta, Tensor32};
use crate::record::{Adaptation, ExchangeType, parameters};
use crate::text::shuffled;
use crate::train::own_microbatches;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Shards, Target, compile};
use kernfusion::nn::is_adapter;
use kernfusion::optim::{Optimizer, Schedule, TrainStep};
use kernfusion::trace::Tensor;
use kernfusion_codegen::States;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The settings that all methods share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Steps in all.
    pub steps: u64,
    /// Rows in a batch.
    pub batch: usize,
    /// All random numbers are functions of it and of the step.
    pub seed: u64,
    /// The update rule with its learning rate.
    pub optimizer: Optimizer,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The largest norm of all gradients together, if they are clipped.
    pub clip: Option<f64>,
    /// Which parameters are trained.
    pub adaptation: Adaptation,
    /// As what several ranks exchange gradients.
    pub exchange: ExchangeType,
    /// In how many microbatches a batch is computed, by all ranks together; 0: in as few as memory allows.
    pub microbatches: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            steps: 100,
            batch: 8,
            seed: 1,
            optimizer: Optimizer::adamw(1e-4),
            schedule: Schedule::Constant,
            clip: Some(1.0),
            adaptation: Adaptation::default(),
            exchange: ExchangeType::F32,
            microbatches: 0,
        }
    }
}

/// A loss that is being made smaller.
pub(super) struct Learner {
    settings: Tuning,
    step: TrainStep,
    program: Compiled,
    pub(super) states: States,
    /// What products of matrices multiply.
    products: String,
    done: u64,
}

impl Learner {
    /// `tensors` are the parameters of the model that it begins with; what is new, adapters and heads, starts as it was
    /// declared.
    ///
    /// # Errors
    /// If a setting is out of range, the tensors are not those of the model, or the step cannot be compiled.
    pub(super) fn new(
        loss: &Tensor,
        settings: &Tuning,
        tensors: &BTreeMap<String, Tensor32>,
        heads: &[&str],
        target: &Target,
    ) -> Result<Self> {
        settings.adaptation.check(loss.trace())?;
        let step = TrainStep::new(loss, &settings.optimizer, settings.clip)?;
        let states = target.states();
        step.program.ensure_memory()?;
        for (name, value) in step.program.initial_parameters(settings.seed) {
            states.set(&name, &value)?;
        }
        let shapes = step.program.parameters.iter().map(|p| (p.name.clone(), p.shape.clone()));
        let new = |name: &String| is_adapter(name) || heads.contains(&name.as_str());
        let shapes = shapes.filter(|(name, _)| tensors.contains_key(name) || !new(name)).collect();
        parameters::put(&states, &shapes, tensors.clone(), "the checkpoint")?;
        let target = match own_microbatches(settings.batch, settings.microbatches, target.rank_count())? {
            0 => target.clone(),
            microbatches => target.clone().microbatches(microbatches),
        };
        let target = target.bf16_exchange(settings.exchange == ExchangeType::Bf16);
        let program = compile(&step.program.graph, &states, &target)?;
        let products = target.products()?;
        let microbatches = program.report().memory.microbatches * target.rank_count();
        Ok(Learner {
            settings: Tuning { microbatches, ..settings.clone() },
            step,
            program,
            states,
            products,
            done: 0,
        })
    }

    /// What a checkpoint says of this training.
    pub(super) fn record(&self, method: &str, settings: Value) -> Value {
        json!({"method": method, "settings": settings, "products": self.products})
    }

    /// The rows of the next step, of `count`: in each epoch every row once, in an order of its own.
    pub(super) fn next_rows(&self, count: usize) -> Vec<usize> {
        let first = self.done * self.settings.batch as u64;
        let (mut epoch, mut order) = (None, Vec::new());
        let row = |number: u64| {
            let of = number / count as u64;
            if epoch != Some(of) {
                (epoch, order) = (Some(of), shuffled(count, self.settings.seed, of));
            }
            order[(number % count as u64) as usize]
        };
        (first..first + self.settings.batch as u64).map(row).collect()
    }

    /// Does a step and returns its loss.
    ///
    /// # Errors
    /// If the loss is not finite, or memory is short.
    pub(super) fn step(&mut self, inputs: &[(&str, &HostTensor)]) -> Result<f32> {
        let Tuning { optimizer, schedule, seed, .. } = &self.settings;
        let rate = schedule.rate(optimizer.learning_rate(), self.done);
        let scalars = self.step.scalars(self.done, rate, *seed);
        let scalars = scalars.iter().map(|(name, tensor)| (*name, tensor));
        let inputs: Vec<_> = inputs.iter().copied().chain(scalars).collect();
        let loss = self.program.run(&inputs)?.scalar("loss").expect("a step has a loss");
        self.done += 1;
        match loss.is_finite() {
            true => Ok(loss),
            false => {
                let step = self.done;
                let advice = "a lower learning rate may help; nothing was written";
                Err(Error::Configuration(format!("the loss is {loss} in step {step}: {advice}")))
            }
        }
    }

    /// The settings, with the number of microbatches that there are.
    pub(super) fn settings(&self) -> &Tuning {
        &self.settings
    }

    pub(super) fn steps_done(&self) -> u64 {
        self.done
    }

    /// Writes a checkpoint of the parameters, without the optimizer's states and without some heads.
    pub(super) fn save(&self, directory: &Path, meta: &Meta, without: &[&str]) -> Result<()> {
        let parameters = self.step.program.parameters.iter().filter(|p| !without.contains(&p.name.as_str()));
        let shapes = parameters.map(|p| (p.name.clone(), p.shape.clone())).collect();
        parameters::save(directory, meta, (&self.states, &Shards::default()), &shapes)
    }
}
