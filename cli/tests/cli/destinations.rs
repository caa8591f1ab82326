//! Where commands write: no run replaces another one unless it is asked to.

use super::workplace::{Ended, Workplace, end, message};
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::path::Path;
use std::process::Child;

/// A short run of the small model, which goes where it is told to.
const TRAIN: &str =
    "train --config small.json --batch-size 2 --sample-tokens 0 --validation-batches 1 --steps 2";

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn content(work: &Workplace, path: &str) -> Vec<u8> {
    std::fs::read(work.path(path)).unwrap()
}

fn seed(work: &Workplace, directory: &str) -> u64 {
    Checkpoint::load(&work.path(directory)).unwrap().meta.seed
}

#[test]
fn runs_without_a_name_take_the_next_free_one() {
    let work = Workplace::new();
    let out = work.succeed(&format!("{TRAIN} --seed 1"));
    assert!(out.contains("checkpoint in runs/tiny:") && !out.contains("has a run"), "{out}");
    let out = work.succeed(&format!("{TRAIN} --seed 2"));
    assert!(out.starts_with("runs/tiny has a run: this one goes to runs/tiny-2\n"), "{out}");
    // A directory without a run is free, whatever else is in it.
    std::fs::create_dir(work.path("runs/tiny-3")).unwrap();
    work.write("runs/tiny-3/notes.txt", "mine");
    let out = work.succeed(&format!("{TRAIN} --seed 3"));
    assert!(out.starts_with("runs/tiny has a run: this one goes to runs/tiny-3\n"), "{out}");
    assert_eq!(["runs/tiny", "runs/tiny-2", "runs/tiny-3"].map(|run| seed(&work, run)), [1, 2, 3]);
    assert_eq!(files(&work.path("runs/tiny-2")), [CHECKPOINT_FILE, "log.jsonl", "run.json"]);
    // A run of which there is a log alone is one, too.
    std::fs::remove_file(work.path("runs/tiny-2").join(CHECKPOINT_FILE)).unwrap();
    let out = work.succeed(&format!("{TRAIN} --seed 4"));
    assert!(out.contains("goes to runs/tiny-4\n"), "{out}");
    work.succeed(&format!("{TRAIN} --seed 5 --overwrite"));
    assert_eq!((seed(&work, "runs/tiny"), work.path("runs/tiny-5").exists()), (5, false));
}

#[test]
fn a_named_directory_with_a_run_is_refused_replaced_or_gone_on_with() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --out run --lora 2 --tensorboard"));
    let before = content(&work, "run/checkpoint.safetensors");
    let message = work.fail(&format!("{TRAIN} --out run --seed 2"));
    assert_eq!(
        message,
        "run has a run: name another directory, go on with it (--resume run) or replace it (--overwrite)"
    );
    assert_eq!(content(&work, "run/checkpoint.safetensors"), before);
    work.succeed("train --resume run --steps 4 --out ./run");
    assert_eq!(Checkpoint::load(&work.path("run")).unwrap().meta.step, 4);
    work.write("run/notes.txt", "mine");
    work.write("run/adapter/notes.txt", "mine, too");
    work.succeed(&format!("{TRAIN} --out run --seed 2 --overwrite"));
    assert_eq!(files(&work.path("run")), ["adapter", CHECKPOINT_FILE, "log.jsonl", "notes.txt", "run.json"]);
    assert_eq!(files(&work.path("run/adapter")), ["notes.txt"]);
    assert_eq!((seed(&work, "run"), work.losses("run/log.jsonl").len()), (2, 2));
    // A run that goes on elsewhere is a new one there.
    work.succeed("train --resume run --steps 3 --out other");
    assert!(work.fail("train --resume run --steps 3 --out other").starts_with("other has a run: "));
    work.succeed("train --resume run --steps 3 --out other --overwrite");
    assert_eq!(Checkpoint::load(&work.path("run")).unwrap().meta.step, 2);
}

