//! Filling the gaps of a text with a BERT: each hidden token becomes the likeliest one, all at once.

use crate::checkpoint::Checkpoint;
use crate::hugging_face::Published;
use crate::record::{Record, parameters};
use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::models::{Bert, BertConfig, ModelConfig};
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::DType;

/// Stands for a hidden character where a text is shown or given.
pub const GAP: char = '_';

/// A model that fills gaps.
pub struct Filler {
    program: Compiled,
    config: BertConfig,
    tokens: usize,
}

impl Filler {
    /// A filler on the parameters in `states`, as they are whenever it runs, that picks among the first `tokens` tokens: the
    /// mask is none of them.
    ///
    /// # Errors
    /// If the shape is not valid or the program cannot be compiled.
    pub fn new(config: &BertConfig, tokens: usize, states: &States, target: &Target) -> Result<Self> {
        let program = compile(&guesses(config)?.graph, states, target)?;
        Ok(Filler { program, config: config.clone(), tokens })
    }

    /// The model of a checkpoint, and the tokens of its text.
    ///
    /// # Errors
    /// As [`Filler::new`]; if the model is no BERT, or the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<(Self, Tokenizer)> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let config = bert(config)?;
        let states = parameters::restored(checkpoint, &guesses(&config)?, target)?;
        Ok((Filler::new(&config, tokenizer.vocabulary_size(), &states, target)?, tokenizer))
    }

    /// A published model, and the tokens of its text.
    ///
    /// # Errors
    /// As [`Filler::new`]; if the model is no BERT, or has no tokenizer.
    pub fn from_published(model: &Published, target: &Target) -> Result<(Self, Tokenizer)> {
        let (config, tokenizer) = (bert(model.config().clone())?, model.needed_tokenizer()?.clone());
        let states = model.states(&guesses(&config)?, target)?;
        Ok((Filler::new(&config, tokenizer.vocabulary_size(), &states, target)?, tokenizer))
    }

    /// The token that stands for a gap.
    pub fn mask(&self) -> i32 {
        self.config.mask_token() as i32
    }

    /// The tokens with the likeliest ones in place of each mask.
    ///
    /// # Errors
    /// If there are none, or more than the context, or memory is short.
    pub fn fill(&mut self, tokens: &[i32]) -> Result<Vec<i32>> {
        let (context, length) = (self.config.context, tokens.len());
        if length == 0 || length > context {
            let reason = format!("a text of {length} tokens: the model sees 1 to {context}");
            return Err(Error::Configuration(reason));
        }
        let mut x = tokens.to_vec();
        x.resize(context, 0);
        let x = HostTensor::new([1, context], x);
        let lengths = HostTensor::new([1, 1], vec![length as i32]);
        let outputs = self.program.run(&[("x", &x), ("length", &lengths)])?;
        let logits = outputs.get("logits")?.as_f32().expect("logits are f32");
        let rows = tokens.iter().zip(logits.chunks(self.config.vocabulary));
        let mask = self.mask();
        let filled = rows.map(|(&token, row)| if token == mask { self.likeliest(row) } else { token });
        Ok(filled.collect())
    }

    fn likeliest(&self, logits: &[f32]) -> i32 {
        let best =
            (0..self.tokens).reduce(|best, token| if logits[token] > logits[best] { token } else { best });
        best.unwrap_or(0) as i32
    }
}

fn bert(config: ModelConfig) -> Result<BertConfig> {
    match config {
        ModelConfig::Bert(config) => Ok(config),
        _ => Err(Error::Configuration("only a BERT fills gaps".into())),
    }
}

/// From `x` of `i32[1, context]`, of which `length`, `i32[1, 1]`, tokens count, to `logits`.
fn guesses(config: &BertConfig) -> kernfusion::Result<Program> {
    let trace = Trace::new();
    let shape = [1, config.context];
    let (x, length) = (trace.input("x", shape, DType::I32), trace.input("length", [1, 1], DType::I32));
    let real = trace.iota(shape, 1, DType::I32).lt(&length);
    let logits = Bert::new(&trace, config)?.forward(&x, None, Some(&real));
    trace.finish(&[("logits", &logits)])
}
