//! Reading a text for the logits of its next token: by chunks with caches, or as a window.
//!
//! A chunk is a program of fixed shapes, compiled when it is first needed: one token, or several of a prompt, padded on the right,
//! where nothing is read before it is overwritten. How many positions a chunk sees is a power of two, so that a long text costs a
//! few programs and a short one does not pay for the whole context.

use crate::record::Adaptation;
use crate::{Error, Result};
use kernfusion::HostTensor;
use kernfusion::WeightType;
use kernfusion::compile::{Compiled, Target, compile};
use kernfusion::models::{Chunk, GptConfig, ModelConfig};
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::{Outputs, States};
use kernfusion_ir::DType;
use std::collections::BTreeMap;

/// Tokens of a prompt that are read at once.
const LONGEST_CHUNK: usize = 128;
/// A prompt's last chunk has at least this many tokens, unless it has one.
const SHORTEST_CHUNK: usize = 8;
/// Positions that every chunk may see: fewer save no time.
const LEAST_VISIBLE: usize = 64;

/// What gives the logits after a text.
pub(super) enum Reader {
    Chunks(Box<ChunkReader>),
    Window(Box<Window>),
}

impl Reader {
    pub(super) fn new(
        config: &ModelConfig,
        adaptation: &Adaptation,
        stored: WeightType,
        states: &States,
        target: &Target,
    ) -> Result<Self> {
        match config {
            ModelConfig::Gpt(config) => {
                let (config, adaptation) = (config.clone(), adaptation.clone());
                let chunks = ChunkReader::new(config, adaptation, stored, 1, states, target.clone())?;
                Ok(Reader::Chunks(Box::new(chunks)))
            }
            config => Ok(Reader::Window(Box::new(Window::new(config, adaptation, states, target)?))),
        }
    }

    /// Forgets what was read.
    pub(super) fn restart(&mut self) {
        if let Reader::Chunks(chunks) = self {
            chunks.restart();
        }
    }

    /// The logits of the token that follows each text of at least one token; what was read before need not be read again. A
    /// reader by chunks has as many texts as rows.
    pub(super) fn logits(&mut self, texts: &[&[i32]]) -> Result<Vec<Vec<f32>>> {
        match self {
            Reader::Chunks(chunks) => chunks.logits(texts),
            Reader::Window(window) => texts.iter().map(|text| window.logits(text)).collect(),
        }
    }

    /// A reader of `rows` texts at once, with the same parameters; `None` where reading them one after another is as fast.
    pub(super) fn of_rows(&self, rows: usize) -> Result<Option<Reader>> {
        let Reader::Chunks(chunks) = self else { return Ok(None) };
        let ChunkReader { config, adaptation, stored, target, parameters, .. } = &**chunks;
        let (config, adaptation) = (config.clone(), adaptation.clone());
        let chunks = ChunkReader::new(config, adaptation, *stored, rows, parameters, target.clone())?;
        Ok(Some(Reader::Chunks(Box::new(chunks))))
    }
}

/// A decoder that reads chunk by chunk.
pub(super) struct ChunkReader {
    config: GptConfig,
    adaptation: Adaptation,
    /// What matrices are kept as.
    stored: WeightType,
    target: Target,
    parameters: States,
    /// Parameters, and caches of its own.
    states: States,
    programs: BTreeMap<Chunk, Compiled>,
    /// Texts that are read at once, of any lengths: they end together, and shorter ones are padded on the left.
    rows: Vec<Row>,
    /// Positions that caches hold.
    length: usize,
}

/// One of the texts.
#[derive(Clone, Default)]
struct Row {
    /// The tokens that caches hold, from some place of the text on.
    read: Vec<i32>,
    /// That place.
    first: usize,
    /// Its position, behind padding.
    begins: usize,
}

impl Row {
    /// How many tokens of a text are new, if it goes on where this one ends.
    fn gained(&self, text: &[i32]) -> Option<usize> {
        let text = text.get(self.first..)?;
        (!self.read.is_empty() && text.starts_with(&self.read)).then(|| text.len() - self.read.len())
    }