#[test]
fn what_a_run_is_made_from_is_not_overwritten() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --out run"));
    work.write("rows.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    let before = content(&work, "run/checkpoint.safetensors");
    for flags in [
        format!("{TRAIN} --init run/checkpoint.safetensors --out run --overwrite"),
        "tune sft --checkpoint run --data rows.jsonl --steps 1 --out ./run --overwrite".into(),
    ] {
        let message = work.fail(&flags);
        assert!(message.contains("--overwrite would remove "), "{message}");
    }
    work.write("step.kir", work.succeed("dump --config small.json --stage trace"));
    let program = content(&work, "step.kir");
    for (flags, expected) in [
        ("dump step.kir --stage trace -o ./step.kir", "it is not replaced by what is made from step.kir"),
        ("dump step.kir --stage trace -o run/checkpoint.safetensors", "it is a part of the run in run"),
        ("score --checkpoint run --ids 1,2 --json run/log.jsonl", "it is a part of the run in run"),
        ("report run -o run/log.jsonl", "it is not replaced by what is made from run/log.jsonl"),
        ("run step.kir --outputs step.kir", "step.kir"),
    ] {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
    assert_eq!(content(&work, "step.kir"), program);
    assert_eq!(content(&work, "run/checkpoint.safetensors"), before);
}

#[test]
fn files_made_from_others_are_replaced() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --out run"));
    for flags in [
        "dump --config small.json --stage trace -o file",
        "score --checkpoint run --ids 1,2 --json file",
        "report run",
        "bench --config small.json --batch-size 2 --steps 1 --warmup 0 --json file --html page",
    ] {
        work.write("file", "something else");
        work.succeed(flags);
        work.succeed(flags);
    }
    assert!(String::from_utf8(content(&work, "file")).unwrap().contains("median_step_s"));
    assert_eq!(files(&work.path("run")), [CHECKPOINT_FILE, "log.jsonl", "run.html", "run.json"]);
}

