//! A model is tuned in three steps, as a user would.

use super::device::succeed;
use super::workplace::{Workplace, end};
use serde_json::Value;

/// A trained model, and rows for each method.
fn prepared() -> Workplace {
    let work = Workplace::new();
    work.succeed_training("--steps 3");
    work.write("answers.jsonl", "{\"prompt\": \"ab\", \"response\": \"cab\"}\n".repeat(3));
    let row = |good: &str, bad: &str| {
        format!("{{\"prompt\": \"ab\", \"chosen\": \"{good}\", \"rejected\": \"{bad}\"}}\n")
    };
    work.write(
        "preferences.jsonl",
        row("eee", "ttt") + &row("eet", "tte") + &row("tee", "tet") + &row("eee", "eet"),
    );
    work.write("prompts.jsonl", "{\"prompt\": \"t\"}\n{\"prompt\": \"e\"}\n");
    work
}

fn logged(work: &Workplace, log: &str, field: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(work.path(log)).unwrap();
    let rows = text.lines().map(|row| serde_json::from_str::<Value>(row).unwrap());
    rows.map(|row| row[field].as_f64().unwrap()).collect()
}

#[test]
fn from_responses_over_preferences_to_rewards() {
    let work = prepared();
    work.succeed(
        "tune sft --checkpoint run --data answers.jsonl --out sft --steps 30 --lr 0.01 --log sft.jsonl",
    );
    let losses = logged(&work, "sft.jsonl", "loss");
    assert!(losses.len() == 30 && losses[29] < losses[0] / 2.0, "{losses:?}");
    let flags = "--lr 0.01 --batch-size 4 --log reward.jsonl";
    let out = work.succeed(&format!(
        "tune reward --checkpoint run --data preferences.jsonl --out reward --steps 60 {flags}"
    ));
    assert!(out.contains("100.0 % of the rows"), "{out}");
    let ppo = "tune ppo --checkpoint run --reward reward --data prompts.jsonl --responses 16 --length 6";
    let out = work.succeed(&format!("{ppo} --out ppo --iterations 12 --lr 0.01 --beta 0.02 --log ppo.jsonl"));
    assert!(out.contains("reward ") && out.contains("nats"), "{out}");
    let rewards = logged(&work, "ppo.jsonl", "reward");
    assert!(rewards.len() == 12 && rewards[11] > rewards[0], "{rewards:?}");
    let text = work.succeed("generate --checkpoint ppo --prompt t --tokens 6");
    assert!(text.starts_with('t'), "{text:?}");
    work.succeed(
        "tune sft --checkpoint ppo --data answers.jsonl --out adapted --steps 2 --lora 2 --freeze wte",
    );
    work.succeed("generate --checkpoint adapted --tokens 3");
}

#[test]
fn what_cannot_be_tuned_says_so_in_one_line() {
    let work = prepared();
    work.write("broken.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\"}\n");
    work.write("long.jsonl", "{\"prompt\": \"abcdefghij\", \"response\": \"b\"}\n");
    let sft = "tune sft --checkpoint run --out tuned --data";
    let cases = [
        ("tune".to_string(), "requires a subcommand"),
        (format!("{sft} none.jsonl"), "cannot read none.jsonl: "),
        (format!("{sft} broken.jsonl"), "broken.jsonl, line 2: missing field `response`"),
        (format!("{sft} long.jsonl"), "row 1: the prompt has 10 tokens, the model reads 8"),
        (format!("{sft} answers.jsonl --lr -1"), "learning rate -1 is out of range"),
        (format!("{sft} answers.jsonl --freeze nothing"), "no parameter under \"nothing\""),
        (
            "tune ppo --checkpoint run --reward run --data prompts.jsonl --out tuned".into(),
            "run: this is no reward model",
        ),
        ("train --resume tuned".into(), "there is no checkpoint at tuned"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(&flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
    work.succeed(&format!("{sft} answers.jsonl --steps 1"));
    let message = work.fail("train --resume tuned");
    assert!(message.starts_with("tuned: this is a model of tune sft, not a run of train: "), "{message}");
    let message = work.fail(&format!("{sft} answers.jsonl"));
    assert_eq!(message, "tuned has a run: name another place, or ask for it to be replaced (--overwrite)");
}

#[test]
fn a_device_tunes_as_the_cpu_does() {
    let work = prepared();
    let learning = "--lr 0.01 --overwrite --log";
    let methods = [
        (
            format!(
                "tune sft --checkpoint run --data answers.jsonl --out sft --steps 5 --microbatches 2 {learning}"
            ),
            "loss",
        ),
        (
            format!(
                "tune reward --checkpoint run --data preferences.jsonl --out reward --steps 5 {learning}"
            ),
            "loss",
        ),
        (
            format!(
                "tune ppo --checkpoint sft --reward reward --data prompts.jsonl --responses 8 --length 6 --out ppo --iterations 2 {learning}"
            ),
            "reward",
        ),
    ];
    for (flags, field) in methods {
        work.succeed(&format!("{flags} cpu.jsonl"));
        let Some(_) = succeed(&work, &format!("{flags} cuda.jsonl"), &[]) else { return };
        let [expected, found] = ["cpu.jsonl", "cuda.jsonl"].map(|log| logged(&work, log, field));
        assert!(
            expected.len() == found.len() && expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-3),
            "{flags}: {expected:?} {found:?}"
        );
    }
    work.succeed("generate --checkpoint ppo --tokens 3");
}

/// A run that a signal ends keeps its checkpoint, and ends as shells say it: with 128 and the number of the signal.
#[cfg(unix)]
#[test]
fn a_run_that_is_stopped_says_so_by_its_exit_code() {
    let work = prepared();
    work.succeed("tune reward --checkpoint run --data preferences.jsonl --out scorer --steps 1");
    let methods = [
        ("sft --data answers.jsonl --steps 1000000", "-TERM", 143),
        ("reward --data preferences.jsonl --steps 1000000", "-INT", 130),
        (
            "ppo --data prompts.jsonl --reward scorer --iterations 1000000 --responses 8 --length 2",
            "-TERM",
            143,
        ),
    ];
    for (flags, signal, code) in methods {
        let out = flags.split(' ').next().unwrap();
        let log = work.path(&format!("{out}.jsonl"));
        let mut child = work
            .command(&format!("tune {flags} --checkpoint run --out {out} --log {out}.jsonl"))
            .spawn()
            .unwrap();
        while !std::fs::metadata(&log).is_ok_and(|data| data.len() > 0) {
            assert!(child.try_wait().unwrap().is_none(), "the run has ended");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let process = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &process]).status().unwrap().success());
        let ended = end(child);
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{flags}");
        assert!(
            ended.out.contains("stopped after ") && ended.out.contains("checkpoint in "),
            "{}",
            ended.out
        );
        assert!(work.path(out).join("checkpoint.safetensors").exists());
    }
}
