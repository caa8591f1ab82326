//! Proximal policy optimisation (Schulman et al., 2017) of a language model (Ziegler et al., "Fine-tuning language models from
//! human preferences", 2019; Ouyang et al., 2022, section 3.5).
//!
//! An iteration:
//!
//! ```text
//! prompts ──policy──► responses ──reward──► score R of each text
//! r_t = −β·(ln π(a_t) − ln π_reference(a_t)) + R at the last token     the first is the estimator k₁ of the divergence
//! r, V ──► advantages A and returns; A is standardised
//! several epochs over minibatches: −min(ρA, clip(ρ, 1−ε, 1+ε)A) + c·½(V − return)², with ρ = π_new/π
//! ```
//!
//! The value head reads the trunk of the policy. The reference is the policy as it was in the beginning.

use super::examples::{Example, Rows};
use super::learner::{Learner, Tuning};
use super::pretrained::Pretrained;
use super::rollout::{advantages, divergence, standardize};
use crate::generate::Generator;
use crate::record::{Adaptation, parameters};
use crate::sample::Sampler;
use crate::text::shuffled;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::init::Init;
use kernfusion::loss::{ppo_loss, token_losses, value_loss};
use kernfusion::models::{Gpt, GptConfig};
use kernfusion::nn::Linear;
use kernfusion::trace::{Program, Tensor, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::DType;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;

/// The name of the value head's matrix, `[1, width]`.
const HEAD: &str = "value.weight";

/// The settings of PPO.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PpoSettings {
    /// The steps' settings; `batch` is that of a minibatch, and `steps` plays no part.
    pub tuning: Tuning,
    /// Responses in an iteration, a multiple of `tuning.batch`.
    pub responses: usize,
    /// Tokens of a response at most.
    pub length: usize,
    /// How often an iteration's responses are learnt from.
    pub epochs: usize,
    /// ε: how far the ratio of probabilities may be from 1.
    pub clip_ratio: f64,
    /// β: the price of a nat of divergence from the reference.
    pub beta: f64,
    /// γ: what a reward is worth a token earlier.
    pub discount: f64,
    /// λ of the advantages.
    pub lambda: f64,
    /// c: the weight of the values' loss.
    pub value_weight: f64,
}

impl Default for PpoSettings {
    fn default() -> Self {
        PpoSettings {
            tuning: Tuning::default(),
            responses: 32,
            length: 32,
            epochs: 4,
            clip_ratio: 0.2,
            beta: 0.05,
            discount: 1.0,
            lambda: 0.95,
            value_weight: 0.5,
        }
    }
}

impl PpoSettings {
    /// Checks that all settings are in their ranges.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn validate(&self) -> Result<()> {
        let batch = self.tuning.batch;
        if batch == 0 || self.responses == 0 || !self.responses.is_multiple_of(batch) {
            let reason = format!("{} responses are no multiple of minibatches of {batch}", self.responses);
            return Err(Error::Configuration(reason));
        }
        let checks = [
            ("length", self.length as f64, self.length > 0),
            ("number of epochs", self.epochs as f64, self.epochs > 0),
            ("clip ratio", self.clip_ratio, self.clip_ratio > 0.0 && self.clip_ratio.is_finite()),
            ("beta", self.beta, self.beta >= 0.0 && self.beta.is_finite()),
            ("discount", self.discount, (0.0..=1.0).contains(&self.discount)),
            ("lambda", self.lambda, (0.0..=1.0).contains(&self.lambda)),
            (
                "weight of values",
                self.value_weight,
                self.value_weight >= 0.0 && self.value_weight.is_finite(),
            ),
        ];
        match checks.into_iter().find(|(_, _, valid)| !valid) {
            Some((name, value, _)) => Err(Error::Configuration(format!("{name} {value} is out of range"))),
            None => Ok(()),
        }
    }
}

/// What an iteration has shown, before its updates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Iteration {
    /// Iterations done, this one included.
    pub iteration: u64,
    /// Mean reward of the responses, without the price of divergence.
    pub reward: f64,
    /// Mean divergence of a response from the reference, in nats ([`divergence`]).
    pub divergence: f64,
    /// Mean number of tokens of a response.
    pub length: f64,
    /// The loss of the last minibatch.
    pub loss: f32,
}

/// A run of PPO.
pub struct Ppo {
    model: Pretrained,
    prompts: Vec<Vec<i32>>,
    settings: PpoSettings,
    learner: Learner,
    generator: Generator,
    /// Log-probabilities and values of the policy, log-probabilities of the reference.
    policy: Compiled,
    reference: Compiled,
    done: u64,
}

/// A row of an iteration. All numbers are of the places where a token of the response comes next.
struct Rollout {
    example: Example,
    old: Vec<f64>,
    advantages: Vec<f64>,
    returns: Vec<f64>,
    reward: f64,
    divergence: f64,
}

