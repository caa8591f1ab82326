//! Checkpoints survive the round trip, every kind of damage is called by its name, and a writer that fails or is
//! killed costs nothing.

use super::*;
use kernfusion_ir::random::philox4x32;
use serde_json::json;

/// A checkpoint with `count` random numbers in its first tensor; all depends on `seed`.
fn example(seed: u32, count: usize) -> Checkpoint {
    let number = |index: usize| {
        let bits = philox4x32([index as u32, 0, 0, 9], [seed, 0])[0];
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let tensor = |shape: &[usize]| {
        let count = shape.iter().product();
        Tensor32 { shape: shape.into(), data: (0..count).map(number).collect() }
    };
    let tensors = BTreeMap::from([
        ("blocks.0.attn.qkv.weight".to_string(), tensor(&[count])),
        ("optimizer.m.blocks.0.attn.qkv.weight".to_string(), tensor(&[3, 2, 5])),
        ("optimizer.t".to_string(), tensor(&[])),
        ("an empty one".to_string(), tensor(&[4, 0])),
    ]);
    let meta = Meta {
        config: json!({"layers": 4, "name": "tiny \"quoted\" \u{e9}"}),
        step: u64::from(seed),
        seed: u64::MAX,
        tokenizer: json!({"characters": "\n abc"}),
        training: json!({"lr": 0.1, "betas": [0.9, 0.99], "decay": null}),
    };
    Checkpoint { tensors, meta }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The error of loading a directory whose checkpoint has these bytes.
fn load_error(bytes: &[u8]) -> CheckpointError {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(CHECKPOINT_FILE), bytes).unwrap();
    Checkpoint::load(directory.path()).unwrap_err()
}

/// A safetensors file with this header and these bytes after it.
fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let mut checkpoint = example(7, 2 * PIECE + 5);
    let special = [f32::MIN_POSITIVE / 8.0, -0.0, f32::MAX, f32::INFINITY];
    checkpoint.tensors.insert("special".into(), Tensor32 { shape: vec![2, 2], data: special.into() });
    let deep = directory.path().join("runs/first");
    checkpoint.save(&deep).unwrap();
    let loaded = Checkpoint::load(&deep).unwrap();
    assert_eq!(loaded, checkpoint);
    assert!(loaded.tensors["special"].data[1].is_sign_negative());
    assert_eq!(names(&deep), [CHECKPOINT_FILE]);
    assert_eq!(read_tensors(&deep.join(CHECKPOINT_FILE)).unwrap(), checkpoint.tensors);
}

#[test]
fn equal_checkpoints_are_equal_files_that_others_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = || {
        example(3, 100).save(directory.path()).unwrap();
        std::fs::read(directory.path().join(CHECKPOINT_FILE)).unwrap()
    };
    let first = bytes();
    assert_eq!(bytes(), first);
    let read = safetensors::SafeTensors::deserialize(&first).unwrap();
    let tensor = read.tensor("optimizer.m.blocks.0.attn.qkv.weight").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[3, 2, 5][..]));
    let (length, header) = safetensors::SafeTensors::read_metadata(&first).unwrap();
    assert_eq!(length % 8, 0);
    assert_eq!(header.metadata().as_ref().unwrap()["step"], "3");
}

#[test]
fn wrong_tensors_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let meta = example(1, 1).meta;
    let save = |tensors: [(&str, &[usize], &[f32]); 2]| {
        Checkpoint::save_with(directory.path(), &meta, tensors).unwrap_err().to_string()
    };
    let error = save([("a", &[2], &[0.5, 1.5]), ("b", &[2, 3], &[2.5; 5])]);
    assert_eq!(error, "cannot save tensor \"b\" of shape [2, 3]: it has 5 numbers");
    let error = save([("a", &[1], &[0.5]), ("a", &[1], &[0.5])]);
    assert_eq!(error, "cannot save tensor \"a\" of shape [1]: its name is taken");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn a_missing_checkpoint_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = Checkpoint::load(directory.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::Missing { .. }));
    let path = directory.path().join(CHECKPOINT_FILE);
    assert_eq!(error.to_string(), format!("there is no checkpoint at {}", path.display()));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(Checkpoint::load(directory.path()), Err(CheckpointError::Read { .. })));
}

#[test]
fn a_file_cut_anywhere_is_called_truncated() {
    let directory = tempfile::tempdir().unwrap();
    example(5, 40).save(directory.path()).unwrap();
    let bytes = std::fs::read(directory.path().join(CHECKPOINT_FILE)).unwrap();
    for length in 0..bytes.len() {
        match load_error(&bytes[..length]) {
            CheckpointError::Truncated { has, needs, .. } => {
                assert!(has == length as u64 && has < needs && needs <= bytes.len() as u64);
            }
            error => panic!("cut at {length}: {error}"),
        }
    }
    let longer = [bytes, vec![1, 2, 3]].concat();
    let error = load_error(&longer).to_string();
    assert!(error.ends_with("is not a safetensors file: 3 bytes follow the last tensor"), "{error}");
}

