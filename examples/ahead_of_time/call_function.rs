//! Calls a model from elsewhere that was compiled ahead of time: `call_function.c` in Rust. It depends on the crate `kernfusion-runtime`
//! alone and links `gpt2.o`; README.md beside it says how.

use std::error::Error;

mod gpt2 {
    include!(concat!(env!("ARTEFACT"), "/gpt2.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [parameters, threads, tokens @ ..] = &arguments[..] else {
        return Err("arguments: PARAMETERS THREADS TOKENS...".into());
    };
    let mut model = gpt2::open(parameters, threads.parse()?)?;
    let mut tokens = tokens.iter().map(|token| token.parse()).collect::<Result<Vec<i32>, _>>()?;
    tokens.resize(gpt2::IN_INPUT_IDS, 0);
    let mut logits = [0.0; gpt2::OUT_OUTPUT_0];
    gpt2::call(&mut model, &tokens, &mut logits)?;
    logits.iter().for_each(|logit| println!("{logit}"));
    Ok(())
}