#[test]
fn logs_and_event_files_of_another_run_stay() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --out a --log a.jsonl --tensorboard board"));
    let (log, board) = (content(&work, "a.jsonl"), files(&work.path("board")));
    let message = work.fail(&format!("{TRAIN} --out b --log a.jsonl"));
    assert!(message.starts_with("a.jsonl has rows of another run: "), "{message}");
    let message = work.fail(&format!("{TRAIN} --out b --tensorboard board"));
    assert!(message.starts_with("board has event files of another run: "), "{message}");
    assert!(!work.path("b").exists());
    work.succeed(&format!("{TRAIN} --out b"));
    let message = work.fail("train --resume b --steps 3 --log a.jsonl");
    assert!(message.starts_with("a.jsonl has rows that this run has not written: "), "{message}");
    assert_eq!((content(&work, "a.jsonl"), files(&work.path("board"))), (log, board));
    // Its own run goes on with it, also from another directory.
    work.succeed("train --resume a --steps 3 --log a.jsonl --tensorboard board");
    work.succeed("train --resume a --steps 4 --out c --log a.jsonl");
    work.succeed("train --resume c --steps 5 --log a.jsonl");
    assert_eq!(work.losses("a.jsonl").iter().map(|row| row.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(files(&work.path("board")).len(), 2);
    work.succeed("train --resume b --steps 3 --log a.jsonl --overwrite");
    assert_eq!(work.losses("a.jsonl").iter().map(|row| row.0).collect::<Vec<_>>(), [3]);
    work.succeed(&format!("{TRAIN} --out d --log a.jsonl --tensorboard board --overwrite"));
    assert_eq!((work.losses("a.jsonl").len(), files(&work.path("board")).len()), (2, 1));
    // A file that is no log is not taken for an empty one.
    work.write("letter.txt", "Dear reader,\n");
    assert!(work.fail(&format!("{TRAIN} --out e --log letter.txt")).starts_with("letter.txt has rows"));
    work.succeed(&format!("{TRAIN} --out f --log /dev/null"));
}

#[test]
fn tuned_and_imported_models_and_folders_are_replaced_only_if_asked() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --out run"));
    work.write("rows.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    work.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    work.write("prompts.jsonl", "{\"prompt\": \"a\"}\n");
    let tuned =
        |method: &str, data: &str| format!("tune {method} --checkpoint run --data {data} --batch-size 1");
    let commands = [
        (tuned("sft", "rows.jsonl --steps 1 --log tune.jsonl --out sft"), "sft has a run: "),
        (tuned("reward", "pairs.jsonl --steps 1 --out reward"), "reward has a run: "),
        (
            tuned("ppo", "prompts.jsonl --reward reward --iterations 1 --responses 1 --length 2 --out ppo"),
            "ppo has a run: ",
        ),
        ("export run -o folder".into(), "folder is not empty; nothing was written: "),
        ("compile --checkpoint run -o artefact".into(), "artefact is not empty; nothing was written: "),
        (
            "experiment pretraining --config small.json --batch-size 2 --steps 1 --out p".into(),
            "p has a run: ",
        ),
    ];
    for (flags, expected) in &commands {
        work.succeed(flags);
        let message = work.fail(flags);
        assert!(message.starts_with(expected), "{flags}: {message}");
    }
    work.write("sft/notes.txt", "mine");
    for (flags, _) in &commands {
        work.succeed(&format!("{flags} --overwrite"));
    }
    assert_eq!(files(&work.path("sft")), [CHECKPOINT_FILE, "notes.txt"]);
    work.write("artefact/notes.txt", "mine");
    let message = work.fail("compile --checkpoint run -o artefact --overwrite");
    assert!(message.contains("artefact is not replaced: it has notes.txt"), "{message}");
    let out = work.succeed("experiment pretraining --config small.json --batch-size 2 --steps 1");
    assert!(out.contains("runs/pretraining/report.html"), "{out}");
    let out = work.succeed("experiment pretraining --config small.json --batch-size 2 --steps 1");
    assert!(out.contains("runs/pretraining-2/report.html"), "{out}");
}

/// A run that goes on until it is told not to.
fn endless(work: &Workplace, flags: &str) -> Child {
    work.command(&format!("{TRAIN}000000 --checkpoint-every 1 --validate-every 0 {flags}")).spawn().unwrap()
}

/// Waits until a run has written its first checkpoint.
fn wait_for(child: &mut Child, directory: &Path) {
    while !directory.join(CHECKPOINT_FILE).exists() {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_directory_in_use_is_left_to_the_run_that_has_it() {
    let work = Workplace::new();
    let mut first = endless(&work, "--out run --log log.jsonl");
    wait_for(&mut first, &work.path("run"));
    let refused: Vec<_> =
        [format!("{TRAIN} --out run"), format!("{TRAIN} --out run --overwrite"), "train --resume run".into()]
            .map(|flags| message(work.run(&flags), &flags))
            .into();
    let log = work.run(&format!("{TRAIN} --out other --log log.jsonl --overwrite"));
    assert!(first.try_wait().unwrap().is_none(), "the first run has ended");
    kill(first);
    for message in refused {
        assert_eq!(message, "run is in use: another process writes there");
    }
    assert_eq!(log.code, Some(1), "{}", log.out);
    // A killed run leaves no lock, and the next one takes away what it has left.
    work.succeed(&format!(
        "train --resume run --steps {}",
        Checkpoint::load(&work.path("run")).unwrap().meta.step + 1
    ));
    assert!(
        files(&work.path("run")).iter().all(|name| !name.starts_with('.')),
        "{:?}",
        files(&work.path("run"))
    );
}

#[test]
fn runs_that_begin_at_one_moment_get_directories_of_their_own() {
    let work = Workplace::new();
    let runs: Vec<_> =
        (1..=4).map(|seed| work.command(&format!("{TRAIN} --seed {seed}")).spawn().unwrap()).collect();
    for run in runs {
        let Ended { code, err, .. } = end(run);
        assert_eq!(code, Some(0), "{err}");
    }
    assert_eq!(files(&work.path("runs")), ["tiny", "tiny-2", "tiny-3", "tiny-4"]);
    let mut seeds: Vec<_> =
        files(&work.path("runs")).iter().map(|run| seed(&work, &format!("runs/{run}"))).collect();
    seeds.sort();
    assert_eq!(seeds, [1, 2, 3, 4]);
    // Of those with one name, one gets it.
    let runs: Vec<_> = (1..=4)
        .map(|seed| work.command(&format!("{TRAIN} --seed {seed} --out one")).spawn().unwrap())
        .collect();
    let ended: Vec<_> = runs.into_iter().map(end).collect();
    assert_eq!(ended.iter().filter(|ended| ended.code == Some(0)).count(), 1);
    for Ended { code, err, .. } in ended {
        assert!(code == Some(0) || err.contains("one is in use") || err.contains("one has a run"), "{err}");
    }
}