#[test]
fn other_files_are_told_apart() {
    let foreign = file(&json!({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), &[1, 2, 3, 4]);
    assert!(matches!(load_error(&foreign), CheckpointError::Foreign { .. }));
    let foreign = file(&json!({"__metadata__": {"format": "pt"}}), &[]);
    assert!(load_error(&foreign).to_string().contains("is not a checkpoint of Kernfusion"));
    let error = load_error(b"A text that is no checkpoint at all.");
    assert!(matches!(error, CheckpointError::NotSafetensors { .. }), "{error}");
    let error = load_error(&file(&json!([1, 2, 3]), &[]));
    assert!(matches!(error, CheckpointError::NotSafetensors { .. }), "{error}");
    let overlapping = json!({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}});
    let error = load_error(&file(&overlapping, &[1, 2, 3, 4]));
    assert!(matches!(error, CheckpointError::NotSafetensors { .. }), "{error}");
}

#[test]
fn wrong_versions_entries_and_dtypes_are_named() {
    let whole = json!({
        "kernfusion": "1", "config": "{}", "step": "5", "seed": "6", "tokenizer": "null", "training": "{}"
    });
    // The message for the whole metadata with one entry changed, or removed.
    let error_with = |entry: &str, value: Option<&str>, tensors: Value, data: &[u8]| {
        let mut metadata = whole.clone();
        match value {
            Some(value) => metadata[entry] = value.into(),
            None => drop(metadata.as_object_mut().unwrap().remove(entry)),
        }
        let mut header = tensors;
        header["__metadata__"] = metadata;
        load_error(&file(&header, data)).to_string()
    };
    let error = error_with("kernfusion", Some("2"), json!({}), &[]);
    assert!(error.ends_with("has checkpoint format 2, but this program reads format 1"), "{error}");
    let error = error_with("step", None, json!({}), &[]);
    assert!(error.contains("entry \"step\"") && error.ends_with("is missing"), "{error}");
    let error = error_with("seed", Some("-3"), json!({}), &[]);
    assert!(error.contains("entry \"seed\"") && error.ends_with("is -3, not a count"), "{error}");
    let error = error_with("config", Some("{"), json!({}), &[]);
    assert!(error.contains("entry \"config\"") && error.contains("is not JSON"), "{error}");
    let half = json!({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}});
    let error = error_with("step", Some("5"), half, &[1, 2, 3, 4]);
    assert!(error.starts_with("tensor \"w\" in ") && error.contains("has dtype BF16"), "{error}");
}

#[test]
fn a_save_that_fails_leaves_the_old_checkpoint_and_no_temporary_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(CHECKPOINT_FILE);
    std::fs::create_dir(&path).unwrap();
    let error = example(1, 10).save(directory.path()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", path.display())), "{error}");
    assert_eq!(names(directory.path()), [CHECKPOINT_FILE]);

    let file = directory.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(example(1, 10).save(&file), Err(CheckpointError::Write { .. })));
}

/// Tests that need a process of their own, for it will be limited or killed: this one runs the test named `child`
/// of this module again, through a shell command that gets it as `"$@"`.
#[cfg(unix)]
fn child(child: &str, shell: &str, directory: &Path) -> std::process::Command {
    let module = module_path!().split_once("::").expect("a module has a crate").1;
    let mut command = std::process::Command::new("sh");
    command.args(["-c", shell, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", &format!("{module}::{child}")]);
    command.env(DIRECTORY, directory);
    command
}

/// The environment variable that tells a child where to save.
const DIRECTORY: &str = "KERNFUSION_TEST_CHECKPOINT_DIRECTORY";

#[test]
#[ignore = "run by a_disk_without_room_is_an_error, in a process that may write only a little"]
fn child_without_room() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let error = example(2, 1_000_000).save(&directory).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Write { cause, .. } if cause.kind() == ErrorKind::FileTooLarge)
    );
}

/// A limit on the size of files stops the writer in the middle, as a full disk does.
#[cfg(unix)]
#[test]
fn a_disk_without_room_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let old = example(1, 10);
    old.save(directory.path()).unwrap();
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let output = child("child_without_room", limited, directory.path()).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains("1 passed"), "{output}");
    assert_eq!(Checkpoint::load(directory.path()).unwrap(), old);
    assert_eq!(names(directory.path()), [CHECKPOINT_FILE]);
}

#[test]
#[ignore = "run by a_killed_writer_leaves_a_whole_checkpoint, which kills it"]
fn child_that_saves_on_and_on() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    // Both are made beforehand, so that nearly every moment is one of saving. If the test does not kill this process, it
    // ends by itself.
    let checkpoints = [example(1, 200_000), example(2, 200_000)];
    let start = std::time::Instant::now();
    for checkpoint in checkpoints.iter().cycle().take_while(|_| start.elapsed().as_secs() < 20) {
        checkpoint.save(&directory).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_killed_writer_leaves_a_whole_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    example(1, 200_000).save(path).unwrap();
    let mut stale = 0;
    for round in 0..12 {
        let mut writer = child("child_that_saves_on_and_on", "exec \"$@\"", path);
        let mut writer = writer.stdout(std::process::Stdio::null()).spawn().unwrap();
        // Readers alongside the writer, then the end at another moment each time.
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(9 + 4 * round));
            let seen = Checkpoint::load(path).unwrap();
            assert_eq!(seen, example(seen.meta.step as u32, 200_000));
        }
        assert_eq!(writer.try_wait().unwrap(), None, "the writer must still have been writing");
        writer.kill().unwrap();
        writer.wait().unwrap();
        let left = Checkpoint::load(path).unwrap();
        assert_eq!(left, example(left.meta.step as u32, 200_000));
        stale += names(path).len() - 1;
    }
    assert!(stale > 0, "no kill hit a save: this test has tested nothing");
    example(9, 10).save(path).unwrap();
    assert_eq!(names(path), [CHECKPOINT_FILE]);
}
