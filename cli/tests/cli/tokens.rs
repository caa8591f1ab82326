//! Runs on words and on pieces of words.

use super::workplace::{Workplace, end, message};
use kernfusion_lm::checkpoint::Checkpoint;

#[test]
fn every_kind_of_token_is_trained_on_stored_and_written() {
    let work = Workplace::new();
    for kind in ["char", "word", "bpe", "bpe-words", "wordpiece"] {
        let tokens = format!("--tokenizer {kind} --vocabulary 300 --align-vocabulary 64");
        work.succeed_training(&format!("--steps 2 {tokens}"));
        let config = Checkpoint::load(&work.path("run")).unwrap().meta.config;
        let vocabulary = config["vocabulary"].as_u64().unwrap();
        assert_eq!(vocabulary, if kind == "char" { 128 } else { 320 }, "{kind}");
        let text = work.succeed("generate --checkpoint run --prompt compiler --tokens 30 --temperature 5");
        assert!(text.starts_with("compiler") && text.len() > 20, "{kind}: {text:?}");
        assert_eq!(
            work.succeed("generate --checkpoint run --prompt compiler --tokens 30 --temperature 5"),
            text
        );
        let resumed = work.succeed("train --resume run --steps 3 --sample-tokens 5");
        assert!(resumed.contains("resumed after step 2"), "{resumed}");
    }
}

#[test]
fn tokenizers_that_cannot_be() {
    let work = Workplace::new();
    work.write("broken.json", "{");
    let cases = [
        (
            "--tokenizer letters",
            "--tokenizer letters: no such file, and none of char, word, bpe, bpe-words, wordpiece",
        ),
        ("--tokenizer broken.json", "tokenizer: broken.json: "),
        (
            "--tokenizer bpe --vocabulary 100",
            "a vocabulary of 100 is too small: this tokenizer needs 257 at least",
        ),
        ("--resume run --tokenizer word", "cannot be used with"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(&format!("train {flags}"));
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

#[test]
fn a_text_has_a_probability() {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    let out = work.succeed("score --checkpoint run --text Compiler --json score.json");
    let figures = std::fs::read_to_string(work.path("score.json")).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
    let tokens = figures["tokens"].as_array().unwrap();
    assert!(
        tokens.len() == 8 && tokens[0]["log_probability"].is_null() && tokens[0]["text"] == "C",
        "{figures}"
    );
    let each: Vec<f64> = tokens[1..].iter().map(|token| token["log_probability"].as_f64().unwrap()).collect();
    let sum: f64 = each.iter().sum();
    // Three steps teach next to nothing: each of 73 characters is about as likely.
    assert!(each.iter().all(|p| (p + 73f64.ln()).abs() < 0.5), "{each:?}");
    assert!((figures["sum"].as_f64().unwrap() - sum).abs() < 1e-9);
    assert!((figures["perplexity"].as_f64().unwrap() - (-sum / 7.0).exp()).abs() < 1e-6);
    assert!(out.contains("\"C\"") && out.contains("nats per token, perplexity"), "{out}");
    let ids: Vec<_> = tokens.iter().map(|token| token["id"].to_string()).collect();
    assert_eq!(work.succeed(&format!("score --checkpoint run --ids {}", ids.join(","))), out);
    let mut empty = work.command("score --checkpoint run --text");
    let message = message(end(empty.arg("").spawn().unwrap()), "score");
    assert_eq!(message, "--text: the text is empty");
    let cases = [
        ("--text naïve", "--text: unknown character 'ï' at position 2"),
        ("--text a", "--text: the text has one token"),
        ("--ids 1,73", "--ids: id 73 at position 1 is not in the vocabulary of 73 tokens"),
        ("--ids 1,two", "invalid value 'two' for '--ids"),
        ("--ids 1,2 --text ab", "cannot be used with"),
        ("", "--text <TEXT>"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(&format!("score --checkpoint run {flags}"));
        assert!(message.contains(expected), "{flags}: {message}");
    }
    let train = "train --preset bert-tiny --steps 1 --batch-size 2 --sample-tokens 0 --validation-batches 0 --out bert";
    work.succeed(train);
    let message = work.fail("score --checkpoint bert --text ab");
    assert!(
        message.contains("bert: only a decoder and a recurrent model say how likely a text is"),
        "{message}"
    );
}
