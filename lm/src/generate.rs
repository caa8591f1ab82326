//! Continuing a text: the model gives logits for the next token, the sampler picks one, and so on.
//!
//! The model sees the last tokens of the text, `context` at most. A decoder reads each token once: keys and values are kept. When
//! the context is full, its later half is read again and the rest forgotten.

mod ending;
mod reader;

use crate::checkpoint::Checkpoint;
use crate::hugging_face::{Published, SpecialTokens};
use crate::record::{Adaptation, Record, parameters};
use crate::sample::Sampler;
use crate::text::Tokenizer;
use crate::{Error, Result};
pub use ending::Ending;
use ending::Writing;
use kernfusion::WeightType;
use kernfusion::compile::Target;
use kernfusion::models::ModelConfig;
use kernfusion::trace::{Program, Trace};
use kernfusion_codegen::States;
use reader::Reader;
pub(crate) use reader::{chunks, next_logits};

/// A model that writes.
pub struct Generator {
    reader: Reader,
    tokenizer: Tokenizer,
    ending: Ending,
}

impl Generator {
    /// A generator on the parameters in `states`, as they are whenever it writes.
    ///
    /// # Errors
    /// If the shape is not valid or not that of a model that continues a text, or the program cannot be compiled.
    pub fn new(config: &ModelConfig, tokenizer: Tokenizer, states: &States, target: &Target) -> Result<Self> {
        Generator::adapted(&Adaptation::default(), config, tokenizer, states, target)
    }

