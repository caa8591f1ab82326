//! What a user can do wrong: one line, an exit code, and nothing broken.

use super::workplace::{TRAIN, Workplace, end, message};
use kernfusion::tensor_file;
use kernfusion_ir::Tensor;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

#[test]
fn wrong_flags_are_one_line() {
    let work = Workplace::new();
    work.write("unknown.json", r#"{"layres": 3}"#);
    work.write("broken.json", "{\"layers\": ");
    work.write("heads.json", r#"{"width": 10, "heads": 4}"#);
    let cases = [
        ("", "requires a subcommand"),
        ("trian", "unrecognized subcommand 'trian'; tip: a similar subcommand exists: 'train'"),
        ("train --stepz 3", "unexpected argument '--stepz' found; tip: a similar argument exists: '--steps'"),
        ("train --average-from 3", "--average-from is for --optimizer asgd"),
        (
            "train --shard-optimizer",
            "--shard-optimizer is for several ranks (mpirun, kernfusion launch), and this is one process",
        ),
        ("train --exchange bf16", "--exchange is for several ranks"),
        ("train --loss mse --preset tiny", "cannot be used with"),
        ("profile --collectives library", "--collectives is for several ranks"),
        ("profile --exchange-timeout 5", "--exchange-timeout is for several ranks"),
        (
            "tune ppo --checkpoint a --reward a --data b --out c --heartbeat-timeout 3",
            "--heartbeat-timeout is for several ranks",
        ),
        ("bench --preset tiny --inputs none.safetensors", "cannot be used with"),
        ("profile --config small.json --inputs none.safetensors", "cannot be used with"),
        ("selftest --filter nope", "no case has a name that contains \"nope\""),
        ("selftest --json x.json --filter exp", "cannot be used with"),
        ("explain --ranks 2 --link 25GB/s,5us --threads 1 --bandwidth 9GB/s", "cannot be used with"),
        ("train --steps many", "invalid value 'many' for '--steps <N>'"),
        ("train --threads 0", "'0' for '--threads <N>'"),
        ("train --memory-limit much", "no size: write bytes, or a number with one of KiB, MiB, GiB"),
        ("train --memory-limit 12XB", "no size: write bytes"),
        ("train --memory-limit 1.2.3MiB", "no size: write bytes"),
        ("train --memory-limit 0", "no size of any memory"),
        ("train --microbatches 0", "'0' for '--microbatches <N>'"),
        (
            "train --microbatches 5",
            "cannot compute in 5 microbatches: the batch of 12 is not divisible by that",
        ),
        ("train --config small.json --batch-size 4 --memory-limit 1MiB", "the memory limit of 1.0 MiB is "),
        (
            "train --mode eager --memory-limit 1GiB",
            "memory limits, microbatches and recomputing need mode compiled",
        ),
        (
            "bench --config small.json --batch-size 4 --mode compiled --memory-limit 2000KiB",
            "are in use already",
        ),
        ("explain --config small.json --batch-size 4 --memory-limit 1MiB", "(the batch in "),
        ("dump --stage fuse --tail", "--tail is of a program in microbatches"),
        ("train --mode fast", "unknown mode `fast`: compiled or eager"),
        ("train --preset huge", "there is no preset \"huge\"; there are tiny, thesis, gpt2-small"),
        ("train --dtype f16", "invalid value 'f16' for '--dtype <DTYPE>'"),
        ("train --device gpu", "it is cpu, cuda or cuda:N with the number of a GPU"),
        ("train --device cuda:", "it is cpu, cuda or cuda:N with the number of a GPU"),
        ("train --tf32", "TF32 is a number type of GPUs: it needs --device cuda"),
        ("train --f32-products tf32", "TF32 is a number type of GPUs: it needs --device cuda"),
        ("train --f32-products x6 --device cuda", "x6, x3 and fixed are for CPUs"),
        ("train --bf16-products fixed", "it needs --dtype bf16"),
        ("train --dtype bf16 --bf16-products fixed --device cuda", "is for CPUs, not for --device cuda"),
        ("train --f32-products x5", "invalid value 'x5' for '--f32-products <HOW>'"),
        ("train --tune", "--tune measures products on GPUs: it needs --device cuda"),
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
        ("bench --preset bert-tiny --work decode", "only a decoder has the work decode"),
        ("dump --stage cuda --format json", "--stage cuda has no json form, but text only"),
        ("dump --stage cuda --kernel none", "no kernel has a name that contains \"none\""),
        ("dump --stage fuse --kernel none", "no kernel has a name that contains \"none\""),
        (
            "dump --stage trace --kernel attn",
            "--kernel is for --stage fuse, schedule, clif, asm, cuda and ptx",
        ),
        ("dump --stage fuse --format json --kernel attn", "--kernel is for --stage fuse, schedule, clif"),
        ("dump --preset tiny --loss mse --stage fuse", "'--preset <NAME>' cannot be used with"),
        ("explain --preset tiny --loss mse", "'--preset <NAME>' cannot be used with"),
        ("dump --stage fuse --arch sm_9", "an architecture is sm_80, sm_90a or compute_90a, say"),
        ("dump --stage asm --arch compute_90a", "--stage asm is of a CPU: leave out --arch"),
        ("dump --format text", "say which --stage"),
        ("dump --stage trace --times times.json", "--times is for --format html"),
        ("dump --format html --kernel attn", "a page shows the whole pipeline"),
        ("dump --stage plan --format dot", "--stage plan has no dot form"),
        ("dump --stage simplify --after magic", "there is no pass \"magic\""),
        ("dump --work forward --stage grad", "--work forward has no gradients"),
        ("explain --ranks 0", "'0' for '--ranks <N>'"),
        ("explain --ranks 5", "a batch of 12 rows cannot be divided among 5 ranks"),
        ("dump --ranks 5 --stage plan", "a batch of 12 rows cannot be divided among 5 ranks"),
        ("explain --ranks 2 --microbatches 3", "3 microbatches of a batch cannot be divided among 2 ranks"),
        ("explain --ranks 2 --work forward", "--ranks is for --work train"),
        ("explain --ranks 2 --link 25GB/s", "no link: write the rate and the time of a message"),
        ("explain --ranks 2 --link 25Gb/s,5us", "\"25Gb/s\" is no number with one of B/s, kB/s, MB/s, GB/s"),
        ("explain --link 25GB/s,5us", "required arguments were not provided: --ranks <N>"),
        ("explain --ranks 2 --link 25GB/s,5us --peak 2TFLOP/s", "not provided: --bandwidth <RATE>"),
        ("explain --ranks 2 --link 25GB/s,5us --efficiency 2", "no share above 0 and at most 1"),
        ("explain --shard-optimizer", "not provided: --ranks <N>"),
        ("dump --ranks 2 --format html", "a page shows the program of one process: leave out --ranks"),
        ("explain nowhere nothing", "no kernel and no tensor has a name that contains \"nowhere\""),
        ("opt none.kir", "cannot read none.kir: "),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

/// What wants a GPU says what is missing, and leaves nothing behind.
#[cfg(feature = "cuda")]
#[test]
fn machines_without_a_gpu() {
    if kernfusion_cuda::Device::open(0).is_ok() {
        eprintln!("skipped: this machine has a GPU");
        return;
    }
    let work = Workplace::new();
    for command in ["train --steps 1 --out run", "bench --steps 1", "profile --steps 1", "selftest"] {
        let message = work.fail(&format!("{command} --device cuda"));
        assert!(message.contains("CUDA"), "{command}: {message}");
    }
    assert!(!work.path("run").exists());
}

/// Products of int8 are of matrices that are only read, on CPUs.
#[test]
fn products_of_int8_without_matrices_that_are_only_read() {
    let work = Workplace::new();
    let commands = ["train --steps 1 --out run", "bench --steps 1", "explain", "dump --stage simplify"];
    for command in commands {
        let message = work.fail(&format!("{command} --dtype int8"));
        assert!(message.contains("that a program only reads, and this one has none"), "{command}: {message}");
    }
    let message = work.fail("bench --work decode --dtype int8 --device cuda");
    assert!(message.contains("--dtype int8 multiplies bytes on CPUs"), "{message}");
    assert!(!work.path("run").exists());
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
        let expected = "type.kir: line 3, column 8: invariant 3 (type): %1 = exp: has the type f32[3]";
        assert!(message.starts_with(expected), "{message}");
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
fn a_place_that_cannot_be_written_is_found_out_before_training() {
    let work = Workplace::new();
    work.write("run", "a file where the directory should be");
    let ended = work.run(&format!("{TRAIN} --steps 5"));
    assert!(!ended.out.contains("loss"), "{}", ended.out);
    let message = message(ended, "train");
    assert!(message.contains("cannot write run: "), "{message}");
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
    let mut names: Vec<_> =
        std::fs::read_dir(work.path("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    // The log has the steps that were done, and nothing is left of the checkpoint that was begun.
    assert_eq!(names, [CHECKPOINT_FILE, "log.jsonl", "run.json"]);
    assert_eq!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap(), before);
    let message = work.fail(&format!("{TRAIN} --log /dev/full"));
    assert!(message.starts_with("cannot write the log /dev/full: "), "{message}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = end(work.command("presets").stdout(full).spawn().unwrap());
    assert!(ended.err.starts_with("error: cannot write to standard output: "), "{}", ended.err);
}

/// Where a result cannot be written is said before anything is done: none of these commands says a word of what it has found.
#[test]
fn a_place_for_results_is_looked_at_first() {
    let work = Workplace::new();
    work.write("one.kir", ONE);
    work.succeed_training("--steps 1");
    std::fs::create_dir(work.path("folder")).unwrap();
    let small = "--config small.json --batch-size 2";
    let commands = [
        format!("bench {small} --steps 1 --json"),
        format!("bench {small} --steps 1 --html"),
        "bench --program one.kir --steps 1 --json".into(),
        format!("profile {small} --steps 1 --json"),
        format!("explain {small} --json"),
        format!("dump {small} --stage trace -o"),
        "score --checkpoint run --ids 1,2 --json".into(),
        "report run -o".into(),
        "run one.kir --outputs".into(),
        "selftest --programs 1 --json".into(),
    ];
    for command in commands {
        for (place, expected) in [
            ("nope/x", "cannot write nope/x: there is no folder nope"),
            ("folder", "cannot write folder: it is a folder"),
        ] {
            let flags = format!("{command} {place}");
            let ended = work.run(&flags);
            assert_eq!(ended.out, "", "{flags}");
            assert_eq!(message(ended, &flags), expected, "{flags}");
        }
    }
    assert!(!work.path("nope").exists());
    for (flags, file) in [
        ("bench --program one.kir --json one.kir", "one.kir"),
        ("explain --program one.kir --json one.kir", "one.kir"),
        ("profile --config small.json --json small.json", "small.json"),
    ] {
        let ended = work.run(flags);
        assert_eq!(ended.out, "", "{flags}");
        assert!(
            message(ended, flags).starts_with(&format!("{file}: it is not replaced by what is made from"))
        );
    }
    for more in
        ["--dtype bf16", "--device cuda", "--f32-products x6", "--bf16-products fixed", "--check-finite"]
    {
        let message = work.fail(&format!("run one.kir --mode reference {more}"));
        assert!(message.starts_with("--mode reference evaluates as the program says"), "{message}");
    }
}

/// A folder of another kind than the command takes is called what it is.
#[test]
fn folders_of_another_kind_are_called_what_they_are() {
    let work = Workplace::new();
    work.succeed_training("--steps 1");
    work.succeed("export run -o published");
    let linear = super::fixture::fixture("linear.pt2");
    work.succeed(&format!("import {} -o imported", linear.display()));
    let is_run = "run: this is a checkpoint: generate";
    let is_imported = "imported: this is the folder of an imported model: run";
    let is_published = "published: this is a model in the layout of Hugging Face: generate";
    let elsewhere = format!("export {} -o x", linear.display());
    let cases = [
        ("export run --format onnx -o x", is_run),
        ("import run -o x", is_run),
        ("generate --model run", is_run),
        ("chat --model run --message a", is_run),
        ("run run", is_run),
        ("bench --program run", is_run),
        ("dump run --stage trace", is_run),
        ("bisect run", is_run),
        ("export imported -o x", is_imported),
        ("generate --checkpoint imported", is_imported),
        ("compile --checkpoint imported -o x", is_imported),
        ("score --model imported --ids 1", is_imported),
        ("generate --checkpoint published", is_published),
        ("tune sft --checkpoint published --data x --out x", is_published),
        ("export published -o x", is_published),
        (&elsewhere, "this is a model from elsewhere: say --format onnx"),
        ("generate --model published", "published has no tokenizer.json, which texts need"),
        ("score --model published --text a", "which texts need: give the tokens by their ids (--ids)"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
    assert!(!work.path("x").exists());
}

/// Flags of commands that read FILE.
const READS_A_FILE: [&str; 14] = [
    "opt FILE",
    "run FILE",
    "run one.kir --inputs FILE",
    "bisect FILE",
    "bisect one.kir --inputs FILE",
    "dump FILE --stage trace",
    "dump one.kir --format html --times FILE",
    "dump --stage trace --config FILE",
    "train --config small.json --out run --data FILE",
    "train --config small.json --out run --init FILE",
    "train --config small.json --out run --tokenizer FILE",
    "bench --config small.json --html page.html --peers FILE",
    "report FILE",
    "import FILE -o run",
];

const ONE: &str =
    "graph \"one\" {\n  %0 = constant {value = 1, dtype = f32} : f32[]\n  output \"y\" = %0\n}\n";

/// What is there instead of a file gets one line that names it, and nothing is written.
#[cfg(unix)]
#[test]
fn what_is_no_file() {
    let work = Workplace::new();
    work.write("one.kir", ONE);
    work.write("empty-é", "");
    work.write("bytes-é", b"graph \xff\xfe");
    std::fs::create_dir(work.path("folder-é")).unwrap();
    std::os::unix::fs::symlink("ring-é", work.path("ring-é")).unwrap();
    let pipe = work.path("pipe-é");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let names = || {
        let entries = std::fs::read_dir(work.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let refused = "it is a pipe or a device, not a regular file";
    let kinds = [
        ("empty-é", ""),
        ("bytes-é", ""),
        ("folder-é", ""),
        ("ring-é", ""),
        ("pipe-é", refused),
        ("/dev/null", refused),
    ];
    for command in READS_A_FILE {
        // Texts that people write may come out of a pipe. A model is a folder.
        let text =
            ["opt FILE", "run FILE", "bisect FILE", "dump FILE", "--config FILE", "--times FILE", "import"];
        let takes_pipes = text.iter().any(|part| command.contains(part));
        for (file, expected) in kinds {
            let flags = command.replace("FILE", file);
            let writer = pipe.clone();
            if file == "pipe-é" && takes_pipes {
                std::thread::spawn(move || std::fs::write(writer, "x"));
            }
            let message = work.fail(&flags);
            assert!(message.contains(file), "{flags}: {message}");
            assert!(takes_pipes || message.contains(expected), "{flags}: {message}");
            assert_eq!(names(), before, "{flags}");
        }
    }
}

/// Checkpoints and published models are folders; what is no file in them is no checkpoint.
#[cfg(unix)]
#[test]
fn folders_with_what_is_no_file() {
    let work = Workplace::new();
    for folder in ["checkpoint", "model"] {
        std::fs::create_dir(work.path(folder)).unwrap();
    }
    std::os::unix::fs::symlink("/dev/null", work.path("checkpoint").join(CHECKPOINT_FILE)).unwrap();
    std::os::unix::fs::symlink("/dev/null", work.path("model/config.json")).unwrap();
    let commands = [
        "generate --checkpoint checkpoint",
        "score --checkpoint checkpoint --text a",
        "train --resume checkpoint",
        "tune sft --checkpoint checkpoint --data small.json --out run",
        "export checkpoint -o run",
        "compile --checkpoint checkpoint -o run",
        "import model -o run",
        "generate --model model",
    ];
    for flags in commands {
        let message = work.fail(flags);
        assert!(message.contains("it is a pipe or a device, not a regular file"), "{flags}: {message}");
    }
    assert!(!work.path("run").exists());
}

#[test]
fn paths_may_have_blanks_and_any_letters() {
    let work = Workplace::new();
    std::fs::create_dir(work.path("ein Ordner für 文件")).unwrap();
    let [file, results] =
        ["one é.kir", "out put.safetensors"].map(|name| work.path("ein Ordner für 文件").join(name));
    std::fs::write(&file, ONE).unwrap();
    let child = work.command("run").arg(&file).arg("--outputs").arg(&results).spawn().unwrap();
    assert_eq!(end(child).code, Some(0));
    assert_eq!(tensor_file::read(&results).unwrap()["y"], Tensor::new([], vec![1.0f32]));
}

/// Sizes that a file claims are asked of the system before they are used.
#[test]
fn programs_for_which_there_is_no_memory() {
    let work = Workplace::new();
    let input = "%0 = input {name = \"x\", dtype = f32, shape = [1048576, 1073741824]}";
    let iota = "%0 = iota {dtype = f32, shape = [1048576, 1073741824], axis = 0}";
    work.write("input.kir", format!("graph \"g\" {{ {input} output \"y\" = %0 }}"));
    work.write("iota.kir", format!("graph \"g\" {{ {iota} output \"y\" = %0 }}"));
    for flags in ["bisect input.kir", "bisect iota.kir", "run iota.kir --mode reference", "run iota.kir"] {
        let message = work.fail(flags);
        assert!(message.contains("bytes") && message.contains("of memory to give"), "{flags}: {message}");
    }
    let wide = r#"{"vocabulary": 16777216, "width": 4194304, "heads": 1, "hidden": 8}"#;
    work.write("wide.json", wide);
    for flags in ["train --out run", "bench", "profile", "bisect"] {
        let message = work.fail(&format!("{flags} --config wide.json"));
        assert!(message.contains("memory"), "{flags}: {message}");
    }
    work.write("wider.json", r#"{"width": 1000000000000}"#);
    let message = work.fail("train --config wider.json");
    assert!(
        message.contains("wider.json: width 1000000000000 is above the largest possible, 4194304"),
        "{message}"
    );
}