impl Ppo {
    /// Begins with a model, which is also the reference; there is at least one prompt.
    ///
    /// # Errors
    /// If a prompt leaves no place for a response, a setting is out of range, or a program cannot be compiled.
    pub fn new(
        model: Pretrained,
        prompts: &[String],
        settings: PpoSettings,
        target: &Target,
    ) -> Result<Self> {
        settings.validate()?;
        let prompts = prompt_tokens(&model, prompts, settings.length)?;
        let (config, adaptation) = (&model.config, &settings.tuning.adaptation);
        let loss = loss(&adaptation.training(), config, &settings)?;
        let learner = Learner::new(&loss, &settings.tuning, &model.tensors, &[HEAD], target)?;
        let rows = settings.responses;
        let policy = log_probabilities(&adaptation.evaluating(), config, rows, true)?;
        let policy = compile(&policy.graph, &learner.states, target)?;
        let reference = reference(&model, rows, target)?;
        let (kind, tokenizer) = (config.clone().into(), model.tokenizer.clone());
        let generator = Generator::adapted(adaptation, &kind, tokenizer, &learner.states, target)?;
        Ok(Ppo { model, prompts, settings, learner, generator, policy, reference, done: 0 })
    }

    /// Does the next iteration. `reward` is the score of a prompt and a response, as tokens and as the number of those that
    /// are the prompt's.
    ///
    /// # Errors
    /// What `reward` reports; if the loss or a reward is not finite, or memory is short.
    pub fn iterate(&mut self, reward: &mut dyn FnMut(&[i32], usize) -> Result<f32>) -> Result<Iteration> {
        let mut rollouts = self.rollouts(reward)?;
        let advantages = rollouts.iter().flat_map(|rollout| rollout.advantages.iter().copied());
        let mut advantages: Vec<f64> = advantages.collect();
        standardize(&mut advantages);
        let mut standardized = advantages.into_iter();
        for rollout in &mut rollouts {
            rollout.advantages.iter_mut().zip(&mut standardized).for_each(|(old, new)| *old = new);
        }
        let loss = self.learn(&rollouts)?;
        self.done += 1;
        let mean = |of: fn(&Rollout) -> f64| rollouts.iter().map(of).sum::<f64>() / rollouts.len() as f64;
        Ok(Iteration {
            iteration: self.done,
            reward: mean(|rollout| rollout.reward),
            divergence: mean(|rollout| rollout.divergence),
            length: mean(|rollout| rollout.old.len() as f64),
            loss,
        })
    }

    /// Writes a checkpoint of the policy as it is now.
    ///
    /// # Errors
    /// If it cannot be written; the one before it is then untouched.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let Tuning { seed, adaptation, .. } = &self.settings.tuning;
        let settings = json!({"ppo": self.settings, "adaptation": adaptation});
        let meta = self.model.meta(self.learner.record("ppo", settings), self.done, *seed);
        self.learner.save(directory, &meta, &[HEAD])
    }

    /// Responses of the policy as it is now, with what it is to learn from them.
    fn rollouts(&mut self, reward: &mut dyn FnMut(&[i32], usize) -> Result<f32>) -> Result<Vec<Rollout>> {
        let first = self.done * self.settings.responses as u64;
        let examples = (first..first + self.settings.responses as u64)
            .map(|number| self.respond(number))
            .collect::<Result<Vec<_>>>()?;
        let context = self.model.config.context;
        let Rows { x, y, .. } = Rows::new(&examples, context);
        let outputs = self.policy.run(&[("x", &x), ("y", &y)])?;
        let [old, values] = ["log_probability", "value"]
            .map(|name| outputs.get(name).map(HostTensor::to_f64).expect("an output of the program"));
        drop(outputs);
        let outputs = self.reference.run(&[("x", &x), ("y", &y)])?;
        let known = outputs.get("log_probability").map(HostTensor::to_f64).expect("an output of the program");
        drop(outputs);
        let rollout = |(row, example): (usize, Example)| {
            let places = row * context + example.prompt - 1..row * context + example.tokens.len() - 1;
            let [old, values, known] = [&old, &values, &known].map(|all| all[places.clone()].to_vec());
            let score = f64::from(reward(&example.tokens, example.prompt)?);
            if !score.is_finite() {
                return Err(Error::Configuration(format!("the reward of a response is {score}")));
            }
            let mut rewards: Vec<f64> = old
                .iter()
                .zip(&known)
                .map(|(policy, known)| -self.settings.beta * (policy - known))
                .collect();
            *rewards.last_mut().expect("a response has a token") += score;
            let PpoSettings { discount, lambda, .. } = self.settings;
            let (advantages, returns) = advantages(&rewards, &values, discount, lambda);
            let divergence = divergence(&old, &known);
            Ok(Rollout { example, old, advantages, returns, reward: score, divergence })
        };
        examples.into_iter().enumerate().map(rollout).collect()
    }

    /// The run's response of that number, up to the token that ends a text if there is one.
    fn respond(&mut self, number: u64) -> Result<Example> {
        let (seed, count) = (self.settings.tuning.seed, self.prompts.len() as u64);
        let order = shuffled(self.prompts.len(), seed, number / count);
        let mut tokens = self.prompts[order[(number % count) as usize]].clone();
        let prompt = tokens.len();
        let end = self.model.tokenizer.end();
        // A seed of its own for each response: the sampler's numbers are a function of seed and position.
        let sampler =
            Sampler::new(1.0, None, None, seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))?;
        for _ in 0..self.settings.length {
            // The parameters have changed since the response before.
            let logits = match tokens.len() == prompt {
                true => self.generator.logits(&tokens)?,
                false => self.generator.next_logits(&tokens)?,
            };
            let token = sampler.pick(&logits, tokens.len() as u64)?;
            tokens.push(token);
            if Some(token) == end {
                break;
            }
        }
        Ok(Example { tokens, prompt })
    }

    /// Several epochs over minibatches; the loss of the last one.
    fn learn(&mut self, rollouts: &[Rollout]) -> Result<f32> {
        let PpoSettings { epochs, tuning, .. } = &self.settings;
        let (context, batch, seed) = (self.model.config.context, tuning.batch, tuning.seed);
        let mut last = 0.0;
        for epoch in 0..*epochs as u64 {
            let order = shuffled(rollouts.len(), !seed, self.done * *epochs as u64 + epoch);
            for rows in order.chunks(batch) {
                let chosen: Vec<_> = rows.iter().map(|&row| &rollouts[row]).collect();
                let Rows { x, y, mask } = Rows::new(chosen.iter().map(|rollout| &rollout.example), context);
                let spread = |of: fn(&Rollout) -> &[f64]| {
                    let mut values = vec![0.0f32; batch * context];
                    for (row, rollout) in chosen.iter().enumerate() {
                        let start = row * context + rollout.example.prompt - 1;
                        let places = values[start..].iter_mut().zip(of(rollout));
                        places.for_each(|(place, value)| *place = *value as f32);
                    }
                    HostTensor::new([batch, context], values)
                };
                let old = spread(|rollout| &rollout.old);
                let advantages = spread(|rollout| &rollout.advantages);
                let returns = spread(|rollout| &rollout.returns);
                let own = [("old", &old), ("advantages", &advantages), ("returns", &returns)];
                last = self.learner.step(&[&[("x", &x), ("y", &y), ("mask", &mask)][..], &own].concat())?;
            }
        }
        Ok(last)
    }
}

