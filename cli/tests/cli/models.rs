//! Models of every kind in every command.

use super::workplace::Workplace;
use serde_json::Value;

const BERT: &str = r#"{"model": "bert", "layers": 1, "width": 8, "heads": 2, "context": 10}"#;
const REVERSER: &str = r#"{"model": "encoder-decoder", "layers": 1, "width": 8, "heads": 2, "source_length": 4, "target_length": 5}"#;
const LLAMA: &str = r#"{"layers": 1, "width": 8, "heads": 4, "kv_heads": 2, "context": 8, "hidden": 12, "bias": false,
    "feed_forward": "swiglu", "normalization": "rms", "positions": {"rope": {"pairing": "halves"}}, "window": 4}"#;
const DEEPSEEK: &str = r#"{"layers": 1, "width": 8, "heads": 2, "context": 8, "bias": false, "feed_forward": "swiglu",
    "normalization": "rms", "positions": {"rope": {}},
    "latent": {"kv_rank": 4, "head_width": 4, "rope_width": 2, "value_width": 4}}"#;

/// A directory with a configuration of each kind.
fn workplace() -> Workplace {
    let work = Workplace::new();
    for (name, json) in [("bert", BERT), ("reverser", REVERSER), ("llama", LLAMA), ("deepseek", DEEPSEEK)] {
        work.write(&format!("{name}.json"), json);
    }
    work
}

fn train(work: &Workplace, name: &str, flags: &str) -> String {
    let fixed = "--batch-size 2 --validation-batches 1";
    work.succeed(&format!(
        "train --config {name}.json {fixed} --out {name} --overwrite --log {name}.jsonl {flags}"
    ))
}

#[test]
fn a_resumed_run_of_any_kind_is_the_uninterrupted_one() {
    let work = workplace();
    for name in ["bert", "reverser", "llama", "deepseek"] {
        train(&work, name, "--steps 4 --sample-tokens 3 --dropout 0.1");
        let whole = work.losses(&format!("{name}.jsonl"));
        assert_eq!(whole.len(), 4);
        train(&work, name, "--steps 2 --sample-tokens 0 --dropout 0.1");
        work.succeed(&format!("train --resume {name} --steps 4 --sample-tokens 0 --log {name}.jsonl"));
        assert_eq!(work.losses(&format!("{name}.jsonl")), whole, "{name}");
    }
}

#[test]
fn microbatches_of_the_batch_give_the_losses_of_the_whole_one() {
    let work = workplace();
    for name in ["bert", "reverser", "llama", "deepseek"] {
        let losses = ["1", "2"].map(|microbatches| {
            train(
                &work,
                name,
                &format!("--steps 4 --sample-tokens 0 --dropout 0.1 --microbatches {microbatches}"),
            );
            work.losses(&format!("{name}.jsonl"))
        });
        let [whole, sliced] = &losses;
        assert!(
            whole.len() == 4 && whole.iter().zip(sliced).all(|(a, b)| (a.1 - b.1).abs() < 1e-4),
            "{name}: {losses:?}"
        );
    }
}

