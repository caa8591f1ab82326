//! What is written about a run: logs, event files, pages.

use super::workplace::Workplace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const TRAIN: &str = "train --config small.json --batch-size 2 --validation-batches 1 --validate-every 3 --sample-tokens 5 \
     --sample-every 4 --sample-prompt The --out run --overwrite";

/// CRC-32C, bit by bit.
fn checksum(data: &[u8]) -> u32 {
    let crc = data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The fields of a protobuf message: number and content, numbers as their eight or four bytes or as a varint's value.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                let value = varint(&mut bytes);
                fields.push((key >> 3, value.to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.push((key >> 3, content.to_vec()));
        bytes = rest;
    }
    fields
}

fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find(|field| field.0 == number).map(|field| field.1)
}

fn whole(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// What the event files of a directory say, by name and step, in the order of the files.
#[derive(Default)]
struct Events {
    scalars: BTreeMap<(String, u64), f32>,
    texts: Vec<(String, u64, String)>,
    /// Steps with which runs begin or go on.
    starts: Vec<u64>,
}

fn read(directory: &Path) -> Events {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.to_string_lossy().contains("events.out.tfevents.")).collect();
    files.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    let mut events = Events::default();
    for file in files {
        let bytes = std::fs::read(file).unwrap();
        let mut rest = &bytes[..];
        let mut first = true;
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let message = &rest[12..12 + length];
            assert_eq!((number(8), number(12 + length)), (checksum(&rest[..8]), checksum(message)));
            let version = field(message, 3).map(|text| String::from_utf8(text).unwrap());
            assert_eq!(version.as_deref(), first.then_some("brain.Event:2"));
            let time = f64::from_bits(whole(field(message, 1)));
            assert!(time > 1.7e9, "{time}");
            take(message, &mut events);
            (first, rest) = (false, &rest[16 + length..]);
        }
    }
    events
}

fn take(message: &[u8], events: &mut Events) {
    let step = whole(field(message, 2));
    if field(message, 7).is_some_and(|log| whole(field(&log, 1)) == 1) {
        events.starts.push(step);
    }
    for (_, value) in field(message, 5).iter().flat_map(|summary| fields(summary)) {
        let name = String::from_utf8(field(&value, 1).unwrap()).unwrap();
        if let Some(scalar) = field(&value, 2) {
            let scalar = f32::from_le_bytes(scalar.try_into().unwrap());
            events.scalars.insert((name, step), scalar);
        } else {
            let plugin = field(&field(&value, 9).unwrap(), 1).unwrap();
            assert_eq!(field(&plugin, 1).unwrap(), b"text");
            let tensor = field(&value, 8).unwrap();
            assert_eq!(whole(field(&tensor, 1)), 7, "a tensor of strings");
            events.texts.push((name, step, String::from_utf8(field(&tensor, 8).unwrap()).unwrap()));
        }
    }
}

fn rows(log: &Path) -> Vec<Value> {
    std::fs::read_to_string(log).unwrap().lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

#[test]
fn tensorboard_is_told_what_the_log_says() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --steps 5 --tensorboard board --log copy.jsonl"));
    work.succeed("train --resume run --steps 8 --tensorboard board --log copy.jsonl");
    let log = rows(&work.path("run/log.jsonl"));
    assert_eq!(log, rows(&work.path("copy.jsonl")));
    let events = read(&work.path("board"));
    assert_eq!(events.starts, [0, 6]);
    let scalar = |name: &str, step: u64| events.scalars.get(&(name.to_string(), step)).copied();
    let names = [
        ("loss", "loss/training"),
        ("gradient_norm", "optimizer/gradient_norm"),
        ("learning_rate", "optimizer/learning_rate"),
        ("tokens_per_s", "speed/tokens_per_s"),
        ("seconds", "speed/seconds"),
        ("val_loss", "loss/validation"),
        ("resident_mib", "system/resident_mib"),
        ("peak_mib", "system/peak_mib"),
        ("busy_cores", "system/busy_cores"),
    ];
    let mut expected = 0;
    for row in &log {
        let step = row["step"].as_u64().unwrap();
        for (field, name) in names {
            let Some(value) = row[field].as_f64() else { continue };
            assert_eq!(scalar(name, step), Some(value as f32), "{name} of step {step}");
            expected += 1;
        }
    }
    // Nothing else is there.
    assert_eq!(events.scalars.len(), expected);
    assert_eq!((1..=8).filter_map(|step| scalar("loss/training", step)).count(), 8);
    let samples: Vec<_> = log.iter().filter(|row| row.get("sample").is_some()).collect();
    let shown: Vec<_> = events.texts.iter().filter(|text| text.0 == "sample/The").collect();
    assert_eq!((samples.len(), shown.len()), (3, 3));
    for (row, (_, step, text)) in samples.iter().zip(shown) {
        let plain: Vec<_> = text.lines().map(|line| line.strip_prefix("    ").unwrap()).collect();
        assert_eq!(row["step"].as_u64(), Some(*step));
        assert_eq!(
            plain.join("\n"),
            format!("The{}", row["sample"].as_str().unwrap()).trim_end_matches('\n')
        );
    }
    let about = events.texts.iter().find(|text| text.0 == "run").unwrap();
    assert!(about.2.contains("\"learning_rate\": 0.001"), "{}", about.2);
}

