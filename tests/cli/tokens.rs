//! Runs on words and on pieces of words.

use super::workplace::Workplace;
use kernfusion::checkpoint::Checkpoint;

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
