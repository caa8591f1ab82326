//! Each call on a file of each command fails once.

use crate::shim::{
    FAILING_DISK, FILE_CALLS, Fault, INTERRUPTED, NO_SPACE, READ_ONLY, SHORT, Tried, leftovers, library, run,
    tree, tries_all,
};
use crate::workplace::{Workplace, message};
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A run with everything that a run writes. Eager, since that is the same on disk and less to compile.
pub(crate) const TRAIN: &str = "train --mode eager --config small.json --batch-size 1 --threads 1 --sample-tokens 0 --validation-batches 1 \
     --validate-every 3 --checkpoint-every 2 --steps 6 --out run --log copy.jsonl --tensorboard";

pub(crate) const RESUME: &str =
    "train --resume run --mode eager --steps 6 --threads 1 --log copy.jsonl --tensorboard";

/// A directory to which everything that a case changes is put back.
struct Scene {
    work: Workplace,
    before: BTreeMap<PathBuf, Vec<u8>>,
}

impl Scene {
    fn new(work: Workplace) -> Scene {
        let before = tree(work.0.path());
        Scene { work, before }
    }

    fn restore(&self) {
        for entry in std::fs::read_dir(self.work.0.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        for (path, content) in &self.before {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }

    /// Lets one call after another fail until the command needs no more of them; says how many failed.
    fn each(&self, library: &Path, flags: &str, judge: &mut dyn FnMut(&Tried, Fault)) -> usize {
        let mut faults = 0;
        for number in 1.. {
            let all = [NO_SPACE, FAILING_DISK, READ_ONLY];
            let tried = if tries_all() { &all[..] } else { &all[number % 3..][..1] };
            for &fault in tried {
                self.restore();
                let tried = run(&self.work, library, flags, FILE_CALLS, &number.to_string(), fault);
                if tried.failed.is_none() {
                    return faults;
                }
                check(&tried, fault, flags);
                judge(&tried, fault);
                faults += 1;
            }
        }
        faults
    }
}

/// What holds for every command: it succeeds, unless it has to write what it could not, or says in one line what is wrong.
fn check(tried: &Tried, fault: Fault, flags: &str) {
    let Tried { ended, failed } = tried;
    let (call, path) = failed.as_ref().unwrap();
    if ended.code == Some(0) {
        assert!(
            !["write", "fsync", "rename"].contains(&call.as_str()),
            "{flags}: {call} of {path:?} was not missed"
        );
        return;
    }
    assert_eq!(ended.code, Some(1), "{flags}: {call} of {path:?}: {}", ended.err);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A temporary file has the name of its own, a dot before and letters behind it.
    let file = name(path);
    let own = file.strip_prefix('.').and_then(|file| file.strip_suffix(".tmp")?.rsplit_once('.'));
    let names =
        [own.map_or(file.as_str(), |(own, _)| own).to_string(), name(path.parent().unwrap_or(Path::new("")))];
    let said = path == Path::new(".")
        || names.iter().any(|name| !name.is_empty() && ended.err.contains(name.as_str()));
    assert!(said && ended.err.contains(fault.text), "{flags}: {call} of {path:?}: {}", ended.err);
    let lines = ended.err.lines().count();
    assert!(lines == 1 && ended.err.starts_with("error: "), "{flags}: {}", ended.err);
}

/// What was begun is gone, unless it was its end that failed.
fn check_leftovers(work: &Workplace, tried: &Tried) {
    let (call, path) = tried.failed.as_ref().unwrap();
    if call != "unlink" {
        assert_eq!(leftovers(work.0.path()), Vec::<PathBuf>::new(), "{call} of {path:?}");
    }
}

fn steps(work: &Workplace, log: &str) -> Vec<u64> {
    work.losses(log).into_iter().map(|row| row.0).collect()
}

/// Goes on after a fault, and compares what there is in the end with a run that was left alone.
pub(crate) fn check_goes_on(work: &Workplace, whole: &[u8]) {
    let file = work.path("run").join(CHECKPOINT_FILE);
    match file.exists() {
        true => work.succeed(RESUME),
        false => work.succeed(&format!("{TRAIN} --overwrite")),
    };
    assert!(std::fs::read(file).unwrap() == whole, "the resumed run is not the one that never stopped");
    for log in ["run/log.jsonl", "copy.jsonl"] {
        assert_eq!(steps(work, log), (1..=6).collect::<Vec<_>>(), "{log}");
    }
    assert_eq!(leftovers(work.0.path()), Vec::<PathBuf>::new());
}

/// The checkpoint of a whole run.
pub(crate) fn whole() -> Vec<u8> {
    let work = Workplace::new();
    work.succeed(TRAIN);
    std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap()
}

/// A training run loses no checkpoint, whatever call fails, whether it begins or goes on.
fn check_training(work: Workplace, flags: &str) {
    let Some(library) = library() else { return };
    let whole = whole();
    let scene = Scene::new(work);
    let file = scene.work.path("run").join(CHECKPOINT_FILE);
    let first = std::fs::read(&file).ok();
    // The only bytes that a checkpoint of a step may have.
    let mut known: BTreeMap<u64, Vec<u8>> = BTreeMap::from([(6, whole.clone())]);
    let faults = scene.each(library, flags, &mut |tried, _| {
        let found = std::fs::read(&file).ok();
        assert!(first.is_none() || found.is_some(), "{:?}: the checkpoint is gone", tried.failed);
        if let Some(found) = found {
            let step = Checkpoint::load(&scene.work.path("run")).unwrap().meta.step;
            assert!(
                *known.entry(step).or_insert_with(|| found.clone()) == found,
                "{:?}: step {step}",
                tried.failed
            );
        }
        check_leftovers(&scene.work, tried);
        check_goes_on(&scene.work, &whole);
    });
    assert!(faults > 40, "{faults}");
    eprintln!("{faults} faults of {flags}");
}

#[test]
fn a_run_that_begins() {
    check_training(Workplace::new(), TRAIN);
}

#[test]
fn a_run_that_goes_on() {
    let work = Workplace::new();
    work.succeed(&TRAIN.replace("--steps 6", "--steps 3"));
    check_training(work, RESUME);
}

/// Calls that are interrupted are made again, and writes that write less than they were given go on.
#[test]
fn interrupted_calls_and_short_writes_are_no_faults() {
    let Some(library) = library() else { return };
    let whole = whole();
    for (calls, fault) in [("open,write,fsync,ftruncate", INTERRUPTED), ("write", SHORT)] {
        let work = Workplace::new();
        let Tried { ended, failed } = run(&work, library, TRAIN, calls, "every", fault);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(failed.is_some());
        assert!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap() == whole);
        assert_eq!(steps(&work, "run/log.jsonl"), (1..=6).collect::<Vec<_>>());
    }
}

/// A command that makes something from something: what is there afterwards is the old or the new, and never a part.
struct Making {
    flags: &'static str,
    /// What it makes, each whole for itself: files, or folders.
    makes: &'static [&'static str],
}

