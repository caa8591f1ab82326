//! Models in the layout of Hugging Face: run as they are, imported, exported, refused.

use crate::workplace::{Ended, Workplace, end};
use std::fs::File;
use std::path::Path;

/// A fixture's folder, which has no blanks in its name within the working directory.
fn with_model(name: &str) -> Workplace {
    let work = Workplace::new();
    copy(name, &work.path(name));
    work
}

fn copy(name: &str, to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hugging_face").join(name);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_published_model_and_its_checkpoint_write_the_same_text() {
    for (name, kind) in [
        ("gpt2", "a decoder of 7856 parameters"),
        ("mixtral", "a decoder of "),
        ("bert", "a BERT of "),
        ("t5", "an encoder-decoder of "),
    ] {
        let work = with_model(name);
        let written = work.succeed(&format!("import {name} -o imported"));
        assert!(written.contains(kind) && written.contains("imported"), "{written}");
        let length = if name == "bert" { "" } else { "--tokens 9" };
        let flags = format!("--prompt a_c --seed 3 {length}");
        let text = work.succeed(&format!("generate --model {name} {flags}"));
        assert_eq!(text, work.succeed(&format!("generate --checkpoint imported {flags}")), "{name}");
        let exported = work.succeed("export imported -o out/model --dtype f32");
        assert_eq!(exported, format!("{name} with tensors in one file in out/model\n"));
        assert_eq!(text, work.succeed(&format!("generate --model out/model {flags}")), "{name}");
        if name == "bert" {
            // The gap is filled with something, and no mark is shown.
            let filled = text.trim_end();
            assert!(
                filled.starts_with("a ") && filled.ends_with(" c") && !text.contains(['_', '[']),
                "{text}"
            );
        }
    }
}

/// Lines of standard input and messages of the command line are answered alike, each after all that was said before.
#[test]
fn a_conversation_is_held_by_lines_or_by_messages() {
    let work = with_model("qwen3");
    let flags = "chat --model qwen3 --tokens 5 --seed 3";
    let message = "--message ab --message c";
    let without = work.fail(&format!("{flags} {message}"));
    assert!(without.contains("qwen3 has no chat template"), "{without}");
    let template = "{% for m in messages %}{{ m.role[0] ~ m.content }}{% endfor %}a";
    work.write("qwen3/chat_template.jinja", template);
    let answers = work.succeed(&format!("{flags} {message}"));
    assert_eq!(answers.lines().count(), 2, "{answers}");
    let told = work.succeed(&format!("{flags} {message} --system be"));
    assert_ne!(told, answers);
    assert_ne!(work.succeed(&format!("{flags} --message c")).lines().next(), answers.lines().last());
    let lines = |text: &str| {
        work.write("lines", text);
        end(work.command(flags).stdin(File::open(work.path("lines")).unwrap()).spawn().unwrap())
    };
    let Ended { code, out, err } = lines("ab\n\nc\n");
    assert_eq!((code, out, err.as_str()), (Some(0), answers.clone(), ""));
    assert_eq!(lines("").out, "");
    // What was answered before a mistake stays; the mistake is said in one line.
    let long = "x".repeat(200);
    let Ended { code, out, err } = lines(&format!("ab\n{long}\nc\n"));
    assert_eq!((code, out.as_str()), (Some(1), answers.split_inclusive('\n').next().unwrap()));
    assert!(
        err.starts_with("error: ") && err.contains("the model sees") && err.lines().count() == 1,
        "{err}"
    );
    work.write("qwen3/chat_template.jinja", "{{ raise_exception('not with me') }}");
    assert!(work.fail(&format!("{flags} {message}")).ends_with("chat_template.jinja: not with me"));
}