    /// So many of the tokens that stand at a position and behind it.
    fn tokens(&self, text: &[i32], position: usize, count: usize) -> Vec<i32> {
        let token = |at: usize| at.checked_sub(self.begins).map_or(0, |at| text[self.first + at]);
        (position..position + count).map(token).collect()
    }
}

impl ChunkReader {
    fn new(
        config: GptConfig,
        adaptation: Adaptation,
        stored: WeightType,
        rows: usize,
        states: &States,
        target: Target,
    ) -> Result<Self> {
        let mut chunks = ChunkReader {
            config,
            adaptation,
            stored,
            target: target.start(),
            parameters: states.fork(),
            states: states.fork(),
            programs: BTreeMap::new(),
            rows: vec![Row::default(); rows],
            length: 0,
        };
        // What every text needs, and so whatever is wrong with the model is known now.
        chunks.program(chunks.chunk(0, 1))?;
        Ok(chunks)
    }

    fn capacity(&self) -> usize {
        capacity(&self.config)
    }

    /// How `length` tokens at a position are read.
    fn chunk(&self, position: usize, length: usize) -> Chunk {
        let capacity = self.capacity();
        let visible = (position + length).next_power_of_two().max(LEAST_VISIBLE).min(capacity);
        Chunk { length, visible, capacity }
    }

    fn program(&mut self, chunk: Chunk) -> Result<&mut Compiled> {
        match self.programs.entry(chunk) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let trace = self.adaptation.evaluating();
                trace.store_matrices(self.stored);
                let program = match self.rows.len() {
                    1 => self.config.continuation(&trace, 1, chunk)?,
                    rows => self.config.ragged_continuation(&trace, rows, chunk)?,
                };
                Ok(entry.insert(compile(&program.graph, &self.states, &self.target)?))
            }
        }
    }

    fn restart(&mut self) {
        self.length = 0;
        self.rows.fill(Row::default());
    }

    fn logits(&mut self, texts: &[&[i32]]) -> Result<Vec<Vec<f32>>> {
        let context = self.config.context;
        self.rewind(texts);
        let gained: Vec<_> = self.rows.iter().zip(texts).map(|(row, text)| row.gained(text)).collect();
        match gained[0].filter(|&new| new > 0 && gained.iter().all(|other| *other == Some(new))) {
            None => self.begin(texts, context),
            // No place is left. Half of the context is read anew, which is rarely so, rather than all of it for each token.
            Some(new) if self.length + new > context => self.begin(texts, context.div_ceil(2)),
            Some(_) => {}
        }
        let end = self.rows[0].begins + texts[0].len() - self.rows[0].first;
        let mut logits = vec![];
        while self.length < end {
            let left = end - self.length;
            let length = self.chunk_length(left);
            let (new, padding) = (left.min(length), length.saturating_sub(left));
            let rows = self.rows.iter().zip(texts);
            let padded = rows.flat_map(|(row, text)| [row.tokens(text, self.length, new), vec![0; padding]]);
            logits = self.run(padded.flatten().collect(), length, new - 1)?;
            self.length += new;
        }
        for (row, text) in self.rows.iter_mut().zip(texts) {
            row.read.extend_from_slice(&text[row.first + row.read.len()..]);
        }
        Ok(logits)
    }

    /// Forgets of a text that is read alone what differs from the one that was read before; its last token is always read.
    fn rewind(&mut self, texts: &[&[i32]]) {
        let ([row], [text]) = (&mut self.rows[..], texts) else { return };
        let text = text.get(row.first..).unwrap_or_default();
        let common = row.read.iter().zip(text).take_while(|(read, token)| read == token).count();
        row.read.truncate(common.min(text.len().saturating_sub(1)));
        self.length = row.begins + row.read.len();
    }

    /// Forgets what was read and places the last tokens of the texts, at most `most` of each.
    fn begin(&mut self, texts: &[&[i32]], most: usize) {
        let longest = texts.iter().map(|text| text.len().min(most)).max().unwrap_or(0);
        self.length = 0;
        for (row, text) in self.rows.iter_mut().zip(texts) {
            let count = text.len().min(most);
            *row = Row { read: vec![], first: text.len() - count, begins: longest - count };
        }
    }

    /// The length of the next chunk of a text that has `left` tokens left.
    fn chunk_length(&self, left: usize) -> usize {
        let longest = LONGEST_CHUNK.min(self.capacity());
        let length = match left {
            1 => 1,
            left => left.next_power_of_two().clamp(SHORTEST_CHUNK.min(longest), longest),
        };
        if self.length + length > self.capacity() { 1 } else { length }
    }

    fn run(&mut self, tokens: Vec<i32>, length: usize, last: usize) -> Result<Vec<Vec<f32>>> {
        let chunk = self.chunk(self.length, length);
        let scalar = |value: usize| HostTensor::new([], vec![value as i32]);
        let (position, last) = (scalar(self.length), scalar(last));
        let begins = HostTensor::new(
            [self.rows.len()],
            self.rows.iter().map(|row| row.begins as i32).collect::<Vec<_>>(),
        );
        let x = HostTensor::new([self.rows.len(), length], tokens);
        let inputs = [("x", &x), ("position", &position), ("last", &last), ("begins", &begins)];
        let inputs = if self.rows.len() > 1 { &inputs[..] } else { &inputs[..3] };
        let vocabulary = self.config.vocabulary;
        let logits = logits_of(&self.program(chunk)?.run(inputs)?);
        Ok(logits.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect())
    }
}

