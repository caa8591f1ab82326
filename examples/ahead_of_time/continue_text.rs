//! Continues a text of tokens, always by the likeliest one, with a model that was compiled ahead of time: `continue_text.c` in
//! Rust. It depends on the crate `kernfusion-runtime` alone and links `tiny.o`; README.md beside it says how.

use std::error::Error;

mod tiny {
    include!(concat!(env!("ARTEFACT"), "/tiny.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [parameters, threads, more, first @ ..] = &arguments[..] else {
        return Err("arguments: PARAMETERS THREADS TOKENS FIRST...".into());
    };
    let mut model = tiny::open(parameters, threads.parse()?)?;
    let mut text = first.iter().map(|token| token.parse()).collect::<Result<Vec<i32>, _>>()?;
    let mut logits = [0.0; tiny::VOCABULARY];
    // The first tokens at once, and then one after another.
    model.read(&text, 0, &mut logits)?;
    for _ in 0..more.parse::<usize>()?.min(tiny::CONTEXT - text.len()) {
        let position = text.len();
        text.push(likeliest(&logits));
        model.read(&text[position..], position, &mut logits)?;
    }
    text.iter().for_each(|token| print!("{token} "));
    println!("{:08x}", logits.iter().fold(0u32, |sum, logit| sum.wrapping_add(logit.to_bits())));
    Ok(())
}

fn likeliest(logits: &[f32]) -> i32 {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, better) as i32
}
