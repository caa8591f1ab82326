//! The command line as users meet it: the built program in a process of its own.
//!
//! Every run has a model of one small layer, so that each takes a fraction of a second.

use kernfusion::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use kernfusion::tensor_file;
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Graph, Tensor, TensorType};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A directory of its own for each test, with the configuration of a small model.
struct Workplace(TempDir);

/// How a process ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Workplace {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = r#"{"layers": 1, "width": 8, "heads": 2, "context": 8}"#;
        std::fs::write(directory.path().join("small.json"), config).unwrap();
        Workplace(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// The program in this directory, and with no other text than the embedded one. Flags are separated by blanks.
    fn command(&self, flags: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernfusion"));
        command.args(flags.split_whitespace()).current_dir(self.0.path());
        command.env("KERNFUSION_DATA", self.0.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, flags: &str) -> Ended {
        end(self.command(flags).spawn().unwrap())
    }

    fn succeed(&self, flags: &str) -> String {
        let Ended { code, out, err } = self.run(flags);
        assert_eq!(code, Some(0), "{flags}: {err}");
        out
    }

    /// The message of a command that must fail with one line.
    fn fail(&self, flags: &str) -> String {
        message(self.run(flags), flags)
    }

    fn succeed_training(&self, flags: &str) -> String {
        self.succeed(&format!("{TRAIN} {flags}"))
    }

    /// Losses by step, as a log has them.
    fn losses(&self, log: &str) -> Vec<(u64, f64)> {
        let text = std::fs::read_to_string(self.path(log)).unwrap();
        let rows = text.lines().map(|row| serde_json::from_str::<Value>(row).unwrap());
        rows.filter_map(|row| Some((row["step"].as_u64()?, row["loss"].as_f64()?))).collect()
    }
}

/// Trains the small model, shows no sample, and validates once.
const TRAIN: &str =
    "train --config small.json --batch-size 2 --sample-tokens 0 --validation-batches 1 --out run";

fn end(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn message(Ended { code, err, .. }: Ended, flags: &str) -> String {
    assert!(matches!(code, Some(1 | 2)), "{flags}: {code:?} {err}");
    let line = err.strip_suffix('\n').unwrap_or_else(|| panic!("{flags}: {err:?}"));
    assert!(!line.contains('\n') && line.starts_with("error: "), "{flags}: {err}");
    line.strip_prefix("error: ").unwrap().to_string()
}

#[test]
fn every_command_has_help_with_an_example() {
    let work = Workplace::new();
    let help = work.succeed("--help");
    for command in
        ["train", "generate", "bench", "dump", "opt", "run", "explain", "selftest", "data", "presets"]
    {
        assert!(help.contains(&format!("  {command}")), "{help}");
        let help = work.succeed(&format!("{command} --help"));
        assert!(help.contains("Example"), "{help}");
    }
    assert!(work.succeed("--version").starts_with("kernfusion "));
}

#[test]
fn wrong_flags_are_one_line() {
    let work = Workplace::new();
    work.write("unknown.json", r#"{"layres": 3}"#);
    work.write("broken.json", "{\"layers\": ");
    work.write("heads.json", r#"{"width": 10, "heads": 4}"#);
    let cases = [
        ("", "requires a subcommand"),
        ("trian", "unrecognized subcommand 'trian'"),
        ("train --stepz 3", "unexpected argument '--stepz'"),
        ("train --steps many", "invalid value 'many' for '--steps <N>'"),
        ("train --threads 0", "'0' for '--threads <N>'"),
        ("train --mode fast", "unknown mode `fast`: compiled or eager"),
        ("train --preset huge", "there is no preset \"huge\"; there are tiny, thesis, gpt2-small"),
        ("train --dtype bf16", "--dtype bf16 is not available yet"),
        ("train --device cuda", "--device cuda is not available yet"),
        ("train --dropout 1", "dropout 1 is not in the range"),
        ("train --batch-size 0", "--batch-size must be at least 1"),
        ("train --config none.json", "cannot read none.json: "),
        ("train --config unknown.json", "unknown.json: unknown field `layres`"),
        ("train --config broken.json", "broken.json: "),
        ("train --config heads.json", "heads.json: width 10 is not a multiple of heads 4"),
        ("train --config small.json --lr -1", "learning rate -1 is out of range"),
        ("train --config small.json --clip -1", "clipping norm -1 is not above 0"),
        ("train --config small.json --log no/such/place.jsonl", "cannot write the log no/such/place.jsonl: "),
        ("generate --checkpoint none", "there is no checkpoint at none/checkpoint.safetensors"),
        ("generate --checkpoint none --top-k 0", "top-k 0 leaves no token"),
        ("generate --checkpoint none --temperature -1", "temperature -1 is not possible"),
        ("bench --work decode", "--work decode is not available yet"),
        ("dump --stage cuda", "--stage cuda is not available yet"),
        ("dump --stage trace --format html", "--format html is not available yet"),
        ("dump --stage plan --format dot", "--stage plan has no dot form"),
        ("dump --stage simplify --after magic", "there is no pass \"magic\""),
        ("dump --work forward --stage grad", "--work forward has no gradients"),
        ("explain nowhere nothing", "no kernel and no tensor has a name that contains \"nowhere\""),
        ("opt none.kir", "cannot read none.kir: "),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

#[test]
fn texts_that_cannot_be_trained_on() {
    let work = Workplace::new();
    work.write("empty.txt", "");
    work.write("binary.txt", b"some text \xff\xfe and more");
    work.write("short.txt", "Twelve words are too few for a window of eight and a validation part.");
    let cases = [
        ("none.txt", "cannot read none.txt: "),
        ("empty.txt", "empty.txt is empty"),
        ("binary.txt", "binary.txt is not UTF-8 text: the byte at offset 10 cannot be decoded"),
        ("short.txt", "the validation part of short.txt has 6 tokens, but one window of 8 needs 9"),
    ];
    for (file, expected) in cases {
        let message = work.fail(&format!("{TRAIN} --data {file}"));
        assert!(message.contains(expected), "{message}");
    }
    work.write("vocabulary.json", r#"{"layers": 1, "width": 8, "heads": 2, "context": 8, "vocabulary": 5}"#);
    let message = work.fail("train --config vocabulary.json");
    assert!(message.contains("vocabulary 5 is too small"), "{message}");
}

#[test]
fn programs_that_are_no_programs() {
    let work = Workplace::new();
    work.write(
        "brace.kir",
        "graph \"g\" {\n  %0 = input {name = \"x\", dtype = f32, shape = [2} : f32[2]\n}\n",
    );
    work.write(
        "op.kir",
        "graph \"g\" {\n  %0 = input {name = \"x\", dtype = f32, shape = [2]}\n  %1 = frobnicate %0\n}\n",
    );
    let type_error = "graph \"g\" {\n  %0 = input {name = \"x\", dtype = f32, shape = [2]} : f32[2]\n  %1 = exp %0 : f32[3]\n  output \"y\" = %1\n}\n";
    work.write("type.kir", type_error);
    for command in ["opt", "run"] {
        let message = work.fail(&format!("{command} brace.kir"));
        assert!(message.starts_with("brace.kir: line 2, column "), "{message}");
        let message = work.fail(&format!("{command} op.kir"));
        assert!(message.contains("line 3, column 8") && message.contains("frobnicate"), "{message}");
        let message = work.fail(&format!("{command} type.kir"));
        assert!(message.contains("type.kir: ") && message.contains("%1 = exp"), "{message}");
    }
}

#[test]
fn checkpoints_that_cannot_be_used() {
    let work = Workplace::new();
    work.succeed_training("--steps 2");
    let whole = std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap();
    let put = |name: &str, content: &[u8]| {
        std::fs::create_dir_all(work.path(name)).unwrap();
        work.write(&format!("{name}/{CHECKPOINT_FILE}"), content);
    };
    put("cut", &whole[..whole.len() - 100]);
    put("header", &whole[..50]);
    put("text", b"This is no checkpoint but a letter, and a rather long one.");
    std::fs::create_dir_all(work.path("foreign")).unwrap();
    let tensors = BTreeMap::from([("w".to_string(), Tensor::new([2], vec![1.0f32, 2.0]))]);
    tensor_file::write(&work.path("foreign").join(CHECKPOINT_FILE), &tensors).unwrap();
    let mut other = Checkpoint::load(&work.path("run")).unwrap();
    other.tensors.remove("ln_f.bias");
    other.save(&work.path("other")).unwrap();
    let cases = [
        ("cut", "is truncated: it has "),
        ("header", "is truncated: it has 50 bytes"),
        ("text", "is not a safetensors file"),
        ("foreign", "is not a checkpoint of Kernfusion"),
        ("other", "missing ln_f.bias"),
    ];
    for (directory, expected) in cases {
        for command in ["train --steps 3 --resume", "generate --checkpoint"] {
            let message = work.fail(&format!("{command} {directory}"));
            assert!(message.contains(expected) && message.contains(directory), "{message}");
        }
    }
}

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
fn a_place_that_cannot_be_written_is_found_out_before_training() {
    let work = Workplace::new();
    work.write("run", "a file where the directory should be");
    let ended = work.run(&format!("{TRAIN} --steps 5"));
    assert!(!ended.out.contains("loss"), "{}", ended.out);
    let message = message(ended, "train");
    assert!(message.contains("cannot write run/checkpoint.safetensors: "), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_old_checkpoint() {
    let work = Workplace::new();
    work.succeed_training("--steps 2");
    let before = std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap();
    // No file may be longer than a few kilobytes; a write that would make it longer fails as on a full disk.
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_kernfusion")]);
    shell.args("train --resume run --steps 4".split_whitespace());
    shell.current_dir(work.0.path()).env("KERNFUSION_DATA", work.0.path());
    let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let message = message(end(child), "train");
    assert!(message.contains("cannot write run/checkpoint.safetensors: "), "{message}");
    let names: Vec<_> =
        std::fs::read_dir(work.path("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [CHECKPOINT_FILE]);
    assert_eq!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap(), before);
    let message = work.fail(&format!("{TRAIN} --log /dev/full"));
    assert!(message.starts_with("cannot write the log /dev/full: "), "{message}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = end(work.command("presets").stdout(full).spawn().unwrap());
    assert!(ended.err.starts_with("error: cannot write to standard output: "), "{}", ended.err);
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

/// Waits until a log has more than so many rows, or the process has ended.
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
fn bench_writes_every_field_for_every_mode() {
    let work = Workplace::new();
    for kind in ["train", "forward"] {
        let flags = "--config small.json --batch-size 2 --steps 3 --warmup 1 --threads 1 --json bench.json";
        let out = work.succeed(&format!("bench --work {kind} --mode compiled,eager {flags}"));
        assert!(out.contains("compiled") && out.contains("eager"), "{out}");
        let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0), "{text}");
        let rows = document["results"].as_array().unwrap();
        let texts = [("preset", "tiny"), ("work", kind), ("dtype", "f32"), ("device", "cpu")];
        let numbers = [
            "median_step_s",
            "tokens_per_s",
            "compile_s",
            "kernels",
            "bytes_moved_mib",
            "arena_mib",
            "peak_rss_mib",
            "loss_first",
            "loss_last",
        ];
        for (row, mode) in rows.iter().zip(["compiled", "eager"]) {
            assert_eq!((&row["mode"], &row["threads"], &row["steps"]), (&mode.into(), &1.into(), &3.into()));
            assert!(texts.iter().all(|(name, value)| row[name] == *value), "{row}");
            assert!(numbers.iter().all(|name| row[name].as_f64().is_some_and(|x| x > 0.0)), "{row}");
        }
        assert_eq!(rows.len(), 2);
        let [a, b] = [0, 1].map(|row| rows[row]["loss_last"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4, "{text}");
        assert!(rows[0]["kernels"].as_u64() < rows[1]["kernels"].as_u64(), "{text}");
    }
}

#[test]
fn every_stage_and_form_is_shown() {
    let work = Workplace::new();
    let dump = |flags: &str| work.succeed(&format!("dump --config small.json --batch-size 2 {flags}"));
    for stage in ["trace", "grad", "simplify"] {
        let graph = Graph::parse(&dump(&format!("--stage {stage}"))).unwrap();
        graph.verify().unwrap();
        assert_eq!(Graph::from_json(&dump(&format!("--stage {stage} --format json"))).unwrap(), graph);
        assert!(dump(&format!("--stage {stage} --format dot")).starts_with("digraph"));
        assert!(dump(&format!("--stage {stage} --format mermaid")).contains("flowchart"));
    }
    assert_ne!(dump("--stage simplify --stop-after 1"), dump("--stage simplify"));
    assert_eq!(dump("--stage simplify --stop-after 2"), dump("--stage simplify --after fold"));
    assert!(dump("--stage fuse").starts_with("kernels "));
    let json: Value = serde_json::from_str(&dump("--stage fuse --format json")).unwrap();
    assert!(json["kernels"].as_array().is_some_and(|kernels| kernels.len() > 10));
    assert!(dump("--stage plan").contains("arena"));
    serde_json::from_str::<Value>(&dump("--stage plan --format json")).unwrap();
    assert!(dump("--stage clif --kernel ln_f").contains("; kernel "));
    assert!(dump("--stage asm --work forward --kernel ln_f").contains("; kernel "));
    assert_eq!(dump("--stage trace -o trace.kir"), "");
    assert_eq!(std::fs::read_to_string(work.path("trace.kir")).unwrap(), dump("--stage trace"));
}

#[test]
fn a_dumped_program_is_optimised_and_executed_in_every_mode() {
    let work = Workplace::new();
    work.succeed("dump --config small.json --batch-size 2 --stage grad -o step.kir");
    let graph = Graph::parse(&std::fs::read_to_string(work.path("step.kir")).unwrap()).unwrap();
    let mut draws = Draws::new(3);
    let mut tensor = |name: &str, ty: &TensorType| {
        let values: Vec<_> = (0..ty.elements()).map(|_| draws.between(0.05, 0.9)).collect();
        // Tokens are whole numbers of the vocabulary.
        let scale = if matches!(name, "x" | "y") { 60.0 } else { 1.0 };
        Tensor::from_f64(ty, &values.iter().map(|x| x * scale).collect::<Vec<_>>())
    };
    let inputs: BTreeMap<_, _> =
        graph.inputs().map(|(id, name, _)| (name.to_string(), tensor(name, &graph[id].ty))).collect();
    tensor_file::write(&work.path("in.safetensors"), &inputs).unwrap();
    let optimised = work.succeed("opt step.kir --passes dce,fold,cse");
    assert!(Graph::parse(&optimised).unwrap().len() < graph.len());
    work.write("small.kir", optimised);
    let results = |file: &str, mode: &str| {
        let files = "--inputs in.safetensors --outputs out.safetensors";
        work.succeed(&format!("run {file} {files} --mode {mode}"));
        tensor_file::read(&work.path("out.safetensors")).unwrap()
    };
    let expected = results("step.kir", "reference");
    assert_eq!(expected.len(), graph.outputs().len());
    for (file, mode) in [
        ("small.kir", "reference"),
        ("step.kir", "eager"),
        ("step.kir", "compiled"),
        ("small.kir", "compiled"),
    ] {
        for (name, tensor) in results(file, mode) {
            let difference =
                kernfusion_ir::samples::difference(&expected[&name].to_f64(), &tensor.to_f64(), 2e-4);
            assert_eq!(difference, None, "{file} {mode} {name}");
        }
    }
    let mut short = inputs;
    short.remove("wte.weight");
    short.insert("lr".into(), Tensor::new([2], vec![1i32, 2]));
    tensor_file::write(&work.path("in.safetensors"), &short).unwrap();
    let message = work.fail("run step.kir --inputs in.safetensors");
    let parts =
        ["\"wte.weight\" of type f32[65,8] is missing", "\"lr\" is i32[2], the program expects f32[]"];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn explanations_are_sorted_and_can_be_narrowed() {
    let work = Workplace::new();
    let out = work.succeed("explain --config small.json --refusals 0");
    let (_, refused) = out.split_once("fusions refused, the largest first:\n").unwrap();
    let (refused, plan) = refused.split_once("\n\nplan:\n").unwrap();
    let bytes = |line: &str| line.trim().split(" B").next().unwrap().replace(',', "").parse::<u64>().unwrap();
    let bytes: Vec<_> = refused.lines().map(bytes).collect();
    assert!(bytes.len() > 3 && bytes.is_sorted_by(|a, b| a >= b), "{refused}");
    assert!(refused.lines().all(|line| line.contains(" -> ") && line.contains(": ")), "{refused}");
    assert!(plan.contains("kernels") && plan.contains("arena") && plan.contains("peak"), "{plan}");
    let out = work.succeed("explain --config small.json mlp ln_f");
    assert!(out.contains("kernels touch both:"), "{out}");
}

/// `kernfusion … | head -c 1`: the reader goes away, and that is no error.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let work = Workplace::new();
    let cases = ["dump --stage grad", "explain --refusals 0", "presets --json", "--help", "opt --list"];
    let training = format!("{TRAIN} --steps 30");
    for flags in cases.iter().copied().chain([training.as_str()]) {
        let mut child = work.command(flags).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let ended = end(child);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{flags}");
    }
}

#[test]
fn presets_have_their_parameter_counts() {
    let work = Workplace::new();
    let out = work.succeed("presets");
    assert!(out.contains("thesis") && out.contains("10,788,864") && out.contains("124,439,808"), "{out}");
    let presets: Value = serde_json::from_str(&work.succeed("presets --json")).unwrap();
    assert_eq!(presets[1]["parameters"], 10_788_864);
    assert_eq!(presets[0]["config"]["layers"], 4);
}

#[test]
fn the_selftest_counts_its_cases() {
    let work = Workplace::new();
    let out = work.succeed("selftest --filter add");
    let last = out.lines().last().unwrap();
    assert!(last.ends_with(" passed, 0 failed") && !last.starts_with("0 "), "{out}");
}