fn check_making(work: Workplace, Making { flags, makes }: Making) {
    let Some(library) = library() else { return };
    let places: Vec<_> = makes.iter().map(|name| work.path(name)).collect();
    let now = || places.iter().map(|place| content(place)).collect::<Vec<_>>();
    let old = now();
    let scene = Scene::new(work);
    scene.work.succeed(flags);
    let new = now();
    assert!(makes.is_empty() || old != new, "{flags}");
    let faults = scene.each(library, flags, &mut |tried, _| {
        for ((now, old), new) in now().iter().zip(&old).zip(&new) {
            assert!(now == old || now == new, "{flags}: {:?}", tried.failed);
        }
        if tried.ended.code == Some(0) {
            assert!(now() == new, "{flags}: {:?}", tried.failed);
        }
        check_leftovers(&scene.work, tried);
        scene.work.succeed(flags);
        assert!(now() == new, "{flags}: {:?}", tried.failed);
        assert_eq!(leftovers(scene.work.0.path()), Vec::<PathBuf>::new(), "{:?}", tried.failed);
    });
    assert!(faults > 1, "{flags}: {faults}");
    eprintln!("{faults} faults of {flags}");
}

/// A file, or all files of a folder.
fn content(place: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    match std::fs::read(place) {
        Ok(bytes) => BTreeMap::from([(place.to_path_buf(), bytes)]),
        // A lock that could not be removed is none of it.
        Err(_) => tree(place).into_iter().filter(|(path, _)| !path.ends_with(".kernfusion.lock")).collect(),
    }
}

