//! Supervised fine-tuning (Ouyang et al., "Training language models to follow instructions with human feedback", 2022, section
//! 3.5): the mean cross-entropy of the tokens of responses, given the prompts and the tokens before.

use super::examples::{Demonstration, Example, Rows};
use super::learner::{Learner, Tuning};
use super::pretrained::Pretrained;
use crate::Result;
use kernfusion::compile::Target;
use kernfusion::loss::{counted_mean, token_losses};
use kernfusion::models::{Gpt, GptConfig};
use kernfusion::trace::{Tensor, Trace};
use kernfusion_ir::DType;
use serde_json::{Value, json};
use std::path::Path;

/// A run of supervised fine-tuning.
pub struct Supervised {
    model: Pretrained,
    examples: Vec<Example>,
    learner: Learner,
}

impl Supervised {
    /// Begins with a model; there is at least one row.
    ///
    /// # Errors
    /// If a row does not fit into the model's context, a setting is out of range, or the step cannot be compiled.
    pub fn new(model: Pretrained, rows: &[Demonstration], settings: Tuning, target: &Target) -> Result<Self> {
        let context = model.config.context;
        let example = |(number, row): (usize, &Demonstration)| {
            Example::new(&model.tokenizer, [&row.prompt, &row.response], context, number + 1)
        };
        let examples = rows.iter().enumerate().map(example).collect::<Result<Vec<_>>>()?;
        let loss = response_loss(&settings.adaptation.training(), &model.config, settings.batch)?;
        let learner = Learner::new(&loss, &settings, &model.tensors, &[], target)?;
        Ok(Supervised { model, examples, learner })
    }

    /// Does the next step and returns the loss of its batch, in nats per token of a response.
    ///
    /// # Errors
    /// If the loss is not finite, or memory is short.
    pub fn step(&mut self) -> Result<f32> {
        let rows = self.learner.next_rows(self.examples.len());
        let chosen = rows.into_iter().map(|row| &self.examples[row]);
        let rows = Rows::new(chosen, self.model.config.context);
        let Rows { x, y, mask } = &rows;
        self.learner.step(&[("x", x), ("y", y), ("mask", mask), ("count", &rows.count())])
    }

    /// The shape of the model, as checkpoints have it.
    pub fn model(&self) -> Value {
        json!(self.model.config)
    }

    /// What a checkpoint says of this training: its settings, and what products multiply.
    pub fn record(&self) -> Value {
        self.learner.record("sft", json!(self.learner.settings()))
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

/// The mean loss over the places where the input `mask` of `f32[batch, context]` is 1, of which there are `count`; `x` and `y` are
/// `i32[batch, context]`.
pub(super) fn response_loss(trace: &Trace, config: &GptConfig, batch: usize) -> Result<Tensor> {
    let shape = [batch, config.context];
    let (x, y) = (trace.input("x", shape, DType::I32), trace.input("y", shape, DType::I32));
    let mask = trace.input("mask", shape, DType::F32);
    let logits = Gpt::new(trace, config)?.forward(&x);
    let count = trace.input("count", [], DType::F32);
    let _scope = trace.scope("loss");
    Ok(counted_mean(&token_losses(&logits, &y), &mask, &count))
}
