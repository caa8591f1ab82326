//! Signals: the first keeps a checkpoint, a second Ctrl-C waits for nothing.

use crate::files::{TRAIN, whole};
use crate::workplace::{Workplace, end};
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use std::process::{Child, Command};
use std::time::Duration;

const ENDLESS: &str = "train --config small.json --batch-size 1 --threads 1 --sample-tokens 0 --validation-batches 1 \
     --validate-every 3 --checkpoint-every 0 --steps 100000000 --out run --log copy.jsonl --tensorboard";

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Signals that end a run, with the exit codes. Without SIGHUP where it is ignored, as by nohup: runs that are started here ignore it, too.
fn ending_signals() -> impl Iterator<Item = (&'static str, i32)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignores_hangups = ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1);
    let all = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];
    all.into_iter().filter(move |&(signal, _)| signal != "-HUP" || !ignores_hangups)
}

/// A run that has done some steps.
fn under_way(work: &Workplace, mut command: Command) -> Child {
    let mut child = command.spawn().unwrap();
    while std::fs::read_to_string(work.path("copy.jsonl")).map_or(0, |text| text.lines().count()) < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[test]
fn each_signal_that_ends_a_run_keeps_a_checkpoint() {
    for (signal, code) in ending_signals() {
        let work = Workplace::new();
        let child = under_way(&work, work.command(ENDLESS));
        send(signal, &child);
        let ended = end(child);
        assert_eq!(ended.code, Some(code), "{signal}: {}", ended.err);
        let step = Checkpoint::load(&work.path("run")).unwrap().meta.step;
        assert!(
            step >= 3 && ended.out.contains(&format!("stopped after step {step}; to go on: ")),
            "{}",
            ended.out
        );
        let steps: Vec<_> = work.losses("copy.jsonl").into_iter().map(|row| row.0).collect();
        assert_eq!(steps, (1..=step).collect::<Vec<_>>());
    }
}

/// A terminal that closes says so several times, and a system that shuts down may.
#[test]
fn a_signal_that_comes_twice_still_keeps_a_checkpoint() {
    for (signal, _) in ending_signals().filter(|&(signal, _)| signal != "-INT") {
        let work = Workplace::new();
        let child = under_way(&work, work.command(ENDLESS));
        for _ in 0..3 {
            send(signal, &child);
        }
        end(child);
        assert!(Checkpoint::load(&work.path("run")).unwrap().meta.step >= 3, "{signal}");
    }
}

/// As by nohup, whose shell ignores the signal.
#[test]
fn a_run_that_is_to_outlive_its_terminal_does() {
    let work = Workplace::new();
    let program = work.command("");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(program.get_program());
    shell.args(ENDLESS.split_whitespace()).current_dir(work.0.path()).env("KERNFUSION_DATA", work.0.path());
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = under_way(&work, shell);
    send("-HUP", &child);
    let rows = || std::fs::read_to_string(work.path("copy.jsonl")).unwrap().lines().count();
    let before = rows();
    let mut child = child;
    while rows() < before + 50 {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    send("-INT", &child);
    assert_eq!(end(child).code, Some(130));
}

#[test]
fn a_second_control_c_ends_a_run_at_once_and_the_last_checkpoint_is_whole() {
    let work = Workplace::new();
    work.succeed(TRAIN);
    let before = std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap();
    assert!(before == whole());
    // More texts than there is time for: this run ends only where a step ends, so the second signal comes first.
    let long = "train --resume run --mode eager --threads 1 --steps 8 --checkpoint-every 0 --validate-every 0 --sample-every 1 \
         --sample-tokens 100000000";
    let child = work.command(long).spawn().unwrap();
    while std::fs::read_to_string(work.path("run/log.jsonl"))
        .map_or(0, |text| text.matches("\"seconds\"").count())
        < 7
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    send("-INT", &child);
    std::thread::sleep(Duration::from_millis(50));
    send("-INT", &child);
    let ended = end(child);
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    assert!(std::fs::read(work.path("run").join(CHECKPOINT_FILE)).unwrap() == before);
}
