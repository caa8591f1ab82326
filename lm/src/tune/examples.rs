//! Rows of a file of JSON lines, and the tokens that are made of them.

use crate::text::Tokenizer;
use crate::{Error, Result};
use kernfusion::HostTensor;
use serde::{Deserialize, Serialize};

/// A prompt and the response to learn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demonstration {
    /// What is given.
    pub prompt: String,
    /// What the model is to write.
    pub response: String,
}

/// A prompt and two responses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// What is given.
    pub prompt: String,
    /// The better response.
    pub chosen: String,
    /// The worse response.
    pub rejected: String,
}

/// A prompt alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// What is given.
    pub prompt: String,
}

/// The tokens of a prompt and of a response to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) tokens: Vec<i32>,
    /// How many of them are the prompt's; at least one.
    pub(super) prompt: usize,
}

impl Example {
    /// The tokens of both, and the token that ends a text if there is one; what exceeds `context` + 1 tokens is cut off.
    ///
    /// # Errors
    /// If the prompt leaves no place for a response, or one of the two has no tokens; `row` is its number, from 1.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        [prompt, response]: [&str; 2],
        context: usize,
        row: usize,
    ) -> Result<Self> {
        let in_row = |reason: String| Error::Configuration(format!("row {row}: {reason}"));
        let encode = |text| tokenizer.encode(text).map_err(|error| in_row(error.to_string()));
        let (mut tokens, response) = (encode(prompt)?, encode(response)?);
        let prompt = tokens.len();
        if prompt == 0 || response.is_empty() {
            return Err(in_row("prompt and response must have a token each at least".into()));
        }
        if prompt > context {
            let reason = format!("the prompt has {prompt} tokens, the model reads {context}");
            return Err(in_row(format!("{reason}: no place is left for a response")));
        }
        tokens.extend(response);
        tokens.extend(tokenizer.end());
        tokens.truncate(context + 1);
        Ok(Example { tokens, prompt })
    }
}

/// Rows of equal length: `x` and the tokens after it, `y`, both `i32[rows, context]`, and `mask` of `f32[rows, context]`, 1
/// where `y` is a token of a response.
pub(super) struct Rows {
    pub(super) x: HostTensor,
    pub(super) y: HostTensor,
    pub(super) mask: HostTensor,
}

impl Rows {
    /// How many tokens of responses there are, as `f32[]`.
    pub(super) fn count(&self) -> HostTensor {
        HostTensor::new([], [self.mask.as_f32().expect("a mask is f32").iter().sum::<f32>()])
    }

    pub(super) fn new<'a>(examples: impl IntoIterator<Item = &'a Example>, context: usize) -> Self {
        let (mut x, mut y, mut mask) = (vec![], vec![], vec![]);
        for (row, Example { tokens, prompt }) in examples.into_iter().enumerate() {
            let end = (row + 1) * context;
            x.extend(tokens.iter().take(context));
            y.extend(&tokens[1..]);
            mask.extend((1..tokens.len()).map(|at| if at >= *prompt { 1.0f32 } else { 0.0 }));
            // What fills up a row is neither seen by what stands before it nor counted.
            x.resize(end, 0);
            y.resize(end, 0);
            mask.resize(end, 0.0);
        }
        let shape = [x.len() / context, context];
        let [x, y] = [x, y].map(|tokens| HostTensor::new(shape, tokens));
        Rows { x, y, mask: HostTensor::new(shape, mask) }
    }
}