#[test]
fn a_run_has_a_page() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --steps 5 --tensorboard"));
    assert!(read(&work.path("run")).scalars.len() > 20);
    let out = work.succeed("report run");
    assert_eq!(out, "report in run/run.html\n");
    work.succeed("train --resume run --steps 9");
    work.succeed("report run -o other.html");
    let page = std::fs::read_to_string(work.path("other.html")).unwrap();
    for part in [
        "Training run run",
        "9 steps are done.",
        "<svg",
        "the embedded text",
        "<mark>The</mark>",
        "Busy cores",
        "seed",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    // A log alone has no settings.
    std::fs::create_dir(work.path("logs")).unwrap();
    std::fs::copy(work.path("run/log.jsonl"), work.path("logs/first.jsonl")).unwrap();
    work.succeed("report logs/first.jsonl");
    let page = std::fs::read_to_string(work.path("logs/first.html")).unwrap();
    assert!(page.contains("Training run first") && !page.contains("Settings"));
}

#[test]
fn runs_that_have_no_page() {
    let work = Workplace::new();
    std::fs::create_dir(work.path("empty")).unwrap();
    work.write("empty.jsonl", "");
    work.write("letter.jsonl", "Dear reader,\n");
    let cases = [
        ("report", "required"),
        ("report none", "cannot read none"),
        ("report empty", "empty: there is no log of a run: neither log.jsonl nor losses.jsonl"),
        ("report empty.jsonl", "empty.jsonl has no rows"),
        ("report letter.jsonl", "letter.jsonl, line 1: this is no row of a training run"),
        (
            "train --config small.json --steps 1 --out run --tensorboard empty.jsonl",
            "cannot write empty.jsonl: ",
        ),
        ("bench --config small.json --peers none.json --html x.html", "cannot read none.json"),
        ("bench --config small.json --peers empty.jsonl --html x.html", "empty.jsonl is not of bench --json"),
        ("bench --peers none.json", "required"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

#[test]
fn a_measurement_has_a_page_with_its_peers() {
    let work = Workplace::new();
    let peer = r#"{"machine": {"cpu": "another one"}, "results": [{"mode": "torch-eager-sdpa", "preset": "tiny", "work": "train",
        "dtype": "f32", "device": "cpu", "threads": 2, "steps": 3, "median_step_s": 0.5, "tokens_per_s": 64, "peak_rss_mib": 640.75}]}"#;
    work.write("peer.json", peer);
    work.succeed(
        "bench --config small.json --batch-size 2 --steps 3 --warmup 1 --mode compiled --threads 2 --json ours.json \
         --html bench.html --peers peer.json",
    );
    let ours: Value =
        serde_json::from_str(&std::fs::read_to_string(work.path("ours.json")).unwrap()).unwrap();
    let row = &ours["results"][0];
    let [low, middle, high] =
        ["fastest_step_s", "median_step_s", "slowest_step_s"].map(|name| row[name].as_f64().unwrap());
    assert!(0.0 < low && low <= middle && middle <= high, "{row}");
    let page = std::fs::read_to_string(work.path("bench.html")).unwrap();
    for part in [
        "Kernfusion, compiled",
        "torch eager sdpa",
        "500 ms",
        "641 MiB",
        "Not the same machine",
        "Not the same number of tokens",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
}
