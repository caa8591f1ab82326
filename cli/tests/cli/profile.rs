//! `kernfusion profile`: the table, and what a program reads of it.

use super::workplace::Workplace;
use serde_json::Value;

const SMALL: &str = "--config layers.json --batch-size 2 --steps 2 --threads 1";

fn workplace() -> Workplace {
    let work = Workplace::new();
    work.write("layers.json", r#"{"layers": 3, "width": 16, "heads": 2, "context": 8}"#);
    work
}

#[test]
fn every_kernel_is_counted_once_and_layers_are_folded() {
    let work = workplace();
    for dtype in ["f32", "bf16"] {
        let out = work.succeed(&format!("profile {SMALL} --dtype {dtype} --lines 0 --json profile.json"));
        assert!(out.contains("GB/s copied") && out.contains("sum of floors"), "{out}");
        assert!(out.contains("blocks.*.mlp") && !out.contains("blocks.1."), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
        let text = std::fs::read_to_string(work.path("profile.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let kernels = document["kernels"].as_array().unwrap();
        let counted: u64 = kernels.iter().map(|kernel| kernel["count"].as_u64().unwrap()).sum();
        let explained = work.succeed(&format!("explain --config layers.json --batch-size 2 --dtype {dtype}"));
        let (number, _) = explained.split_once(" kernels in execution order").unwrap();
        assert_eq!(counted, number.parse::<u64>().unwrap(), "{text}");
        assert!(kernels.iter().any(|kernel| kernel["count"] == 3 && kernel["form"] == "contraction"));
        for field in ["seconds", "floor_s", "bytes"] {
            assert!(kernels.iter().all(|kernel| kernel[field].as_f64().unwrap() > 0.0), "{field}: {text}");
        }
        let rates = [
            "bandwidth_bytes_per_s",
            "reads_bytes_per_s",
            "f32_products_per_s",
            "bf16_products_per_s",
            "step_s",
        ];
        assert!(rates.iter().all(|rate| document[*rate].as_f64().unwrap() > 0.0), "{text}");
    }
}

#[test]
fn fewer_lines_and_other_works_add_up_to_the_same_sums() {
    let work = workplace();
    let out = work.succeed(&format!("profile {SMALL} --work forward --mode eager --lines 3"));
    assert!(out.contains("more lines (--lines 0 shows all)"), "{out}");
    let kernels = out.lines().filter(|line| line.contains(" x k x ") || line.contains("blocks.*")).count();
    assert!(kernels <= 4, "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    let help = work.succeed("profile --help");
    assert!(help.contains("kernfusion profile --preset tiny"), "{help}");
    let message = work.fail("profile --json no/such/place.json --config layers.json --steps 1");
    assert!(message.contains("cannot write no/such/place.json"), "{message}");
    assert!(work.fail("profile --steps 0").contains("'0' for '--steps <N>'"));
}
