//! Runs that stop, go on, and are killed, and what the trained model writes.

use super::workplace::{TRAIN, Workplace, end};
use kernfusion::tensor_file;
use kernfusion_ir::Tensor;
use kernfusion_ir::samples::Draws;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[test]
fn a_run_is_resumed_only_as_what_it_is() {
    let work = Workplace::new();
    work.succeed_training("--steps 2");
    work.write("other.json", r#"{"layers": 2, "width": 16, "heads": 2, "context": 8}"#);
    let message = work.fail("train --resume run --steps 4 --config other.json --lr 0.5 --seed 7");
    for field in [
        "layers is 1, not 2",
        "width is 8, not 16",
        "optimizer.learning_rate is 0.001, not 0.5",
        "seed is 1, not 7",
    ] {
        assert!(message.contains(field), "{message}");
    }
    assert!(!message.contains("heads") && !message.contains("steps is"), "{message}");
    work.write("novel.txt", "It was the best of texts, it was the worst of texts. ".repeat(20));
    let message = work.fail("train --resume run --data novel.txt");
    assert!(message.contains("the text is the embedded text, not novel.txt"), "{message}");
    let out = work.succeed("train --resume run");
    assert!(out.contains("all 2 steps are done"), "{out}");
    work.succeed_training("--steps 2 --data novel.txt");
    work.write("novel.txt", "It was the worst of texts, it was the best of texts. ".repeat(20));
    let message = work.fail("train --resume run");
    assert!(message.ends_with("the text in novel.txt has changed since the run began"), "{message}");
}

#[test]
fn a_checkpoint_says_what_its_products_were_of() {
    let work = Workplace::new();
    let products = || {
        let bytes = std::fs::read(work.path("run/checkpoint.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let training = header["__metadata__"]["training"].as_str().unwrap();
        serde_json::from_str::<serde_json::Value>(training).unwrap()["products"].clone()
    };
    let out = work.succeed_training("--steps 1 --dtype bf16");
    assert!(!out.contains("note:"), "{out}");
    assert_eq!(products(), "bf16");
    let out = work.succeed("train --resume run --steps 2 --dtype bf16");
    assert!(!out.contains("note:"), "{out}");
    let out = work.succeed("train --resume run --steps 3");
    assert!(out.contains("until now products were of bf16, from here on they are of f32"), "{out}");
    assert_eq!(products(), "f32");
}

#[test]
fn parameters_come_from_a_file_or_are_all_listed() {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    let trained = work.path("run").join(CHECKPOINT_FILE);
    std::fs::copy(&trained, work.path("init.safetensors")).unwrap();
    // With a learning rate of zero the parameters stay what they were.
    work.succeed("train --config small.json --batch-size 2 --steps 1 --lr 0 --sample-tokens 0 --init init.safetensors --out copy");
    let [a, b] = ["run", "copy"].map(|run| Checkpoint::load(&work.path(run)).unwrap().tensors);
    let parameters = a.iter().filter(|(name, _)| !name.starts_with("optimizer."));
    assert!(
        parameters.count() > 10 && a["head.weight"] == b["head.weight"] && a["wte.weight"] == b["wte.weight"]
    );
    let mut tensors = tensor_file::read(&trained).unwrap();
    tensors.remove("ln_f.weight");
    tensors.insert("extra".into(), Tensor::new([1], vec![0.0f32]));
    tensors.insert("wpe.weight".into(), Tensor::new([2, 3], vec![0.0f32; 6]));
    tensor_file::write(&work.path("bad.safetensors"), &tensors).unwrap();
    let message = work.fail(&format!("{TRAIN} --init bad.safetensors"));
    for part in ["missing ln_f.weight", "not of this model extra", "wpe.weight has shape [2, 3], not [8, 8]"]
    {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn neither_threads_nor_interruptions_nor_a_second_run_change_a_loss() {
    let work = Workplace::new();
    work.succeed_training("--steps 12 --dropout 0.1 --threads 1 --log one.jsonl");
    work.succeed_training("--steps 12 --dropout 0.1 --threads 2 --log two.jsonl");
    work.succeed_training("--steps 5 --dropout 0.1 --log parts.jsonl");
    work.succeed("train --resume run --steps 9 --log parts.jsonl");
    let again = work.succeed("train --resume run --steps 12 --log parts.jsonl");
    assert!(again.contains("resumed after step 9"), "{again}");
    let expected = work.losses("one.jsonl");
    assert_eq!(expected.iter().map(|row| row.0).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert!(expected.iter().all(|row| row.1 > 1.0 && row.1 < 8.0), "{expected:?}");
    assert_eq!(work.losses("two.jsonl"), expected);
    assert_eq!(work.losses("parts.jsonl"), expected);
    work.succeed_training("--steps 12 --dropout 0.1 --seed 2 --log other.jsonl");
    assert_ne!(work.losses("other.jsonl"), expected);
}

#[test]
fn compiled_and_eager_training_agree() {
    let work = Workplace::new();
    for mode in ["compiled", "eager"] {
        work.succeed_training(&format!(
            "--steps 8 --lr 0.01 --order sequential --mode {mode} --log {mode}.jsonl"
        ));
    }
    let [compiled, eager] = ["compiled.jsonl", "eager.jsonl"].map(|log| work.losses(log));
    assert_eq!(compiled.len(), 8);
    for (a, b) in compiled.iter().zip(&eager) {
        assert!((a.1 - b.1).abs() < 1e-4, "{a:?} {b:?}");
    }
    assert!(compiled[7].1 < compiled[0].1, "{compiled:?}");
}

/// Waits until a log has more than `rows` rows, or the process has ended.
fn wait_for_rows(child: &mut Child, log: &Path, rows: usize) {
    let start = Instant::now();
    let enough = || std::fs::read_to_string(log).is_ok_and(|text| text.lines().count() > rows);
    while !enough() && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(50), "no row {rows} in {}", log.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(unix)]
#[test]
fn control_c_leaves_a_checkpoint_that_goes_on() {
    let work = Workplace::new();
    let flags = "--checkpoint-every 0 --validate-every 0 --log log.jsonl";
    let mut child = work.command(&format!("{TRAIN} --steps 1000000 {flags}")).spawn().unwrap();
    wait_for_rows(&mut child, &work.path("log.jsonl"), 3);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = end(child);
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    let step = Checkpoint::load(&work.path("run")).unwrap().meta.step;
    assert!(step >= 3 && ended.out.contains(&format!("stopped after step {step}")), "{}", ended.out);
    work.succeed(&format!("train --resume run --steps {} --log log.jsonl", step + 2));
    let steps: Vec<_> = work.losses("log.jsonl").iter().map(|row| row.0).collect();
    assert_eq!(steps, (1..=step + 2).collect::<Vec<_>>());
}

#[test]
fn a_run_killed_twenty_times_has_the_losses_of_one_that_was_not() {
    let work = Workplace::new();
    let flags = "--steps 120 --dropout 0.1 --checkpoint-every 2 --validate-every 7";
    work.succeed_training(&format!("{flags} --log whole.jsonl"));
    let mut draws = Draws::new(20);
    let log = work.path("killed.jsonl");
    let mut resumed = 0;
    let begin = |resume: bool| match resume {
        true => work.command("train --resume run --log killed.jsonl").spawn().unwrap(),
        false => work.command(&format!("{TRAIN} {flags} --log killed.jsonl")).spawn().unwrap(),
    };
    std::fs::remove_dir_all(work.path("run")).unwrap();
    for _ in 0..20 {
        let resume = work.path("run").join(CHECKPOINT_FILE).exists();
        resumed += usize::from(resume);
        let mut child = begin(resume);
        let rows = std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
        wait_for_rows(&mut child, &log, rows.saturating_sub(2) + draws.below(6));
        std::thread::sleep(Duration::from_micros(draws.below(3000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(resumed >= 10, "{resumed}");
    assert_eq!(end(begin(true)).code, Some(0));
    assert_eq!(work.losses("killed.jsonl"), work.losses("whole.jsonl"));
}

#[test]
fn several_texts_are_what_each_is_alone_and_end_where_they_are_told_to() {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    work.write("prompts.txt", "The\n\nA te");
    let lines = |flags: &str| {
        let out =
            work.succeed(&format!("generate --checkpoint run --tokens 4 --prompts prompts.txt {flags}"));
        let rows = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        rows.map(|row| [&row["prompt"], &row["text"]].map(|part| part.as_str().unwrap().to_string()))
            .collect::<Vec<_>>()
    };
    let rows = lines("");
    assert_eq!(rows.iter().map(|[prompt, _]| prompt.as_str()).collect::<Vec<_>>(), ["The", "", "A te"]);
    let alone = work.succeed("generate --checkpoint run --tokens 4 --prompt The");
    assert_eq!(alone, format!("The{}\n", rows[0][1]));
    let stop: String = rows[0][1].chars().skip(1).take(1).collect();
    let mut command = work.command("generate --checkpoint run --tokens 4 --prompts prompts.txt");
    let ended = command.arg("--stop").arg(&stop).output().unwrap();
    let first = String::from_utf8(ended.stdout).unwrap().lines().next().unwrap().to_string();
    let text =
        serde_json::from_str::<serde_json::Value>(&first).unwrap()["text"].as_str().unwrap().to_string();
    assert_eq!(text, rows[0][1].split(&stop).next().unwrap());
    for weights in ["bf16", "int8"] {
        assert_eq!(lines(&format!("--weights {weights}")).len(), 3);
    }
    assert!(work.fail("generate --checkpoint run --prompts none.txt").contains("none.txt"));
    work.write("bad.txt", "The\nna\u{ef}ve");
    assert!(work.fail("generate --checkpoint run --prompts bad.txt").contains("bad.txt: line 2: "));
    work.write("empty.txt", "");
    assert!(work.fail("generate --checkpoint run --prompts empty.txt").contains("no prompt"));
}

#[test]
fn texts_are_a_function_of_the_seed() {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    let generate = |flags: &str| work.succeed(&format!("generate --checkpoint run --tokens 20 {flags}"));
    let text = generate("--prompt Compiler --seed 5");
    assert!(text.starts_with("Compiler") && text.chars().count() == 8 + 20 + 1, "{text:?}");
    assert_eq!(generate("--prompt Compiler --seed 5 --threads 1"), text);
    assert_ne!(generate("--prompt Compiler --seed 6"), text);
    let greedy = generate("--temperature 0");
    assert_eq!(generate("--top-k 1 --seed 9"), greedy);
    assert_ne!(generate("--top-k 5 --top-p 0.9 --seed 9"), greedy);
    let message = work.fail("generate --checkpoint run --prompt naïve");
    assert!(message.contains("--prompt: unknown character 'ï' at position 2"), "{message}");
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    let work = Workplace::new();
    let flags =
        "--config small.json --steps 4 --lr 0.01 --dropout 0.1 --sample-tokens 0 --validation-batches 1";
    work.succeed(&format!("train {flags} --batch-size 8 --out large --log large.jsonl"));
    work.succeed(&format!("train {flags} --batch-size 2 --accumulate 4 --out small --log small.jsonl"));
    let [large, small] = ["large.jsonl", "small.jsonl"].map(|log| work.losses(log));
    assert_eq!(small.len(), 4);
    for (a, b) in large.iter().zip(&small) {
        assert!((a.1 - b.1).abs() < 1e-5, "{a:?} {b:?}");
    }
    assert!(small[0].1 != small[3].1, "{small:?}");
    let settings = Checkpoint::load(&work.path("small")).unwrap().meta.training["settings"].clone();
    assert_eq!((settings["batch"].as_u64(), settings["microbatches"].as_u64()), (Some(8), Some(4)));
}

#[test]
fn adapters_are_trained_on_a_model_and_go_with_it() {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    let base = Checkpoint::load(&work.path("run")).unwrap().tensors;
    let init = "--init run/checkpoint.safetensors";
    let train = "train --config small.json --batch-size 2 --sample-tokens 0 --out tuned --overwrite --steps 4 --lr 0.5";
    let out = work.succeed(&format!("{train} {init} --lora 2 --lora-targets attn,mlp"));
    // Rank 2 between widths 8 and 24, 8 and 8, 8 and 32, 32 and 8.
    assert!(out.contains(", 256 of them trained"), "{out}");
    let tuned = Checkpoint::load(&work.path("tuned")).unwrap().tensors;
    assert!(
        base.iter().filter(|(name, _)| !name.starts_with("optimizer.")).all(|(name, x)| tuned[name] == *x)
    );
    let size = |directory: &str| std::fs::metadata(work.path(directory).join(CHECKPOINT_FILE)).unwrap().len();
    assert!(size("tuned/adapter") < size("tuned") / 3);
    let text = |flags: &str| work.succeed(&format!("generate --tokens 60 --temperature 2 {flags}"));
    let adapted = text("--checkpoint tuned");
    assert_eq!(text("--checkpoint run --adapter tuned/adapter"), adapted);
    assert_ne!(text("--checkpoint run"), adapted);
    let score = |flags: &str| work.succeed(&format!("score --ids 1,2,3,4 {flags}"));
    assert_eq!(score("--checkpoint run --adapter tuned/adapter"), score("--checkpoint tuned"));
    assert_ne!(score("--checkpoint run"), score("--checkpoint tuned"));
    let message = work.fail("generate --checkpoint tuned --adapter run");
    assert!(message.ends_with("there are no adapters in this checkpoint"), "{message}");
    let message = work.fail(&format!("{train} {init} --freeze blocks.7"));
    assert!(message.contains("no parameter under \"blocks.7\""), "{message}");
    let out = work.succeed(&format!("{train} {init} --freeze wte --freeze blocks.0"));
    assert!(out.contains(" of them trained"), "{out}");
}

#[test]
fn averages_are_kept_and_can_write() {
    let work = Workplace::new();
    work.succeed_training("--steps 6 --optimizer asgd --lr 0.5 --average-from 2");
    let tensors = Checkpoint::load(&work.path("run")).unwrap().tensors;
    assert_ne!(tensors["optimizer.a.head.weight"], tensors["head.weight"]);
    let text =
        |flags: &str| work.succeed(&format!("generate --checkpoint run --tokens 60 --temperature 2 {flags}"));
    assert_ne!(text("--averaged"), text(""));
    let score = |flags: &str| work.succeed(&format!("score --checkpoint run --ids 1,2,3,4 {flags}"));
    assert_ne!(score("--averaged"), score(""));
    work.succeed_training("--steps 1");
    let message = work.fail("generate --checkpoint run --averaged");
    assert!(message.ends_with("there are no averages: it was not trained with asgd"), "{message}");
}

#[test]
fn training_in_bf16_is_resumed_exactly() {
    let work = Workplace::new();
    work.succeed_training("--steps 9 --dropout 0.1 --dtype bf16 --threads 1 --log one.jsonl");
    let whole = Checkpoint::load(&work.path("run")).unwrap().tensors;
    work.succeed_training("--steps 4 --dropout 0.1 --dtype bf16 --log parts.jsonl");
    work.succeed("train --resume run --steps 9 --dtype bf16 --log parts.jsonl");
    assert_eq!(work.losses("parts.jsonl"), work.losses("one.jsonl"));
    assert_eq!(Checkpoint::load(&work.path("run")).unwrap().tensors, whole);
    work.succeed_training("--steps 9 --dropout 0.1 --log wide.jsonl");
    assert_ne!(work.losses("wide.jsonl"), work.losses("one.jsonl"));
}

/// Weights beyond all measure after one step: the next one names what overflows first, and where it is in the model.
#[test]
fn a_run_that_diverges_is_told_where() {
    let work = Workplace::new();
    let ended = work.run(&format!("{TRAIN} --steps 4 --lr 1e30 --threads 1 --check-finite"));
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains(" made ") && ended.err.contains("src/models/gpt.rs:"), "{}", ended.err);
    assert!(ended.err.contains("\n  in "), "{}", ended.err);
    // Without the flag the loss alone is known.
    let ended = work.run(&format!("{TRAIN} --steps 4 --lr 1e30 --threads 1"));
    assert!(ended.err.contains("the loss is") && !ended.err.contains(" made "), "{}", ended.err);
}