/// Positions that the caches of a decoder have room for.
fn capacity(config: &GptConfig) -> usize {
    config.context.next_multiple_of(LONGEST_CHUNK.min(config.context.next_power_of_two()))
}

/// All kinds of chunks that a decoder may read: of one token and, if there are prompts, of several.
pub(crate) fn chunks(config: &GptConfig, prompts: bool) -> Vec<Chunk> {
    let capacity = capacity(config);
    let longest = LONGEST_CHUNK.min(capacity);
    let doubled = |start: usize| std::iter::successors(Some(start), |at| Some(2 * at));
    let lengths = doubled(SHORTEST_CHUNK.min(longest)).take_while(|&length| prompts && length <= longest);
    let lengths = std::iter::once(1).chain(lengths.filter(|&length| length > 1));
    let visible = doubled(LEAST_VISIBLE).take_while(|&visible| visible < capacity);
    let visible: Vec<_> = visible.chain([capacity]).collect();
    let of_length = |length: usize| {
        let seen = visible.clone().into_iter().filter(move |&visible| length <= visible);
        seen.map(move |visible| Chunk { length, visible, capacity })
    };
    lengths.flat_map(of_length).collect()
}

/// A model that reads the last `context` tokens each time, in one program of the shape `[1, context]`; a shorter text is
/// padded on the right, where no earlier position looks.
pub(super) struct Window {
    program: Compiled,
    context: usize,
}

impl Window {
    fn new(config: &ModelConfig, adaptation: &Adaptation, states: &States, target: &Target) -> Result<Self> {
        let program = next_logits(&adaptation.evaluating(), config)?;
        Ok(Window { program: compile(&program.graph, states, target)?, context: config.context() })
    }

    fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let mut window = tokens[tokens.len().saturating_sub(self.context)..].to_vec();
        let last = window.len().checked_sub(1).expect("there is a token to continue");
        window.resize(self.context, 0);
        let x = HostTensor::new([1, self.context], window);
        let position = HostTensor::new([], vec![last as i32]);
        Ok(logits_of(&self.program.run(&[("x", &x), ("position", &position)])?))
    }
}

fn logits_of(outputs: &Outputs) -> Vec<f32> {
    outputs.get("logits").expect("a decoder has logits").as_f32().expect("logits are f32").to_vec()
}

/// From `x` of `i32[1, context]` and a `position` to the `logits` of `f32[1, 1, vocabulary]` there.
pub(crate) fn next_logits(trace: &Trace, config: &ModelConfig) -> Result<Program> {
    let x = trace.input("x", [1, config.context()], DType::I32);
    let position = trace.input("position", [], DType::I32);
    let unfit = || Error::Configuration("only a decoder and a recurrent model continue a text".into());
    let logits = config.next_tokens(&x)?.ok_or_else(unfit)?;
    let start = trace.full([], 0.0, DType::I32);
    let last = logits.dynamic_slice(&[&start, &position, &start], [1, 1, config.vocabulary()]);
    Ok(trace.finish(&[("logits", &last)])?)
}
