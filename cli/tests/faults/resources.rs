//! Memory and threads that the system does not give, and clocks that jump.

use crate::files::{TRAIN, whole};
use crate::shim::{Fault, NO_SPACE, Tried, library, run};
use crate::workplace::{Workplace, end, message};
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What commands of each kind take.
fn commands() -> [String; 4] {
    [
        format!("{TRAIN} --overwrite"),
        format!(
            "{} --overwrite",
            TRAIN
                .replace("--mode eager", "")
                .replace("--out run", "--out compiled")
                .replace("copy", "compiled")
        ),
        "generate --checkpoint trained --tokens 3 --threads 2".into(),
        "bench --config small.json --batch-size 1 --steps 1 --warmup 0 --threads 2".into(),
    ]
}

fn workplace() -> Workplace {
    let work = Workplace::new();
    work.succeed(&TRAIN.replace("--out run", "--out trained").replace("--log copy.jsonl", ""));
    work
}

/// Lets one reservation after another fail, of all commands at the same time, and says how many there were.
fn each(calls: &str, judge: &(dyn Fn(&str, Tried) + Sync)) -> usize {
    let Some(library) = library() else { return usize::MAX };
    let of_command = |flags: &str| {
        let work = workplace();
        let fault = Fault { text: "", ..NO_SPACE };
        let tried = (1..).map(|number: usize| run(&work, library, flags, calls, &number.to_string(), fault));
        tried.take_while(|tried| tried.failed.is_some()).map(|tried| judge(flags, tried)).count()
    };
    let commands = commands();
    let faults = std::thread::scope(|scope| {
        let threads: Vec<_> = commands.iter().map(|flags| scope.spawn(|| of_command(flags))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    eprintln!("{faults} faults of {calls}");
    faults
}

#[test]
fn memory_that_is_refused_is_an_error_with_its_size() {
    let faults = each("mmap,posix_memalign", &|flags, Tried { ended, failed }| {
        let (call, _) = failed.unwrap();
        if ended.code == Some(0) {
            return;
        }
        let message = message(ended, flags);
        assert!(message.contains("memory"), "{flags}: {call}: {message}");
    });
    assert!(faults > 8, "{faults}");
}

#[test]
fn threads_that_do_not_start_are_an_error_or_fewer_threads() {
    let whole = whole();
    let fewer = AtomicUsize::new(0);
    let faults = each("pthread_create", &|flags, Tried { ended, .. }| match ended.code {
        Some(0) => drop(fewer.fetch_add(1, Ordering::Relaxed)),
        _ => assert!(message(ended, flags).contains("temporarily unavailable")),
    });
    assert!(faults > 2, "{faults}");
    let Some(library) = library() else { return };
    // A run with one thread less has the same numbers.
    let work = Workplace::new();
    let flags = TRAIN.replace("--threads 1", "--threads 3");
    let fault = Fault { text: "", ..NO_SPACE };
    let ends: Vec<_> = (1..=3)
        .map(|number| {
            run(&work, library, &format!("{flags} --overwrite"), "pthread_create", &number.to_string(), fault)
        })
        .filter(|tried| tried.ended.code == Some(0))
        .map(|_| std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap())
        .collect();
    assert!(ends.len() >= 2 && ends.iter().all(|bytes| *bytes == whole), "{} {fewer:?}", ends.len());
}

#[test]
fn clocks_that_jump_change_nothing() {
    let Some(library) = library() else { return };
    let work = Workplace::new();
    let mut command = work.command(TRAIN);
    let ended = end(command.env("LD_PRELOAD", library).env("FAULT_CLOCK", "jump").spawn().unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap() == whole());
    work.succeed("report run");
}