#[test]
fn a_published_model_scores_ids_without_a_tokenizer() {
    let work = with_model("gpt2");
    let with = work.succeed("score --model gpt2 --ids 3,4,97");
    assert!(with.contains("perplexity") && with.contains("\"$\""), "{with}");
    std::fs::remove_file(work.path("gpt2/tokenizer.json")).unwrap();
    let without = work.succeed("score --model gpt2 --ids 3,4,97");
    assert_eq!(with.lines().last(), without.lines().last());
    for flags in ["score --model gpt2 --text ab", "generate --model gpt2 --prompt ab"] {
        assert!(work.fail(flags).contains("no tokenizer.json, which texts need"), "{flags}");
    }
    assert!(
        work.fail("score --model gpt2 --ids 3,98").contains("id 98 at position 1 is not in the vocabulary")
    );
}

#[test]
fn a_published_model_is_trained_further() {
    let work = with_model("llama");
    work.succeed("import llama -o imported");
    work.write(
        "rows.jsonl",
        "{\"prompt\": \"ab\", \"response\": \"cd\"}\n{\"prompt\": \"a\", \"response\": \"e\"}\n",
    );
    work.succeed("tune sft --checkpoint imported --data rows.jsonl --steps 2 --batch-size 2 --out tuned");
    work.succeed("export tuned -o again");
    work.succeed("score --model again --text abcde");
    let further = "train --config imported/shape.json --init imported/checkpoint.safetensors --tokenizer llama --steps 2 \
        --batch-size 1 --sample-tokens 0 --validation-batches 1 --out further";
    work.succeed(further);
    work.succeed("export further -o last");
    work.succeed("generate --model last --prompt ab --tokens 2");
}

#[test]
fn an_imported_model_ends_where_the_published_one_does() {
    let work = with_model("gpt2");
    work.succeed("import gpt2 -o imported");
    for seed in 1..6 {
        let text = |source: &str| {
            work.succeed(&format!("generate {source} --prompt ab --tokens 60 --temperature 3 --seed {seed}"))
        };
        assert_eq!(text("--model gpt2"), text("--checkpoint imported"), "seed {seed}");
    }
}

#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let work = with_model("gpt2");
    let long = "a".repeat(90);
    let weights = std::fs::read(work.path("gpt2/model.safetensors")).unwrap();
    assert!(
        work.fail(&format!("generate --model gpt2 --prompt {long}"))
            .contains("--prompt: it has 90 tokens, but the model sees 80")
    );
    work.succeed("import gpt2 -o imported");
    work.succeed("export imported -o out");
    assert!(work.fail("export imported -o out").contains("out is not empty; nothing was written"));
    assert!(work.fail("import gpt2 -o imported").contains("imported has a run: "));
    assert!(work.fail("export nowhere -o other").contains("there is no checkpoint at nowhere"));
    assert!(work.fail("import nowhere -o other").contains("nowhere: there is no such directory"));
    assert!(work.fail("generate --model gpt2 --checkpoint imported").contains("cannot be used with"));
    assert!(work.fail("generate").contains("<--checkpoint <DIR>|--model <DIR>>"));
    work.write("gpt2/model.safetensors", &weights[..20_000]);
    let config = std::fs::read_to_string(work.path("gpt2/config.json")).unwrap();
    let refused = |expected: &str| {
        for flags in
            ["import gpt2 -o other", "generate --model gpt2 --prompt ab", "score --model gpt2 --ids 1,2"]
        {
            let error = work.fail(flags);
            assert!(error.contains(expected), "{flags}: {error}");
        }
    };
    refused("model.safetensors is truncated: it has 20000 bytes of 33984");
    work.write("gpt2/model.safetensors", &weights);
    work.write("gpt2/config.json", config.replace("\"n_embd\": 16", "\"n_embd\": 32"));
    refused("transformer.wte.weight has shape [98, 16], not [98, 32]");
    work.write("gpt2/config.json", config.replace("\"vocab_size\": 98", "\"vocab_size\": 50"));
    refused("tokenizer.json: its last token \"<|endoftext|>\" has the id 96, but vocab_size is 50");
    work.write("gpt2/config.json", [b"\xff\xfe", config.as_bytes()].concat());
    refused("config.json: it is not UTF-8 text: the byte at offset 0 cannot be decoded");
    assert!(!work.path("other").exists());
}
