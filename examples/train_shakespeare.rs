//! A few steps of a small GPT on Tiny Shakespeare (or, without the file, on the embedded text), then a sample.
//! `KERNFUSION_DATA` names the folder of `tinyshakespeare.txt`.

use kernfusion::prelude::*;
use kernfusion_lm::text::{CharTokenizer, Corpus};
use kernfusion_lm::train::{Settings, Trainer};

fn main() -> kernfusion_lm::Result<()> {
    let corpus = Corpus::default_text()?;
    let vocabulary = CharTokenizer::from_text(corpus.text()).vocabulary_size();
    let config =
        GptConfig { vocabulary, layers: 2, heads: 4, width: 64, context: 32, ..GptConfig::default() };
    let settings = Settings { batch: 8, ..Settings::default() };
    let mut trainer = Trainer::new(config, settings, &corpus, None, Target::cpu())?;
    println!("{}: {} kernels a step", corpus.name(), trainer.program().report().kernels);
    let first = trainer.step()?.loss;
    let mut last = first;
    for _ in 0..30 {
        last = trainer.step()?.loss;
    }
    println!("loss {first:.3} → {last:.3}");
    for sample in trainer.samples()? {
        println!("{}", sample.text);
    }
    assert!(last < first, "nothing was learnt");
    Ok(())
}
