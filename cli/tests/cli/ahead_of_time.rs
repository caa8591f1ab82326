//! Models compiled ahead of time, as programs in C and Rust run them: the two examples, linked with what `compile` writes.

use super::workplace::{Ended, Workplace, end};
use kernfusion::compile::{Precision, Target};
use kernfusion_ir::DType;
use kernfusion_lm::checkpoint::Checkpoint;
use kernfusion_lm::generate::Generator;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longer than two of the sizes that caches are looked at in.
const CONFIG: &str = r#"{"layers": 1, "width": 8, "heads": 2, "context": 150}"#;

/// A directory with a trained model.
fn workplace() -> Workplace {
    let work = Workplace::new();
    work.write("model.json", CONFIG);
    work.succeed("train --config model.json --batch-size 2 --steps 3 --sample-tokens 0 --validation-batches 1 --out run");
    work
}

/// What the example in C says.
fn run_c(work: &Workplace, arguments: &str) -> Ended {
    let mut command = Command::new(work.path("c"));
    end(command.args(arguments.split_whitespace()).current_dir(work.0.path()).piped().spawn().unwrap())
}

trait Piped {
    fn piped(&mut self) -> &mut Self;
}

impl Piped for Command {
    fn piped(&mut self) -> &mut Self {
        self.stdout(Stdio::piped()).stderr(Stdio::piped())
    }
}

fn build(mut command: Command) {
    let ended = end(command.piped().spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{command:?}: {}{}", ended.out, ended.err);
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ahead_of_time").join(name)
}

fn build_c(work: &Workplace) {
    let mut command = Command::new("cc");
    let files = ["artefact/tiny.o", "artefact/libkernfusion_runtime.a"].map(|name| work.path(name));
    command.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"]).arg(work.path("artefact"));
    command.arg(example("continue_text.c")).args(files).args(["-lm", "-lpthread", "-ldl", "-o"]);
    command.arg(work.path("c"));
    build(command);
}

/// The newest library that this test was built from, as a package with that dependency would link it.
fn runtime() -> (PathBuf, PathBuf) {
    let deps = Path::new(env!("CARGO_BIN_EXE_kernfusion")).parent().unwrap().join("deps");
    let entries = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let is_runtime = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("libkernfusion_runtime-") && name.ends_with(".rlib")
    };
    let newest = entries.filter(is_runtime).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    (newest.expect("a dependency of the program"), deps)
}

fn build_rust(work: &Workplace) {
    let (library, deps) = runtime();
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    command.arg("--edition=2024").arg(example("continue_text.rs")).arg("-o").arg(work.path("rust"));
    command.arg("--extern").arg(format!("kernfusion_runtime={}", library.display()));
    command.arg("-L").arg(format!("dependency={}", deps.display()));
    command.arg("-C").arg(format!("link-arg={}", work.path("artefact/tiny.o").display()));
    command.env("ARTEFACT", work.path("artefact"));
    build(command);
}

