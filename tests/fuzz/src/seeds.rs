//! Good input, which cases are made of: fixtures of this project, and files that its writers write.

use crate::mutate::Folder;
use kernfusion::models::{
    BertConfig, EncoderDecoderConfig, GptConfig, ModelConfig, RecurrentLmConfig, presets,
};
use kernfusion::tensor_file;
use kernfusion_cli::report::Description;
use kernfusion_ir::{DType, Tensor, TensorType, samples};
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint, Tensor32};
use kernfusion_lm::record::{Record, Settings, TextRecord};
use kernfusion_lm::text::{Corpus, PieceTokenizer, Tokenizer, TokenizerKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A text that tokenizers learn from.
const TEXT: &str = "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.\n\
    A caf\u{e9} at night, and NO, no, no!\n\"Why?\" she said. It's 3 o'clock.\n";

fn one(name: &str, content: impl Into<Vec<u8>>) -> Folder {
    Folder::from([(name.to_string(), content.into())])
}

/// A folder of this repository.
fn repository(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file of the repository")
}

/// Programs of the passes' and the verifier's tests, of each op, and random ones.
pub(crate) fn programs() -> Vec<Folder> {
    let folders = ["passes/tests/files", "ir/tests/verifier"].map(repository);
    let files = folders.iter().flat_map(|folder| files(folder)).map(|file| read(&file));
    let ops = samples::all(1).into_iter().map(|sample| sample.graph.to_string().into_bytes());
    let random = (0..20).map(|seed| samples::random_graph(seed, 12).0.to_string().into_bytes());
    files.chain(ops).chain(random).map(|text| one("program.kir", text)).collect()
}

/// Tensors of each dtype and several ranks.
pub(crate) fn tensors() -> Vec<Folder> {
    let of = |dtypes: &[DType]| {
        let mut tensors = BTreeMap::new();
        for &dtype in dtypes {
            for (name, shape) in [("matrix", vec![2, 3]), ("scalar", vec![]), ("empty", vec![0, 3])] {
                let ty = TensorType::new(dtype, shape);
                tensors.insert(format!("{dtype}.{name}"), Tensor::from_f64(&ty, &vec![1.0; ty.elements()]));
            }
        }
        written("x.safetensors", |place| {
            tensor_file::write(&place.join("x.safetensors"), &tensors).expect("written")
        })
    };
    let mut folders = vec![of(&DType::ALL), of(&[DType::F32]), of(&[])];
    folders.push(one("x.safetensors", read(&repository("tests/fixtures/methods.safetensors"))));
    folders
}

/// What a writer writes under this name.
fn written(name: &str, write: impl FnOnce(&Path)) -> Folder {
    let place = tempfile::tempdir().expect("a folder for a while");
    write(place.path());
    one(name, read(&place.path().join(name)))
}

fn configs() -> Vec<ModelConfig> {
    let gpt = GptConfig { layers: 1, width: 8, heads: 2, context: 8, vocabulary: 40, ..GptConfig::default() };
    vec![
        gpt.into(),
        BertConfig { layers: 1, ..BertConfig::default() }.into(),
        EncoderDecoderConfig::default().into(),
        RecurrentLmConfig::default().into(),
    ]
}

fn records() -> Vec<Record> {
    let corpus = Corpus::from_text("a text", TEXT).expect("a text");
    let kinds = [TokenizerKind::Char, TokenizerKind::Word, TokenizerKind::Bpe, TokenizerKind::WordPiece];
    let records = configs().into_iter().zip(kinds).map(|(config, kind)| Record {
        config,
        settings: Settings::default(),
        tokenizer: Tokenizer::train(kind, TEXT, 280).expect("a tokenizer"),
        text: TextRecord::new(&corpus, None),
        products: Some("f32".into()),
    });
    records.collect()
}

pub(crate) fn checkpoints() -> Vec<Folder> {
    let folder = |record: Record| {
        let tensor = |name: &str, shape: Vec<usize>| {
            let data = vec![0.5; shape.iter().product()];
            (name.to_string(), Tensor32 { shape, data })
        };
        let tensors = [
            tensor("ln_f.bias", vec![8]),
            tensor("wte.weight", vec![40, 8]),
            tensor("optimizer.m.x", vec![]),
        ];
        let checkpoint = Checkpoint { tensors: tensors.into(), meta: record.meta(3) };
        written(CHECKPOINT_FILE, |place| checkpoint.save(place).expect("written"))
    };
    records().into_iter().map(folder).collect()
}

/// Small models that PyTorch exported.
pub(crate) fn archives() -> Vec<Folder> {
    ["linear", "gpt2"].map(|name| one("model.pt2", fixture(&format!("{name}.pt2")))).into()
}

/// A fixture of the crate that imports models, which may be packed by zlib.
fn fixture(name: &str) -> Vec<u8> {
    let file = repository("import/tests/fixtures").join(name);
    match std::fs::read(&file) {
        Ok(content) => content,
        Err(_) => {
            let packed = read(&file.with_added_extension("z"));
            miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("a packed file")
        }
    }
}

/// A small ONNX file and the archive that has its weights.
pub(crate) fn onnx_files() -> Vec<Folder> {
    let names = [("model.onnx", "linear.onnx"), ("linear.pt2", "linear.pt2")];
    vec![names.map(|(name, file)| (name.to_string(), fixture(file))).into()]
}

/// The files of such archives one by one, `:` in place of `/`.
pub(crate) fn exported_programs() -> Vec<Folder> {
    let unpacked = |folder: Folder| {
        let mut zip =
            zip::ZipArchive::new(std::io::Cursor::new(folder["model.pt2"].clone())).expect("an archive");
        let mut files = Folder::new();
        for at in 0..zip.len() {
            let mut entry = zip.by_index(at).expect("an entry");
            let name = entry.name().expect("a name").into_owned();
            let (_, name) = name.split_once('/').expect("in a folder");
            let (name, mut content) = (name.replace('/', ":"), vec![]);
            entry.read_to_end(&mut content).expect("stored");
            if !name.contains("sample_inputs") {
                files.insert(name, content);
            }
        }
        files
    };
    archives().into_iter().map(unpacked).collect()
}

pub(crate) fn published() -> Vec<Folder> {
    let folder = |path: PathBuf| -> Folder {
        let files = files(&path).into_iter().filter(|file| !file.ends_with("expected.safetensors"));
        files
            .map(|file| (file.file_name().unwrap_or_default().to_string_lossy().into_owned(), read(&file)))
            .collect()
    };
    files(&repository("tests/fixtures/hugging_face")).into_iter().map(folder).collect()
}

/// Shapes as users write them, in part, and whole.
pub(crate) fn shapes() -> Vec<Folder> {
    let known = presets().iter().map(|preset| json!(preset.config)).collect::<Vec<_>>();
    let whole = configs().into_iter().map(|config| json!(config)).chain(known);
    let part = [
        json!({"layers": 2, "width": 64, "heads": 4}),
        json!({"model": "gpt", "positions": "rope", "kv_heads": 2}),
        json!({"latent": {"kv_rank": 8, "query_rank": 8, "head_width": 8, "rope_width": 4, "value_width": 8}, "positions": "rope"}),
        json!({"experts": {"count": 4, "active": 2, "noise": 0.1, "balance": 0.01}, "feed_forward": "swiglu", "bias": false}),
    ];
    whole.chain(part).map(|shape| one("shape.json", shape.to_string())).collect()
}

pub(crate) fn run_records() -> Vec<Folder> {
    let describe = |record: Record| Description {
        config: record.config,
        settings: record.settings,
        text: record.text,
        machine: json!({"cpu": "a processor", "memory": "16384 kB", "os": "linux", "arch": "x86_64"}),
        place: "2 threads".into(),
        products: "f32".into(),
        compile_s: 0.5,
        step: "1 slice".into(),
    };
    records().into_iter().map(|record| one(Description::FILE, json!(describe(record)).to_string())).collect()
}

pub(crate) fn measurements() -> Vec<Folder> {
    let row = |mode: &str, seconds: f64| {
        json!({"mode": mode, "preset": "tiny", "work": "train", "dtype": "f32", "device": "cpu", "threads": 2, "steps": 10,
            "median_step_s": seconds, "fastest_step_s": seconds / 2.0, "slowest_step_s": seconds * 2.0, "tokens_per_s": 100.0,
            "bytes_moved_mib": 12.5, "peak_rss_mib": 300.0})
    };
    let machine = json!({"cpu": "a processor", "cores": 2});
    let whole = json!({"machine": machine, "results": [row("compiled", 0.5), row("eager", 1.0), row("PyTorch", 0.75)]});
    let least = json!({"results": [{"mode": "a", "preset": "b", "work": "c", "dtype": "d", "median_step_s": 1, "tokens_per_s": 2}]});
    [whole, least].into_iter().map(|file| one("bench.json", file.to_string())).collect()
}

fn lines(name: &str, rows: &[Value]) -> Folder {
    one(name, rows.iter().map(|row| format!("{row}\n")).collect::<String>())
}

pub(crate) fn logs() -> Vec<Folder> {
    let step = |step: u64| {
        json!({"step": step, "loss": 4.0 / step as f64, "gradient_norm": 1.5, "learning_rate": 1e-3, "seconds": 0.25,
            "tokens_per_s": 64.0, "resident_mib": 100.0, "peak_mib": 120.5, "busy_cores": 1.9})
    };
    let mut long: Vec<_> = (1..9).map(step).collect();
    long.push(json!({"step": 8, "val_loss": 1.5}));
    long.push(json!({"step": 8, "prompt": "a", "sample": "b\nc <d>"}));
    vec![
        lines("log.jsonl", &long),
        lines("log.jsonl", &[json!({"step": 3, "loss": null}), json!({"step": 4, "val_loss": null})]),
    ]
}

pub(crate) fn rows() -> Vec<Folder> {
    let rows = [
        json!({"prompt": "a question", "response": "an answer"}),
        json!({"prompt": "a question", "chosen": "an answer", "rejected": "another"}),
        json!({"prompt": "a question"}),
    ];
    rows.map(|row| lines("rows.jsonl", &[row.clone(), row])).into()
}

/// The run that references are of.
pub(crate) fn run_of_reference() -> Value {
    json!({"preset": "thesis", "seed": 1, "batch": 64, "optimizer": {"rule": "adamw", "lr": 0.0003}})
}

pub(crate) fn references() -> Vec<Folder> {
    let head = json!({"run": run_of_reference(), "library": "a library", "place": "2 threads"});
    let step = |step: u64| json!({"step": step, "loss": 4.2, "seconds": 0.1});
    vec![lines("reference.jsonl", &[head, step(1), step(2), step(3), json!({"peak_mib": 3246})])]
}

/// A `tokenizer.json` of each kind, GPT-2's pair of files, and BERT's list.
pub(crate) fn tokenizers() -> Vec<Folder> {
    let known = published().into_iter().filter_map(|folder| folder.get("tokenizer.json").cloned());
    let mut folders: Vec<_> = known.map(|json| one("tokenizer.json", json)).collect();
    folders.extend(
        stored()
            .into_iter()
            .filter_map(|tokenizer| Some(one("tokenizer.json", json!(tokenizer).get("pieces")?.to_string()))),
    );
    let gpt2 = PieceTokenizer::train_bytes(TEXT, 290).map(|tokenizer| json!(tokenizer)).expect("a tokenizer");
    let merges: Vec<_> = gpt2["model"]["merges"].as_array().into_iter().flatten().map(merge).collect();
    let mut pair = one("vocab.json", gpt2["model"]["vocab"].to_string());
    pair.insert("merges.txt".into(), format!("#version: 0.2\n{}\n", merges.join("\n")).into());
    folders.push(pair);
    folders.push(one("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\na\n##a\n!\n"));
    folders
}

fn merge(merge: &Value) -> String {
    let parts = merge.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    merge.as_str().map_or(parts.join(" "), String::from)
}

fn stored() -> Vec<Tokenizer> {
    let kinds = [
        TokenizerKind::Char,
        TokenizerKind::Word,
        TokenizerKind::Bpe,
        TokenizerKind::BpeWords,
        TokenizerKind::WordPiece,
    ];
    kinds.map(|kind| Tokenizer::train(kind, TEXT, 290).expect("a tokenizer")).into()
}

/// Tokenizers as checkpoints keep them.
pub(crate) fn stored_tokenizers() -> Vec<Folder> {
    stored().iter().map(|tokenizer| one("tokenizer.json", json!(tokenizer).to_string())).collect()
}

pub(crate) fn texts() -> Vec<Folder> {
    ["", "a", TEXT, "a  b\t\r\nc", "\u{1F600} \u{301} caf\u{e9}", &"no ".repeat(40), &"x".repeat(300)]
        .map(|text| one("text", text))
        .into()
}