/// A trained model, and what commands make of it, made from another one before.
fn trained() -> Workplace {
    let work = Workplace::new();
    let train = "train --config gpt.json --batch-size 1 --threads 1 --sample-tokens 0 --validation-batches 0 --tokenizer bpe \
         --vocabulary 260 --steps 1";
    work.write("gpt.json", r#"{"layers": 1, "width": 8, "heads": 2, "context": 8}"#);
    // Of the library that `compile` puts beside a model only the copy matters here, so it is small.
    work.write("runtime.a", "!<arch>\n");
    work.write("rows.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    work.succeed(&format!("{train} --out old --seed 2"));
    work.succeed(&format!("{train} --out run"));
    work
}

#[test]
fn what_is_made_from_checkpoints() {
    let cases = [
        (
            "tune sft --checkpoint old --data rows.jsonl --batch-size 1 --steps 2 --threads 1 --log tune.jsonl --out tuned",
            "tuned",
        ),
        ("export old -o saved", "saved"),
        ("compile --checkpoint old --name m --runtime runtime.a -o artefact", "artefact"),
        ("score --checkpoint old --ids 1,2,3 --threads 1 --json score.json", "score.json"),
        ("dump --config gpt.json --batch-size 2 --stage trace -o dump.kir", "dump.kir"),
    ];
    for (old, makes) in cases {
        let work = trained();
        work.succeed(old);
        let flags = match makes {
            "dump.kir" => old.replace("--batch-size 2", "--batch-size 3"),
            "score.json" => old.replace("old", "run"),
            _ => format!(
                "{} --overwrite",
                old.replace("checkpoint old", "checkpoint run").replace("export old", "export run")
            ),
        };
        check_making(work, Making { flags: flags.leak(), makes: Box::leak(Box::new([makes])) });
    }
}

#[test]
fn an_import() {
    let work = Workplace::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hugging_face");
    for name in ["gpt2", "llama"] {
        std::fs::create_dir(work.path(name)).unwrap();
        for (path, content) in tree(&fixtures.join(name)) {
            if !path.ends_with("expected.safetensors") {
                work.write(&format!("{name}/{}", path.file_name().unwrap().to_str().unwrap()), content);
            }
        }
    }
    work.succeed("import llama -o imported");
    let makes = &["imported/checkpoint.safetensors", "imported/shape.json"];
    check_making(work, Making { flags: "import gpt2 -o imported --overwrite", makes });
}

/// What only reads says what it cannot read.
#[test]
fn a_text_that_is_generated() {
    let work = trained();
    check_making(work, Making { flags: "generate --checkpoint run --tokens 3 --threads 1", makes: &[] });
}

/// A disk that is full from a checkpoint on: the run ends with an error, and the checkpoint before stays.
#[test]
fn a_disk_that_fills_up_ends_the_run_with_the_last_checkpoint() {
    let Some(library) = library() else { return };
    let work = Workplace::new();
    let writes = |number: usize| {
        run(&work, library, &format!("{TRAIN} --overwrite"), "fsync", &number.to_string(), NO_SPACE)
    };
    // Two for the description of the run, two for each checkpoint.
    let Tried { ended, failed } = writes(5);
    assert!(failed.unwrap().1.to_string_lossy().contains("checkpoint.safetensors"));
    let message = message(ended, "train");
    assert!(
        message.starts_with("cannot write run/checkpoint.safetensors: No space left on device"),
        "{message}"
    );
    assert_eq!(Checkpoint::load(&work.path("run")).unwrap().meta.step, 2);
    check_goes_on(&work, &whole());
}
