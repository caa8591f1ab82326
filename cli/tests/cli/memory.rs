//! Memory limits and microbatches of the batch.

use super::workplace::Workplace;
use kernfusion_ir::Graph;
use serde_json::Value;

#[test]
fn neither_threads_nor_interruptions_change_a_loss_of_a_run_in_microbatches() {
    let work = Workplace::new();
    work.succeed_training("--steps 8 --dropout 0.1 --microbatches 2 --threads 1 --log one.jsonl");
    work.succeed_training("--steps 8 --dropout 0.1 --microbatches 2 --threads 2 --log two.jsonl");
    let first = work.succeed_training("--steps 3 --dropout 0.1 --microbatches 2 --log parts.jsonl");
    assert!(first.contains("memory: the batch in 2 microbatches, "), "{first}");
    let message = work.fail("train --resume run --steps 8 --microbatches 1");
    assert!(message.contains("microbatches is 2, not 1"), "{message}");
    // The run goes on in its microbatches, whether or not the flag is there again.
    let second = work.succeed("train --resume run --steps 5 --log parts.jsonl");
    assert!(second.contains("resumed after step 3") && second.contains("2 microbatches"), "{second}");
    work.succeed("train --resume run --steps 8 --microbatches 2 --memory-limit 4GiB --log parts.jsonl");
    let expected = work.losses("one.jsonl");
    assert_eq!(expected.len(), 8);
    assert_eq!(work.losses("two.jsonl"), expected);
    assert_eq!(work.losses("parts.jsonl"), expected);
    work.succeed_training("--steps 8 --dropout 0.1 --memory-limit 4GiB --log whole.jsonl");
    for (a, b) in work.losses("whole.jsonl").iter().zip(&expected) {
        assert!((a.1 - b.1).abs() < 1e-4, "{a:?} {b:?}");
    }
}

/// The rows of a benchmark of one step of mode compiled.
fn bench(work: &Workplace, flags: &str) -> Value {
    let fixed = "--mode compiled --steps 1 --warmup 0 --threads 2 --json bench.json";
    work.succeed(&format!("bench --config wide.json --batch-size 64 {fixed} {flags}"));
    let document = std::fs::read_to_string(work.path("bench.json")).unwrap();
    serde_json::from_str::<Value>(&document).unwrap()["results"][0].clone()
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_stays_within_its_limit() {
    let work = Workplace::new();
    work.write("wide.json", r#"{"layers": 2, "width": 128, "heads": 4, "context": 128, "dropout": 0.1}"#);
    let whole = bench(&work, "");
    let peak = whole["peak_rss_mib"].as_f64().unwrap();
    let limit = 0.7 * peak;
    let tiled = bench(&work, &format!("--memory-limit {}", (limit * 1048576.0) as usize));
    assert!(tiled["microbatches"].as_u64().unwrap() > 1 && whole["microbatches"] == 1, "{whole} {tiled}");
    assert!(tiled["peak_rss_mib"].as_f64().unwrap() <= limit, "{limit} {tiled}");
    let [a, b] = [&whole, &tiled].map(|row| row["loss_last"].as_f64().unwrap());
    assert!((a - b).abs() < 1e-4, "{a} {b}");
}

#[test]
fn both_parts_of_a_program_in_slices_are_shown() {
    let work = Workplace::new();
    let show = |flags: &str| work.succeed(&format!("{flags} --config small.json --batch-size 4"));
    let out = show("explain --microbatches 2");
    assert!(out.contains("for each of 2 microbatches") && out.contains("after the last microbatch"), "{out}");
    let [body, tail] = ["", " --tail"].map(|flag| {
        let graph = Graph::parse(&show(&format!("dump --stage simplify --microbatches 2{flag}"))).unwrap();
        graph.verify().unwrap();
        graph
    });
    let x = body.input("x").unwrap();
    assert_eq!(body[x].ty.shape, [2, 8]);
    assert!(tail.input("x").is_none() && tail.output_value("loss").is_some());
    assert!(show("dump --stage plan --microbatches 4").contains("microbatch.index"));
    assert!(show("dump --stage clif --microbatches 2 --tail --kernel optimizer").contains("; kernel "));
}

/// The checkpoint was written when microbatches were called slices, in 2 of them. The losses are those of the same run without a stop, then.
#[test]
fn a_checkpoint_from_before_the_renaming_goes_on() {
    let work = Workplace::new();
    let old = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/old_run/checkpoint.safetensors");
    std::fs::create_dir(work.path("run")).unwrap();
    std::fs::copy(old, work.path("run/checkpoint.safetensors")).unwrap();
    let out = work.succeed("train --resume run --steps 6 --log log.jsonl");
    assert!(out.contains("resumed after step 4") && out.contains("2 microbatches"), "{out}");
    let losses = work.losses("log.jsonl");
    for (found, expected) in losses.iter().zip([(5, 4.2402964), (6, 4.2520847)]) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-4, "{losses:?}");
    }
    assert_eq!(losses.len(), 2);
    // The flag has its old name, too.
    let message = work.fail("train --resume run --steps 7 --slices 1");
    assert!(message.contains("microbatches is 2, not 1"), "{message}");
}
