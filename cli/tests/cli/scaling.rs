//! `explain --ranks N` and `dump --ranks N`: what a rank would run, and the prediction of its step.

use super::workplace::Workplace;
use kernfusion_ir::Graph;
use serde_json::Value;

/// A machine and a link of round numbers.
const STATED: &str = "--link 1GB/s,1ms --peak 1TFLOP/s --bandwidth 100GB/s --efficiency 0.5";

fn explained(work: &Workplace, flags: &str) -> Value {
    work.succeed(&format!("explain --config small.json {flags} --json plan.json"));
    serde_json::from_str(&std::fs::read_to_string(work.path("plan.json")).unwrap()).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
}

#[test]
fn a_prediction_is_what_its_parts_say() {
    let work = Workplace::new();
    let one = explained(&work, &format!("--batch-size 4 --ranks 1 {STATED}"));
    // Parameters and two moments of each.
    let parameters = number(&one["plan"]["state_bytes"]) / 3.0;
    assert_eq!(one["prediction"]["bytes_sent"], 0);
    assert_eq!(one["prediction"]["efficiency"], 1.0);
    let two = explained(&work, &format!("--batch-size 8 --ranks 2 {STATED}"));
    let prediction = &two["prediction"];
    // A gradient is sent by halves, there and back; and the loss, a number of four bytes.
    close(number(&prediction["bytes_sent"]), parameters + 4.0);
    close(number(&two["plan"]["bytes_sent"]), parameters + 4.0);
    let kernels = two["parts"][1]["kernels"].as_array().unwrap();
    let collectives = kernels.iter().filter(|kernel| kernel["form"] == "collective").count();
    assert!(collectives > 10, "{two}");
    // So small gradients share their messages, one there and one back.
    assert_eq!((&prediction["exchanges"], &prediction["messages"]), (&1.into(), &2.into()));
    let communication = 2.0 * 1e-3 + (parameters + 4.0) / 1e9;
    close(number(&prediction["communication_s"]), communication);
    close(number(&prediction["compute_s"]), number(&prediction["floor_s"]) / 0.5);
    let hidden = number(&prediction["hidden_share"]);
    assert!((0.0..1.0).contains(&hidden), "{prediction}");
    let step = number(&prediction["compute_s"]) + (1.0 - hidden) * communication;
    close(number(&prediction["step_s"]), step);
    // Eight windows of eight tokens.
    close(number(&prediction["tokens_per_s"]), 64.0 / step);
    // One process computes four of these windows, or all of them.
    let all = explained(&work, &format!("--batch-size 8 --ranks 1 {STATED}"));
    close(number(&prediction["efficiency"]), number(&one["prediction"]["step_s"]) / step);
    let whole = number(&all["prediction"]["step_s"]) / (2.0 * step);
    close(number(&prediction["efficiency_whole_batch"]), whole);
}

#[test]
fn a_rank_may_keep_a_part_of_the_optimizers_state() {
    let work = Workplace::new();
    let [one, whole, parts] =
        ["--batch-size 4", "--batch-size 8 --ranks 4", "--batch-size 8 --ranks 4 --shard-optimizer"]
            .map(|flags| explained(&work, flags));
    let state = |document: &Value| number(&document["plan"]["state_bytes"]);
    // Parameters, sums and two moments; of moments a quarter. The loss has a sum, too.
    let parameters = state(&one) / 3.0;
    close(state(&whole), 4.0 * parameters + 4.0);
    close(state(&parts), 2.5 * parameters + 4.0);
    let exchanges = |document: &Value, name: &str| {
        let kernels = document["parts"][1]["kernels"].as_array().unwrap();
        kernels.iter().filter(|kernel| kernel["name"].as_str().unwrap().contains(name)).count()
    };
    // The loss stays whole.
    assert_eq!((exchanges(&whole, "reduce_scatter"), exchanges(&parts, "all_reduce")), (0, 1));
    assert_eq!(exchanges(&parts, "reduce_scatter"), exchanges(&parts, "all_gather"));
    assert!(parts["prediction"].is_null());
}

#[test]
fn the_text_says_what_is_assumed() {
    let work = Workplace::new();
    let out = work.succeed(&format!("explain --config small.json --batch-size 8 --ranks 4 {STATED}"));
    for part in [
        "  collective ",
        " B sent",
        "plan of each of 4 ranks:",
        "prediction for 4 ranks (arithmetic, not a measurement):",
        "at 50.0 %",
        "100.0 GB/s of memory, products 1000 GFLOP/s in f32, 1000 in bf16 (as stated)",
        "a message takes 1000 µs and its bytes at 1 GB/s",
        "no rank waits for a slower one",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    // Peaks of this machine.
    let out =
        work.succeed("explain --config small.json --batch-size 8 --ranks 4 --link 1GB/s,5us --threads 1");
    assert!(out.contains("(measured here, 1 thread, ") && out.contains("at 74.0 %"), "{out}");
    // Products of bf16 that are more than twice as fast as those of f32 come from a unit of their own.
    for (peak, share) in [("1TFLOP/s,2TFLOP/s", 0.74), ("1TFLOP/s,8TFLOP/s", 0.25)] {
        let flags = format!("--dtype bf16 --ranks 1 --link 1GB/s,5us --peak {peak} --bandwidth 1GB/s");
        assert_eq!(explained(&work, &flags)["prediction"]["share_of_floors"], share);
    }
    // Without a link there is a plan alone, and without ranks nothing is sent.
    let out = work.succeed("explain --config small.json --batch-size 8 --ranks 4");
    assert!(out.contains("  bytes sent ") && !out.contains("prediction"), "{out}");
    assert!(!work.succeed("explain --config small.json").contains("bytes sent"));
}

#[test]
fn the_tail_of_a_rank_is_shown_with_what_it_exchanges() {
    let work = Workplace::new();
    let show =
        |flags: &str| work.succeed(&format!("dump --config small.json --batch-size 4 --ranks 2 {flags}"));
    let tail = Graph::parse_verified(&show("--stage simplify --tail")).unwrap();
    assert_eq!(tail.ranks(), 2);
    assert!(show("--stage simplify --tail --shard-optimizer").contains("reduce_scatter"));
    let body = Graph::parse_verified(&show("--stage simplify")).unwrap();
    assert_eq!((body.ranks(), &*body[body.input("x").unwrap()].ty.shape), (1, &[2, 8][..]));
    assert!(show("--stage fuse --tail").contains("collective loss/all_reduce among 2 ranks"));
    assert!(show("--stage plan --tail").contains("loss/all_reduce"));
    assert!(show("--stage clif --tail --kernel loss/all_reduce").contains("; no code of its own"));
}
