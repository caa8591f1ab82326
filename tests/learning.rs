//! Small models of every kind learn what they are made for, in seconds. The full figures come from `kernfusion train` with
//! the presets.

use kernfusion::compile::Target;
use kernfusion::models::{Experts, FeedForwardKind, LatentShape, Positions, RecurrentLmConfig};
use kernfusion::nn::Cell;
use kernfusion::prelude::*;
use kernfusion_lm::text::Corpus;
use kernfusion_lm::train::{Settings, Trainer};

/// A run after `steps` steps.
fn trained(config: impl Into<ModelConfig>, corpus: &Corpus, steps: u64, rate: f64) -> Trainer {
    let settings = Settings {
        steps,
        batch: 16,
        optimizer: Optimizer::adamw(rate),
        schedule: Schedule::WarmUp { steps: 20 },
        validation_batches: 4,
        ..Settings::default()
    };
    let mut trainer = Trainer::new(config, settings, corpus, None, Target::cpu().threads(2)).expect("a run");
    for _ in 0..steps {
        trainer.step().expect("a step");
    }
    trainer
}

/// Sentences of one grammar: what stands at a place follows from its neighbours.
fn sentences() -> Corpus {
    let subjects = ["the fox", "a hen", "my cat"];
    let verbs = ["sees", "likes", "fears"];
    let sentence = |i: usize| {
        let (subject, verb, object) = (subjects[i * 5 % 3], verbs[i * i % 3], subjects[i * 7 / 2 % 3]);
        format!("{subject} {verb} {object}. ")
    };
    Corpus::from_text("sentences", (0..400).map(sentence).collect::<String>()).expect("a text")
}

#[test]
fn a_bert_fills_gaps() {
    let config =
        BertConfig { vocabulary: 30, context: 24, layers: 2, heads: 2, width: 48, ..BertConfig::default() };
    let mut trainer = trained(config, &sentences(), 600, 2e-3);
    let loss = trainer.validation_loss().expect("evaluates").expect("measured");
    // Guessing by frequency alone gives about 2.7 nats; half of the tokens have one possibility in their place.
    assert!(loss < 0.7, "{loss}");
}

#[test]
fn an_encoder_decoder_reverses_what_it_has_never_seen() {
    let letters = Corpus::random_letters();
    let few = letters.text().chars().map(|letter| char::from(b'a' + letter as u8 % 5));
    let corpus = Corpus::from_text("five letters", few.take(20_000).collect::<String>()).expect("a text");
    let config = EncoderDecoderConfig {
        vocabulary: 7,
        source_length: 5,
        target_length: 6,
        layers: 1,
        heads: 2,
        width: 32,
        hidden: Some(64),
        ..EncoderDecoderConfig::default()
    };
    let mut trainer = trained(config, &corpus, 1200, 3e-3);
    let sample = trainer.samples().expect("writes").remove(0).text;
    let exact: usize = sample.split(' ').next().and_then(|count| count.parse().ok()).expect("a count");
    assert!(exact >= 230, "{sample}");
}

#[test]
fn decoders_of_every_kind_continue_a_text() {
    let llama = GptConfig {
        vocabulary: 30,
        context: 24,
        layers: 2,
        heads: 4,
        kv_heads: Some(2),
        width: 32,
        hidden: Some(64),
        bias: false,
        feed_forward: FeedForwardKind::Swiglu,
        normalization: Normalization::Rms,
        positions: Positions::Rope(Rope { pairing: Pairing::Halves, ..Rope::default() }),
        ..GptConfig::default()
    };
    let latent = LatentShape { query_rank: None, kv_rank: 12, head_width: 8, rope_width: 4, value_width: 8 };
    let deepseek = GptConfig { kv_heads: None, latent: Some(latent), ..llama.clone() };
    let experts = Some(Experts { count: 4, active: 2, noise: 0.1, balance: 0.01 });
    let mixtral = GptConfig { experts, hidden: Some(32), ..llama.clone() };
    for config in [llama, deepseek, mixtral] {
        let mut trainer = trained(config, &sentences(), 150, 3e-3);
        let loss = trainer.validation_loss().expect("evaluates").expect("measured");
        assert!(loss < 0.6, "{loss}");
    }
}

#[test]
fn recurrent_models_continue_a_text() {
    let lstm = RecurrentLmConfig {
        vocabulary: 30,
        context: 24,
        layers: 2,
        width: 32,
        hidden: 48,
        weight_drop: 0.1,
        change_penalty: 0.1,
        tied: true,
        ..RecurrentLmConfig::default()
    };
    let gru = RecurrentLmConfig { cell: Cell::Gru, layers: 1, ..lstm.clone() };
    for config in [lstm, gru] {
        let mut trainer = trained(config, &sentences(), 300, 1e-2);
        let loss = trainer.validation_loss().expect("evaluates").expect("measured");
        assert!(loss < 0.8, "{loss}");
    }
}
