//! Reward models (Ouyang et al., 2022, section 3.5): a decoder with a head of one number, read at a text's last token, that
//! learns which of two responses is better.

use super::examples::{Example, Preference, Rows};
use super::learner::{Learner, Tuning};
use super::pretrained::Pretrained;
use crate::checkpoint::Checkpoint;
use crate::record::parameters;
use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::init::Init;
use kernfusion::loss::pairwise_loss;
use kernfusion::models::{Gpt, GptConfig};
use kernfusion::nn::Linear;
use kernfusion::trace::{Program, Tensor, Trace};
use kernfusion_ir::DType;
use serde_json::{Value, json};
use std::path::Path;

/// The name of the head's matrix, `[1, width]`.
const HEAD: &str = "reward.weight";

/// A run that learns a reward from preferences.
pub struct RewardModel {
    model: Pretrained,
    pairs: Vec<[Example; 2]>,
    learner: Learner,
}

impl RewardModel {
    /// Begins with a model; its head for tokens stays as it is, and one for a number joins it.
    ///
    /// # Errors
    /// As [`Supervised::new`](super::Supervised::new).
    pub fn new(model: Pretrained, rows: &[Preference], settings: Tuning, target: &Target) -> Result<Self> {
        let context = model.config.context;
        let pair = |(number, row): (usize, &Preference)| {
            let example =
                |response| Example::new(&model.tokenizer, [&row.prompt, response], context, number + 1);
            Ok([example(&row.chosen)?, example(&row.rejected)?])
        };
        let pairs = rows.iter().enumerate().map(pair).collect::<Result<Vec<_>>>()?;
        let trace = settings.adaptation.training();
        let head = Head::new(&trace, &model.config)?;
        let [chosen, rejected] =
            ["chosen", "rejected"].map(|name| head.inputs(&trace, name, settings.batch, context));
        let loss = pairwise_loss(&chosen, &rejected);
        let learner = Learner::new(&loss, &settings, &model.tensors, &[HEAD], target)?;
        Ok(RewardModel { model, pairs, learner })
    }

    /// Does the next step and returns the loss of its batch; ln 2 is that of a model that does not know.
    ///
    /// # Errors
    /// If the loss is not finite, or memory is short.
    pub fn step(&mut self) -> Result<f32> {
        let context = self.model.config.context;
        let rows = self.learner.next_rows(self.pairs.len());
        let [chosen, rejected] =
            [0, 1].map(|side| inputs(rows.iter().map(|&row| &self.pairs[row][side]), context));
        self.learner.step(&[
            ("chosen", &chosen.0),
            ("chosen.last", &chosen.1),
            ("rejected", &rejected.0),
            ("rejected.last", &rejected.1),
        ])
    }

    /// The share of all rows in which the better response has the higher reward; one rank alone can say it.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn accuracy(&self, target: &Target) -> Result<f64> {
        // Of one text at a time.
        let mut scorer = self.scorer(&target.clone().alone().microbatches(1))?;
        let mut right = 0;
        for [chosen, rejected] in &self.pairs {
            right += usize::from(scorer.score(&chosen.tokens)? > scorer.score(&rejected.tokens)?);
        }
        Ok(right as f64 / self.pairs.len() as f64)
    }

    /// What gives rewards by the parameters as they are whenever it is asked.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn scorer(&self, target: &Target) -> Result<Scorer> {
        let trace = self.learner.settings().adaptation.evaluating();
        let program = scores(&trace, &self.model.config)?;
        let program = compile(&program.graph, &self.learner.states, target)?;
        let Pretrained { config, tokenizer, .. } = &self.model;
        Ok(Scorer { program, tokenizer: tokenizer.clone(), context: config.context })
    }

    /// The shape of the model, as checkpoints have it.
    pub fn model(&self) -> Value {
        json!(self.model.config)
    }

    /// What a checkpoint says of this training: its settings, and what products multiply.
    pub fn record(&self) -> Value {
        self.learner.record("reward", json!(self.learner.settings()))
    }

    /// Writes a checkpoint of the model as it is now. Of several ranks, one does.
    ///
    /// # Errors
    /// If it cannot be written; the one before it is then untouched.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let meta = self.model.meta(self.record(), self.learner.steps_done(), self.learner.settings().seed);
        self.learner.save(directory, &meta, &[])
    }
}

/// A reward model at work.
pub struct Scorer {
    program: Compiled,
    tokenizer: Tokenizer,
    context: usize,
}

impl Scorer {
    /// The reward model of a checkpoint.
    ///
    /// # Errors
    /// If it is the checkpoint of another kind of model, or the program cannot be compiled.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let Pretrained { config, tokenizer, tensors } = Pretrained::new(checkpoint)?;
        if !tensors.contains_key(HEAD) {
            return Err(Error::Configuration(
                "this is no reward model: kernfusion tune reward makes one".into(),
            ));
        }
        let program = scores(&Trace::new(), &config)?;
        let states = target.states();
        parameters::put(&states, &parameters::states_of(&program.graph), tensors, "the checkpoint")?;
        let program = compile(&program.graph, &states, target)?;
        Ok(Scorer { program, tokenizer, context: config.context })
    }

    /// The tokens that it reads.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The reward of a text of at least one token; of a longer one than it reads, that of the last tokens.
    ///
    /// # Errors
    /// If memory is short.
    pub fn score(&mut self, tokens: &[i32]) -> Result<f32> {
        let tokens = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
        let (x, last) = inputs([&Example { tokens, prompt: 1 }], self.context);
        let outputs = self.program.run(&[("text", &x), ("text.last", &last)])?;
        Ok(outputs.get("score")?.as_f32().expect("scores are f32")[0])
    }
}

/// A decoder's trunk with a head of one number.
struct Head {
    gpt: Gpt,
    head: Linear,
}

impl Head {
    fn new(trace: &Trace, config: &GptConfig) -> Result<Self> {
        // Nothing reads it here.
        trace.freeze(&["head".into()]);
        let gpt = Gpt::new(trace, config)?;
        trace.unfreeze();
        let init = Init::Normal { std: 1.0 / (config.width as f64 + 1.0).sqrt() };
        Ok(Head { gpt, head: Linear::builder(config.width, 1).bias(false).init(init).build(trace, "reward") })
    }

    /// Rewards `[rows]` of texts that are inputs: `name`, `i32[rows, context]`, and `name.last`, where each one ends.
    fn inputs(&self, trace: &Trace, name: &str, rows: usize, context: usize) -> Tensor {
        let x = trace.input(name, [rows, context], DType::I32);
        let last = trace.input(&format!("{name}.last"), [rows], DType::I32);
        let scores = self.head.forward(&self.gpt.hidden(&x)).squeeze(-1);
        last.class_mask(context).select(&scores, 0.0).sum(&[-1])
    }
}

/// The output `score` of one text.
fn scores(trace: &Trace, config: &GptConfig) -> Result<Program> {
    let score = Head::new(trace, config)?.inputs(trace, "text", 1, config.context);
    Ok(trace.finish(&[("score", &score)])?)
}

/// Texts and the places of their last tokens.
fn inputs<'a>(examples: impl IntoIterator<Item = &'a Example>, context: usize) -> (HostTensor, HostTensor) {
    let examples: Vec<_> = examples.into_iter().collect();
    let last =
        examples.iter().map(|example| example.tokens.len().min(context) as i32 - 1).collect::<Vec<_>>();
    let Rows { x, .. } = Rows::new(examples, context);
    (x, HostTensor::new([last.len()], last))
}