/// What the examples should print, from the same parts one after another.
fn expected(work: &Workplace, precision: Precision, stored: DType, first: &[i32], more: usize) -> String {
    let checkpoint = Checkpoint::load(&work.path("run")).unwrap();
    let target = Target::cpu().precision(precision).weights(stored).threads(1);
    let mut generator = Generator::from_checkpoint(checkpoint, &target).unwrap();
    let mut text = first.to_vec();
    let mut logits = generator.logits(&text).unwrap();
    for _ in 0..more {
        let likeliest =
            (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
        text.push(likeliest as i32);
        logits = generator.next_logits(&text).unwrap();
    }
    let sum = logits.iter().fold(0u32, |sum, logit| sum.wrapping_add(logit.to_bits()));
    let text: Vec<_> = text.iter().map(i32::to_string).collect();
    format!("{} {sum:08x}\n", text.join(" "))
}

#[test]
fn c_and_rust_continue_a_text_as_the_generator_does() {
    let work = workplace();
    let out = work.succeed("compile --checkpoint run --work prefill --name tiny -o artefact");
    assert!(out.contains("tiny.h, tiny.o, tiny.rs, tiny.safetensors"), "{out}");
    build_c(&work);
    build_rust(&work);
    // 71 tokens at once, then enough more that the number of visible positions doubles twice.
    let first: Vec<i32> = (0..71).map(|i| i * i % 60).collect();
    let expected = expected(&work, Precision::F32, DType::F32, &first, 79);
    let first: Vec<_> = first.iter().map(i32::to_string).collect();
    for threads in [1, 2] {
        let arguments = format!("artefact/tiny.safetensors {threads} 79 {}", first.join(" "));
        let ended = run_c(&work, &arguments);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (expected.as_str(), ""));
        let mut command = Command::new(work.path("rust"));
        command.args(arguments.split_whitespace()).current_dir(work.0.path());
        let ended = end(command.piped().spawn().unwrap());
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (expected.as_str(), ""));
    }
    for program in ["c", "rust"] {
        let bytes = std::fs::read(work.path(program)).unwrap();
        for compiler in ["cranelift", "petgraph", "kernfusion_passes", "kernfusion_ir"] {
            let found = bytes.windows(compiler.len()).any(|bytes| bytes == compiler.as_bytes());
            assert!(!found, "{program} has something of {compiler}");
        }
    }
}

#[test]
fn one_token_after_another_with_narrow_weights_and_for_other_processors() {
    let work = workplace();
    let (f32, bf16) = (Precision::F32, Precision::Bf16);
    for (flags, kept) in [
        ("--dtype bf16", Some((bf16, DType::BF16))),
        ("--weights int8", Some((f32, DType::I8))),
        // Other instructions round otherwise.
        ("--cpu avx2", None),
        ("--cpu baseline", None),
    ] {
        work.succeed(&format!("compile --checkpoint run {flags} --name tiny -o artefact --overwrite"));
        build_c(&work);
        let ended = run_c(&work, "artefact/tiny.safetensors 2 20 5");
        match kept {
            Some((precision, stored)) => {
                assert_eq!(ended.out, expected(&work, precision, stored, &[5], 20), "{}", ended.err);
            }
            None => assert_eq!(ended.out.split_whitespace().count(), 22, "{flags}: {}", ended.err),
        }
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let work = workplace();
    work.succeed("compile --checkpoint run --name tiny -o artefact");
    build_c(&work);
    for (arguments, expected) in [
        ("none.safetensors 1 1 5", "cannot read none.safetensors: No such file"),
        ("model.json 1 1 5", "model.json is not a whole safetensors file"),
        ("run/checkpoint.safetensors 1 1 999", "999 is not one of the 73 tokens"),
    ] {
        let ended = run_c(&work, arguments);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        assert!(ended.err.starts_with(expected) && ended.err.lines().count() == 1, "{}", ended.err);
    }
    work.write("wide.json", r#"{"layers": 1, "width": 16, "heads": 2, "context": 150}"#);
    work.succeed("compile --config wide.json -o wide");
    let ended = run_c(&work, "wide/model.safetensors 1 1 5");
    assert!(ended.err.contains("model.safetensors: is F32[65, 16], the model has F32["), "{}", ended.err);
    for (flags, expected) in [
        ("--preset bert-tiny -o bert", "only a decoder"),
        ("--preset tiny --work train -o x", "--work: only decode and prefill"),
        ("--preset tiny --name a-b -o x", "--name: \"a-b\" is not a name in C"),
        ("--preset tiny -o run", "run is not empty; nothing was written"),
        ("--preset tiny -o x --runtime none.a", "cannot read none.a"),
    ] {
        let message = work.fail(&format!("compile {flags}"));
        assert!(message.contains(expected), "{message}");
    }
    assert!(!work.path("x").exists() && !work.path("bert").exists());
}