/// The tokens of all prompts.
fn prompt_tokens(model: &Pretrained, prompts: &[String], length: usize) -> Result<Vec<Vec<i32>>> {
    let context = model.config.context;
    let tokens = |(row, prompt): (usize, &String)| {
        let tokens = model.tokenizer.encode(prompt)?;
        match tokens.len() {
            // The last token is only ever a target.
            count if count > 0 && count + length <= context + 1 => Ok(tokens),
            count => {
                let reason =
                    format!("row {}: {count} tokens of the prompt and {length} of a response", row + 1);
                Err(Error::Configuration(format!("{reason} do not fit the model, which reads {context}")))
            }
        }
    };
    prompts.iter().enumerate().map(tokens).collect()
}

/// A trunk with two heads: log-probabilities of `y` after `x`, and values, both `[rows, context]`.
fn heads(trace: &Trace, config: &GptConfig, rows: usize) -> Result<[Tensor; 2]> {
    let shape = [rows, config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let gpt = Gpt::new(trace, config)?;
    trace.unfreeze();
    // A new head expects nothing.
    let value = Linear::builder(config.width, 1).bias(false).init(Init::Zeros).build(trace, "value");
    let hidden = gpt.hidden(&x);
    let log_probabilities = -token_losses(&gpt.head_of(&hidden), &y);
    Ok([log_probabilities, value.forward(&hidden).squeeze(-1)])
}

fn loss(trace: &Trace, config: &GptConfig, settings: &PpoSettings) -> Result<Tensor> {
    let rows = settings.tuning.batch;
    let [new, values] = heads(trace, config, rows)?;
    let input = |name| trace.input(name, [rows, config.context], DType::F32);
    let [old, advantages, returns, mask] = ["old", "advantages", "returns", "mask"].map(input);
    let _scope = trace.scope("loss");
    let policy = ppo_loss(&new, &old, &advantages, &mask, settings.clip_ratio);
    Ok(policy + value_loss(&values, &returns, &mask) * settings.value_weight)
}

/// The outputs `log_probability` and, if asked for, `value` of `rows` texts.
fn log_probabilities(trace: &Trace, config: &GptConfig, rows: usize, values: bool) -> Result<Program> {
    if values {
        let [log_probability, value] = heads(trace, config, rows)?;
        return Ok(trace.finish(&[("log_probability", &log_probability), ("value", &value)])?);
    }
    let shape = [rows, config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let log_probability = -token_losses(&Gpt::new(trace, config)?.forward(&x), &y);
    Ok(trace.finish(&[("log_probability", &log_probability)])?)
}

/// The model as it begins, with parameters of its own.
fn reference(model: &Pretrained, rows: usize, target: &Target) -> Result<Compiled> {
    let trace = Adaptation::default().evaluating();
    let program = log_probabilities(&trace, &model.config, rows, false)?;
    let states: States = target.states();
    parameters::put(
        &states,
        &parameters::states_of(&program.graph),
        model.tensors.clone(),
        "the checkpoint",
    )?;
    Ok(compile(&program.graph, &states, target)?)
}