#[test]
fn a_trained_model_of_each_kind_does_what_it_is_for() {
    let work = workplace();
    let out = train(&work, "bert", "--steps 1 --sample-tokens 1");
    assert!(out.contains("gaps filled as they were"), "{out}");
    let filled = work.succeed("generate --checkpoint bert --prompt a_p__");
    let characters: Vec<char> = filled.trim_end_matches('\n').chars().collect();
    assert_eq!((characters.len(), characters[0], characters[2]), (5, 'a', 'p'), "{filled}");
    assert!(out.ends_with("kernfusion generate --checkpoint bert --prompt \"TEXT WITH GAPS _\"\n"), "{out}");
    let fills = "generate --checkpoint bert";
    for (flags, expected) in [
        ("", "--prompt is needed: a text with gaps, each written _"),
        ("--prompt a_b --tokens 3", "--tokens is for models that write: a BERT fills gaps"),
        ("--prompt a_b --beams 2", "--beams is for encoder-decoders"),
        ("--prompt a_b --temperature 0.5", "--temperature, --top-k and --top-p are for models that continue"),
    ] {
        assert!(work.fail(&format!("{fills} {flags}")).contains(expected), "{flags}");
    }
    let message = work.fail("generate --checkpoint bert --prompt longer_than_ten");
    assert!(
        message.contains("--prompt: configuration: a text of 15 tokens: the model sees 1 to 10"),
        "{message}"
    );

    let out = train(&work, "reverser", "--steps 1 --sample-tokens 1");
    assert!(
        out.contains("random letters") && out.contains("of 256 windows reversed without a mistake"),
        "{out}"
    );
    assert!(out.ends_with("kernfusion generate --checkpoint reverser --prompt \"TEXT\"\n"), "{out}");
    let message = work.fail("generate --checkpoint reverser");
    assert!(
        message.contains("--prompt is needed: the text that the model turns into another one"),
        "{message}"
    );
    let message = work.fail("generate --checkpoint reverser --prompt abcd --top-k 3");
    assert!(message.contains("are for models that continue a text"), "{message}");
    for beams in [1, 3] {
        let written = work.succeed(&format!("generate --checkpoint reverser --prompt abcd --beams {beams}"));
        assert!(written.trim_end_matches('\n').len() <= 5, "{written}");
    }
    let message = work.fail("generate --checkpoint reverser --prompt ABCD");
    assert!(message.contains("--prompt: unknown character 'A'"), "{message}");

    let out = train(&work, "llama", "--steps 1 --sample-tokens 1");
    assert!(out.ends_with("kernfusion generate --checkpoint llama\n"), "{out}");
    assert_eq!(work.fail("generate --checkpoint llama --beams 2"), "--beams is for encoder-decoders");
    assert!(work.succeed("generate --checkpoint llama --prompt ab --tokens 12").starts_with("ab"));
}

#[test]
fn every_command_takes_models_of_every_kind() {
    let work = workplace();
    for name in ["bert", "reverser", "llama", "deepseek"] {
        let model = format!("--config {name}.json --batch-size 2");
        work.succeed(&format!("bench {model} --steps 1 --warmup 0 --json {name}-bench.json"));
        let text = std::fs::read_to_string(work.path(&format!("{name}-bench.json"))).unwrap();
        let losses: Vec<_> = serde_json::from_str::<Value>(&text).unwrap()["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["loss_first"].as_f64().unwrap())
            .collect();
        assert!((losses[0] - losses[1]).abs() < 1e-4 && losses[0] > 2.0, "{name}: {losses:?}");
        for command in ["dump --stage trace", "dump --stage fuse", "dump --stage cuda", "explain"] {
            assert!(!work.succeed(&format!("{command} {model}")).is_empty());
        }
        work.succeed(&format!("explain {model} --work forward"));
    }
}

#[test]
fn shapes_that_make_no_sense_are_refused_with_a_reason() {
    let work = workplace();
    let cases = [
        (r#"{"model": "rnn"}"#, "unknown model \"rnn\", expected gpt, recurrent, bert or encoder-decoder"),
        (r#"{"model": "bert", "tied": true}"#, "unknown field `tied`"),
        (
            r#"{"model": "encoder-decoder", "target_length": 12}"#,
            "target_length 12 is too short to write 12 tokens",
        ),
        (r#"{"model": "bert", "vocabulary": 5}"#, "vocabulary 5 is too small"),
        (r#"{"kv_heads": 3}"#, "heads 4 is not a multiple of kv_heads 3"),
    ];
    for (json, expected) in cases {
        work.write("wrong.json", json);
        let message = work.fail("train --config wrong.json --steps 1");
        assert!(message.contains(expected), "{message}");
    }
}