    /// As [`Generator::new`], with the adapters that a model has in training.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub fn adapted(
        adaptation: &Adaptation,
        config: &ModelConfig,
        tokenizer: Tokenizer,
        states: &States,
        target: &Target,
    ) -> Result<Self> {
        let reader = Reader::new(config, adaptation, WeightType::F32, states, target)?;
        Ok(Generator { reader, tokenizer, ending: Ending::default() })
    }

    /// The model of a checkpoint, with its adapters merged. A decoder's matrices are kept as
    /// [`Target::weights`] says.
    ///
    /// # Errors
    /// As [`Generator::new`]; if the checkpoint's tensors are not those of its model.
    pub fn from_checkpoint(checkpoint: Checkpoint, target: &Target) -> Result<Self> {
        let (config, tokenizer) = Record::model(&checkpoint.meta)?;
        let tokens = SpecialTokens::imported(&checkpoint.meta).map_or(vec![], |special| special.ends);
        let restore = |program: &Program| parameters::restored(checkpoint, program, target);
        let generator = Generator::restored(&config, tokenizer, target, restore)?;
        Ok(generator.ending(Ending { tokens, ..Ending::default() }))
    }

    /// A published model. A decoder's matrices are kept as [`Target::weights`] says.
    ///
    /// # Errors
    /// As [`Generator::new`]; if the model has no tokenizer.
    pub fn from_published(model: &Published, target: &Target) -> Result<Self> {
        let (config, tokenizer) = (model.config(), model.needed_tokenizer()?.clone());
        let ending = Ending { tokens: model.special_tokens().ends.clone(), ..Ending::default() };
        let restore = |program: &Program| model.states(program, target);
        Ok(Generator::restored(config, tokenizer, target, restore)?.ending(ending))
    }

    /// With texts that end there, besides where they have ended so far: a published model's end with its own tokens.
    pub fn ending(mut self, ending: Ending) -> Self {
        self.ending.tokens.extend(ending.tokens);
        self.ending.texts.extend(ending.texts);
        self
    }

    fn restored(
        config: &ModelConfig,
        tokenizer: Tokenizer,
        target: &Target,
        restore: impl FnOnce(&Program) -> Result<States>,
    ) -> Result<Self> {
        let stored = if matches!(config, ModelConfig::Gpt(_)) { target.stored() } else { WeightType::F32 };
        let trace = Trace::new();
        trace.store_matrices(stored);
        let states = restore(&next_logits(&trace, config)?)?;
        let reader = Reader::new(config, &Adaptation::default(), stored, &states, target)?;
        Ok(Generator { reader, tokenizer, ending: Ending::default() })
    }

    /// The logits of the token that follows `tokens`, of which there is at least one.
    ///
    /// # Errors
    /// If memory is short.
    pub fn logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        self.reader.restart();
        self.next_logits(tokens)
    }

    /// As [`Generator::logits`], for a text that goes on where that of the last call ended, with the same parameters: what was
    /// read then is not read again.
    ///
    /// # Errors
    /// If memory is short.
    pub fn next_logits(&mut self, tokens: &[i32]) -> Result<Vec<f32>> {
        let mut logits = self.reader.logits(&[tokens])?.remove(0);
        // A vocabulary may be padded; only real tokens can be picked.
        logits.truncate(self.tokenizer.vocabulary_size());
        Ok(logits)
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a prompt can be continued.
    ///
    /// # Errors
    /// Names the first character that the model does not know.
    pub fn check(&self, prompt: &str) -> Result<()> {
        self.tokens(prompt).map(|_| ())
    }

    /// Continues `prompt` by `tokens` tokens at most and returns them as text; `each` sees each one as it comes. An empty prompt
    /// stands for a line break, or for the first token if the model knows none.
    ///
    /// # Errors
    /// If the prompt has a character that the model does not know, or the model's numbers have overflowed.
    pub fn generate(
        &mut self,
        prompt: &str,
        tokens: usize,
        sampler: &Sampler,
        each: &mut dyn FnMut(&str),
    ) -> Result<String> {
        let prompt = self.tokens(prompt)?;
        self.reader.restart();
        self.generate_after(&prompt, tokens, sampler, each)
    }

    /// As [`Generator::generate`], after tokens, of which there is at least one. Those at the beginning that were read last are not
    /// read again.
    ///
    /// # Errors
    /// As [`Generator::next_logits`].
    pub fn generate_after(
        &mut self,
        prompt: &[i32],
        tokens: usize,
        sampler: &Sampler,
        each: &mut dyn FnMut(&str),
    ) -> Result<String> {
        let mut writing = Writing::new(prompt);
        while writing.may_go_on(tokens) {
            let logits = self.next_logits(writing.tokens())?;
            each(&writing.push(sampler, &logits, &self.tokenizer, &self.ending)?);
        }
        each(&writing.finish(&self.tokenizer, &self.ending)?);
        Ok(writing.into_text())
    }

    /// As [`Generator::generate`], of several prompts of any lengths at once: a decoder reads its matrices once for a token of
    /// each. Each text is the one that its prompt would have alone, but for rounding; when the context is full, the longest text decides
    /// for all of them when their later halves are read again.
    ///
    /// # Errors
    /// As [`Generator::generate`]; it names the prompt's number, from 1.
    pub fn generate_all(
        &mut self,
        prompts: &[&str],
        tokens: usize,
        sampler: &Sampler,
    ) -> Result<Vec<String>> {
        let begun = |(number, prompt): (usize, &&str)| {
            let of_prompt = |error| Error::Configuration(format!("prompt {}: {error}", number + 1));
            Ok(Writing::new(&self.tokens(prompt).map_err(of_prompt)?))
        };
        let mut writings = prompts.iter().enumerate().map(begun).collect::<Result<Vec<_>>>()?;
        let rows = if prompts.len() > 1 { self.reader.of_rows(prompts.len())? } else { None };
        let Some(mut reader) = rows else {
            return prompts
                .iter()
                .map(|prompt| self.generate(prompt, tokens, sampler, &mut |_| {}))
                .collect();
        };
        while writings.iter().any(|writing| writing.may_go_on(tokens)) {
            let texts: Vec<_> = writings.iter().map(Writing::tokens).collect();
            let logits = reader.logits(&texts)?;
            for (writing, logits) in writings.iter_mut().zip(logits) {
                let logits = &logits[..self.tokenizer.vocabulary_size().min(logits.len())];
                match writing.may_go_on(tokens) {
                    true => _ = writing.push(sampler, logits, &self.tokenizer, &self.ending)?,
                    false => writing.pass(),
                }
            }
        }
        let finished = |mut writing: Writing| {
            writing.finish(&self.tokenizer, &self.ending)?;
            Ok(writing.into_text())
        };
        writings.into_iter().map(finished).collect()
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let tokens = match prompt {
            "" => self.tokenizer.encode("\n").unwrap_or_default(),
            prompt => self.tokenizer.encode(prompt)?,
        };
        // Not every vocabulary knows line breaks and blanks.
        Ok(if tokens.is_empty() { vec![0] } else { tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Meta, Tensor32};
    use crate::text::CharTokenizer;
    use kernfusion::HostTensor;
    use kernfusion::compile::Precision as ProductType;
    use kernfusion::models::{Experts, FeedForwardKind, GptConfig, LatentShape, Positions};
    use kernfusion::nn::{Normalization, Pairing, Rope};
    use kernfusion_ir::evaluate::{Precision as Rounding, evaluate};

    fn config() -> GptConfig {
        // A vocabulary of more tokens than the tokenizer has, as one that was padded.
        GptConfig { vocabulary: 12, context: 6, layers: 1, heads: 2, width: 8, ..GptConfig::default() }
    }

    fn states(config: &GptConfig) -> States {
        let states = States::new();
        for (name, tensor) in config.forward(1, 1).unwrap().initial_parameters(4) {
            // Larger than a new model's, so that logits differ visibly.
            let values: Vec<_> = tensor.to_f64().iter().map(|x| 20.0 * x).collect();
            states.set(&name, &HostTensor::from_f64(&tensor.ty(), &values)).unwrap();
        }
        states
    }

    fn generator(config: &GptConfig, states: &States) -> Generator {
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text("abcdefghi\n"));
        Generator::new(&config.clone().into(), tokenizer, states, &Target::cpu().threads(1)).unwrap()
    }

    /// The logits of the last token, from a program of exactly this length.
    fn expected(config: &GptConfig, states: &States, tokens: &[i32]) -> Vec<f64> {
        let program = config.forward(1, tokens.len()).unwrap();
        let parameters = program.initial_parameters(0).map(|(name, _)| name.to_string());
        let mut inputs: std::collections::BTreeMap<_, _> =
            parameters.map(|name| (name.clone(), states.get(&name).unwrap())).collect();
        inputs.insert("x".into(), HostTensor::new([1, tokens.len()], tokens.to_vec()));
        let logits = evaluate(&program.graph, &inputs, Rounding::Declared).unwrap().remove("logits").unwrap();
        logits.values[12 * (tokens.len() - 1)..][..10].to_vec()
    }

    fn assert_near(logits: &[f32], expected: &[f64], what: &str) {
        for (a, b) in logits.iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() < 1e-4 * b.abs().max(1.0), "{what}: {a} {b}");
        }
    }

    /// Decoders of all kinds of positions and attention.
    fn kinds() -> Vec<(&'static str, GptConfig)> {
        let rope = |pairing| Positions::Rope(Rope { pairing, ..Rope::default() });
        let llama = GptConfig {
            positions: rope(Pairing::Halves),
            heads: 4,
            kv_heads: Some(2),
            normalization: Normalization::Rms,
            feed_forward: FeedForwardKind::Swiglu,
            bias: false,
            tied: true,
            ..config()
        };
        let shape =
            LatentShape { kv_rank: 6, query_rank: None, head_width: 4, rope_width: 2, value_width: 3 };
        let latent = |query_rank| GptConfig {
            kv_heads: None,
            latent: Some(LatentShape { query_rank, ..shape }),
            positions: rope(Pairing::Adjacent),
            ..llama.clone()
        };
        let experts = Some(Experts { count: 4, active: 2, noise: 0.0, balance: 0.0 });
        vec![
            ("learned positions", config()),
            ("sinusoidal positions", GptConfig { positions: Positions::Sinusoidal, ..config() }),
            ("shared heads", llama.clone()),
            ("a window", GptConfig { window: Some(3), ..llama.clone() }),
            ("latent attention", latent(None)),
            ("latent queries", latent(Some(5))),
            ("experts", GptConfig { experts, ..llama.clone() }),
        ]
    }

    #[test]
    fn a_text_read_by_parts_is_the_text_read_at_once() {
        for (kind, config) in kinds() {
            let config = GptConfig { context: 20, layers: 2, ..config };
            let states = states(&config);
            let mut generator = generator(&config, &states);
            let text: Vec<i32> = (0..20).map(|at| (at * at + 3 * at) % 10).collect();
            // A prompt, another one after it, token by token, a text that differs, and one that was read.
            for length in [5, 11, 12, 13, 14, 20, 3, 3] {
                let logits = generator.next_logits(&text[..length]).unwrap();
                assert_near(
                    &logits,
                    &expected(&config, &states, &text[..length]),
                    &format!("{kind}, {length}"),
                );
            }
        }
    }

    #[test]
    fn a_long_text_is_read_in_tiles_and_its_later_half_again_when_the_context_is_full() {
        let config = GptConfig { context: 150, width: 4, ..config() };
        let states = states(&config);
        let mut generator = generator(&config, &states);
        let text: Vec<i32> = (0..152).map(|at| (at * at + 3 * at) % 10).collect();
        for (length, from) in [(40, 0), (41, 0), (141, 0), (142, 0), (150, 0), (151, 76), (152, 76)] {
            let logits = generator.next_logits(&text[..length]).unwrap();
            let expected = expected(&config, &states, &text[from..length]);
            assert_near(&logits, &expected, &format!("{length} tokens"));
        }
    }

    /// As in a training with a memory limit, which leaves nothing beside the step.
    #[test]
    fn a_text_is_written_in_the_arena_of_a_training_step() {
        let config = config();
        let optimizer = kernfusion::optim::Optimizer::adamw(1e-3);
        let step = config.train_step(2, &optimizer, None).unwrap();
        let target = Target::cpu().threads(1).start();
        let states = states(&config);
        let compiled = step.program.compile(&states, &target).unwrap();
        let target = target.share_arena(&compiled).memory_limit(1);
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text("abcdefghi\n"));
        let mut generator = Generator::new(&config.clone().into(), tokenizer, &states, &target).unwrap();
        for length in [4, 5] {
            let text = [3, 1, 4, 1, 5];
            let logits = generator.next_logits(&text[..length]).unwrap();
            assert_near(&logits, &expected(&config, &states, &text[..length]), "in the arena");
        }
    }

    /// As far as half a unit of 127 in each weight lets them be, and the same from the caches as from a new reading.
    #[test]
    fn matrices_of_bytes_give_nearly_the_same_logits() {
        let (config, states) = (config(), states(&config()));
        let text = [3, 1, 4, 1, 5];
        let exact = expected(&config, &states, &text);
        let names = config.forward(1, 1).unwrap().parameters;
        let tensor = |parameter: &kernfusion::trace::Parameter| {
            let data = states.get(&parameter.name).unwrap().as_f32().unwrap().to_vec();
            (parameter.name.clone(), Tensor32 { shape: parameter.shape.clone(), data })
        };
        let checkpoint = || Checkpoint {
            tensors: names.iter().map(tensor).collect(),
            meta: Meta {
                config: serde_json::json!(ModelConfig::from(config.clone())),
                step: 0,
                seed: 0,
                tokenizer: serde_json::json!(Tokenizer::Characters(CharTokenizer::from_text("abcdefghi\n"))),
                training: serde_json::Value::Null,
            },
        };
        let logits = |products, stored| {
            let target = Target::cpu().threads(1).precision(products).weights(stored);
            let mut generator = Generator::from_checkpoint(checkpoint(), &target).unwrap();
            generator.next_logits(&text[..3]).unwrap();
            let continued = generator.next_logits(&text).unwrap();
            // Rounding to bf16 magnifies the last digits, in which the two ways differ.
            if products == ProductType::F32 {
                let continued: Vec<_> = continued.iter().map(|&x| x.into()).collect();
                assert_near(&generator.logits(&text).unwrap(), &continued, "anew");
            }
            continued
        };
        assert_near(&logits(ProductType::F32, WeightType::F32), &exact, "f32");
        let size = exact.iter().fold(0.0_f64, |size, x| size.max(x.abs()));
        let far = |products, stored| {
            let pairs = logits(products, stored).into_iter().zip(&exact).collect::<Vec<_>>();
            pairs.iter().map(|(a, b)| (f64::from(*a) - **b).abs() / size).fold(0.0, f64::max)
        };
        let bf16 = far(ProductType::F32, WeightType::BF16);
        assert!(bf16 > 1e-5 && bf16 < 0.03, "{bf16}");
        for products in [ProductType::F32, ProductType::Bf16] {
            let bytes = far(products, WeightType::Int8);
            assert!(bytes > 1e-4 && bytes < 0.05, "{products:?}: {bytes}");
            let half_bytes = far(products, WeightType::Int4);
            assert!(half_bytes > bytes && half_bytes < 0.3, "{products:?}: {half_bytes}");
        }
        let rounded = far(ProductType::Int8, WeightType::Int8);
        assert!(rounded > 1e-4 && rounded < 0.08, "{rounded}");
    }

    #[test]
    fn texts_of_several_lengths_are_read_at_once() {
        for (kind, config) in kinds() {
            let states = states(&config);
            let reader = Reader::new(
                &config.clone().into(),
                &Adaptation::default(),
                WeightType::F32,
                &states,
                &Target::cpu().threads(1),
            );
            let mut reader = reader.unwrap().of_rows(3).unwrap().expect("a decoder");
            let text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
            // From prompts of several lengths on, one token after another, until the context has been full twice.
            for more in 0..8 {
                let texts = [&text[..3 + more], &text[2..3 + more], &text[..1 + more]];
                let logits = reader.logits(&texts).unwrap();
                for (row, (text, logits)) in texts.iter().zip(logits).enumerate() {
                    let longest = 3 + more;
                    // All rows begin anew with the longest one.
                    let kept = if longest <= 6 { longest } else { 3 + (longest - 7) % 4 };
                    let seen = &text[text.len() - text.len().min(kept)..];
                    let expected = expected(&config, &states, seen);
                    assert_near(&logits[..10], &expected, &format!("{kind}, row {row}, {more} more"));
                }
            }
        }
    }

    #[test]
    fn a_text_among_others_is_the_one_that_it_is_alone() {
        let config = GptConfig { context: 20, ..config() };
        let states = states(&config);
        let mut generator = generator(&config, &states);
        let sampler = Sampler::new(20.0, None, None, 7).unwrap();
        let prompts = ["abc", "hi", "", "defgh"];
        let alone: Vec<_> = prompts
            .iter()
            .map(|prompt| generator.generate(prompt, 9, &sampler, &mut |_| {}).unwrap())
            .collect();
        assert_eq!(generator.generate_all(&prompts, 9, &sampler).unwrap(), alone);
        let stop = alone[1].chars().nth(4).unwrap().to_string();
        let mut generator = generator.ending(Ending { tokens: vec![], texts: vec![stop.clone()] });
        let cut = |text: &String| text.split(&stop).next().unwrap().to_string();
        let ended = generator.generate_all(&prompts, 9, &sampler).unwrap();
        assert_eq!(ended, alone.iter().map(cut).collect::<Vec<_>>());
        let error = generator.generate_all(&["a", "xyz"], 9, &sampler).unwrap_err().to_string();
        assert!(error.contains("prompt 2: ") && error.contains("'x'"), "{error}");
    }

    #[test]
    fn new_parameters_count_from_the_next_text_on() {
        let (config, states) = (config(), states(&config()));
        let mut generator = generator(&config, &states);
        generator.logits(&[1, 2]).unwrap();
        let weight = states.get("wte.weight").unwrap();
        let doubled: Vec<_> = weight.to_f64().iter().map(|x| 2.0 * x).collect();
        states.set("wte.weight", &HostTensor::from_f64(&weight.ty(), &doubled)).unwrap();
        assert_near(&generator.logits(&[1, 2, 3]).unwrap(), &expected(&config, &states, &[1, 2, 3]), "after");
        assert!(!states.names().iter().any(|name| name.contains("cache")), "{:?}", states.names());
    }

    #[test]
    fn padding_is_not_seen_and_the_window_slides() {
        let (config, states) = (config(), states(&config()));
        let mut generator = generator(&config, &states);
        let text = [3, 1, 4, 1, 5, 9, 2, 6, 5];
        for length in 1..=text.len() {
            let logits = generator.logits(&text[..length]).unwrap();
            let seen = &text[length.saturating_sub(6)..length];
            assert_near(&logits, &expected(&config, &states, seen), &format!("length {length}"));
        }
    }

    #[test]
    fn a_text_is_a_function_of_the_seed_and_streams() {
        let mut generator = generator(&config(), &states(&config()));
        let sampler = Sampler::new(20.0, None, None, 7).unwrap();
        let mut streamed = String::new();
        let text = generator.generate("abc", 40, &sampler, &mut |piece| streamed.push_str(piece)).unwrap();
        assert_eq!((text.chars().count(), &streamed), (40, &text));
        assert_eq!(generator.generate("abc", 40, &sampler, &mut |_| {}).unwrap(), text);
        let other = Sampler::new(20.0, None, None, 8).unwrap();
        assert_ne!(generator.generate("abc", 40, &other, &mut |_| {}).unwrap(), text);
        let from_a_line_break = generator.generate("\n", 9, &sampler, &mut |_| {}).unwrap();
        assert_eq!(generator.generate("", 9, &sampler, &mut |_| {}).unwrap(), from_a_line_break);
    }

    #[test]
    fn unknown_characters_are_refused() {
        let mut generator = generator(&config(), &states(&config()));
        let sampler = Sampler::new(0.0, None, None, 0).unwrap();
        for error in [
            generator.generate("abz", 1, &sampler, &mut |_| {}).unwrap_err(),
            generator.check("abz").unwrap_err(),
        ] {
            assert!(error.to_string().contains("unknown character 'z' at position 2"), "{error}");
        }
    }
}
