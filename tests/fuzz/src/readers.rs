//! Everything that reads what a user hands in.

use crate::mutate::Folder;
use crate::seeds;
use kernfusion::models::{ModelConfig, preset};
use kernfusion::tensor_file;
use kernfusion_cli::experiment::Reference;
use kernfusion_cli::report::{Description, Measurements, bench_page, run_page};
use kernfusion_import::Imported;
use kernfusion_ir::Graph;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use kernfusion_lm::hugging_face::Published;
use kernfusion_lm::jsonl::read_rows;
use kernfusion_lm::record::Record;
use kernfusion_lm::text::{Corpus, Tokenizer, TokenizerKind};
use kernfusion_lm::train::Row;
use kernfusion_lm::tune::{Demonstration, Preference, Prompt};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A reader, and good input for it.
pub struct Reader {
    /// Its name.
    pub name: &'static str,
    /// What it reads when it is well.
    pub seeds: fn() -> Vec<Folder>,
    /// Reads; an error is what a user would see.
    pub read: fn(&Folder, &Path) -> Result<(), String>,
    /// How often it runs beside the others: a measure of how quick it is.
    pub share: u64,
    /// Commands that read it, in the folder with the files; arguments are separated by blanks.
    pub commands: &'static [&'static str],
}

/// All readers.
pub const READERS: &[Reader] = &[
    Reader {
        name: "program",
        seeds: seeds::programs,
        read: program,
        share: 400,
        commands: &["opt program.kir", "run program.kir --outputs out.safetensors"],
    },
    Reader {
        name: "tensors",
        seeds: seeds::tensors,
        read: tensors,
        share: 300,
        commands: &["train --config small.json --init x.safetensors --steps 1 --out run"],
    },
    Reader {
        name: "checkpoint",
        seeds: seeds::checkpoints,
        read: checkpoint,
        share: 100,
        commands: &["generate --checkpoint . --tokens 2", "score --checkpoint . --text a"],
    },
    Reader {
        name: "hugging-face",
        seeds: seeds::published,
        read: published,
        share: 8,
        commands: &["import . --out imported", "generate --model . --prompt a --tokens 2"],
    },
    Reader {
        name: "archive",
        seeds: seeds::archives,
        read: archive,
        share: 40,
        commands: &["import model.pt2 --out imported"],
    },
    Reader {
        name: "onnx",
        seeds: seeds::onnx_files,
        read: onnx,
        share: 100,
        commands: &["import model.onnx --out imported"],
    },
    Reader {
        name: "exported-program",
        seeds: seeds::exported_programs,
        read: exported_program,
        share: 40,
        commands: &[],
    },
    Reader {
        name: "shape",
        seeds: seeds::shapes,
        read: shape,
        share: 400,
        commands: &["dump --config shape.json --batch-size 1 --work forward --stage trace"],
    },
    Reader {
        name: "run-record",
        seeds: seeds::run_records,
        read: run_record,
        share: 100,
        commands: &["report log.jsonl"],
    },
    Reader {
        name: "measurements",
        seeds: seeds::measurements,
        read: measurements,
        share: 100,
        commands: &["bench --config small.json --batch-size 1 --steps 1 --peers bench.json"],
    },
    Reader { name: "log", seeds: seeds::logs, read: log, share: 100, commands: &["report log.jsonl"] },
    Reader { name: "rows", seeds: seeds::rows, read: rows, share: 200, commands: &[] },
    Reader { name: "reference", seeds: seeds::references, read: reference, share: 200, commands: &[] },
    Reader {
        name: "tokenizer",
        seeds: seeds::tokenizers,
        read: tokenizer,
        share: 20,
        commands: &["train --config small.json --tokenizer . --steps 1 --out run"],
    },
    Reader {
        name: "stored-tokenizer",
        seeds: seeds::stored_tokenizers,
        read: stored_tokenizer,
        share: 20,
        commands: &[],
    },
    Reader {
        name: "text",
        seeds: seeds::texts,
        read: text,
        share: 10,
        commands: &["train --config small.json --data text --steps 1 --out run"],
    },
];

type Read = Result<(), String>;

/// An error as a user sees it.
fn shown(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn content<'a>(folder: &'a Folder, name: &str) -> Result<&'a str, String> {
    std::str::from_utf8(folder.get(name).ok_or("missing")?).map_err(shown)
}

/// Puts the files into a folder that has nothing else.
fn put(folder: &Folder, place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(entry.path());
    }
    for (name, content) in folder {
        std::fs::write(place.join(name), content).expect("the folder for cases can be written");
    }
}

/// Puts the files there, and gives the path of one.
fn file(folder: &Folder, place: &Path, name: &str) -> PathBuf {
    put(folder, place);
    place.join(name)
}

/// What is read is printed, and read again to the same text.
fn program(folder: &Folder, _: &Path) -> Read {
    let text = content(folder, "program.kir")?;
    let verified = Graph::parse_verified(text);
    let graph = Graph::parse(text).map_err(shown)?;
    let printed = graph.to_string();
    let again =
        Graph::parse(&printed).unwrap_or_else(|error| panic!("{error} in what was printed:\n{printed}"));
    assert_eq!(again.to_string(), printed, "the text form reads back what it writes");
    let judged = graph.verify();
    assert_eq!(verified.is_ok(), judged.is_ok(), "{verified:?} and {judged:?}");
    verified.map_err(shown).map(|_| ())
}

fn tensors(folder: &Folder, place: &Path) -> Read {
    tensor_file::read(&file(folder, place, "x.safetensors")).map_err(shown).map(|_| ())
}

fn checkpoint(folder: &Folder, place: &Path) -> Read {
    put(folder, place);
    debug_assert!(folder.keys().all(|name| name == CHECKPOINT_FILE));
    let checkpoint = Checkpoint::load(place).map_err(shown)?;
    let record = Record::read(&checkpoint.meta).map_err(shown)?;
    use_tokenizer(&record.tokenizer)
}

fn archive(folder: &Folder, place: &Path) -> Read {
    used(&Imported::open(file(folder, place, "model.pt2")).map_err(shown)?)
}

/// An ONNX file, and the file that has its weights.
fn onnx(folder: &Folder, place: &Path) -> Read {
    put(folder, place);
    used(&Imported::open(place.join("model.onnx")).map_err(shown)?)
}

/// Traces a model from elsewhere, and reads its values.
fn used(imported: &Imported) -> Read {
    imported.program().map_err(shown)?;
    imported.states().iter().try_for_each(|state| state.read().map(drop)).map_err(shown)
}

/// The files of an archive, packed with the checksums that they have.
fn exported_program(folder: &Folder, place: &Path) -> Read {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(vec![]));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, content) in folder {
        zip.start_file(format!("model/{}", name.replace(':', "/")), options).map_err(shown)?;
        zip.write_all(content).map_err(shown)?;
    }
    let packed = zip.finish().map_err(shown)?.into_inner();
    archive(&Folder::from([("model.pt2".to_string(), packed)]), place)
}

fn published(folder: &Folder, place: &Path) -> Read {
    put(folder, place);
    let model = Published::open(place).map_err(shown)?;
    model.tokenizer().map_or(Ok(()), use_tokenizer)?;
    model.import(&place.join("imported")).map_err(shown)?;
    std::fs::remove_dir_all(place.join("imported")).map_err(shown)
}

fn shape(folder: &Folder, _: &Path) -> Read {
    let json = content(folder, "shape.json")?;
    let tiny = preset("tiny").expect("a preset of this name").config;
    let config = tiny.with_json(json).map_err(shown)?;
    config.parameters();
    let text = serde_json::to_string(&config).expect("a configuration is plain data");
    let again: ModelConfig = serde_json::from_str(&text).expect("what was written can be read");
    assert_eq!(again, config);
    Ok(())
}

fn run_record(folder: &Folder, place: &Path) -> Read {
    let about = Description::read(&file(folder, place, Description::FILE)).map_err(shown)?;
    run_page("run", Some(&about), &[]);
    Ok(())
}

fn measurements(folder: &Folder, place: &Path) -> Read {
    let read = Measurements::read(&file(folder, place, "bench.json")).map_err(shown)?;
    bench_page(&[read]);
    Ok(())
}

fn log(folder: &Folder, place: &Path) -> Read {
    let rows = Row::read_all(&file(folder, place, "log.jsonl")).map_err(shown)?;
    run_page("run", None, &rows);
    Ok(())
}

fn rows(folder: &Folder, place: &Path) -> Read {
    let path = file(folder, place, "rows.jsonl");
    let all = [
        read_rows::<Demonstration>(&path).map(|_| ()),
        read_rows::<Preference>(&path).map(|_| ()),
        read_rows::<Prompt>(&path).map(|_| ()),
    ];
    let errors: Vec<_> = all.into_iter().filter_map(Result::err).map(shown).collect();
    if errors.len() < 3 { Ok(()) } else { Err(errors.concat()) }
}

fn reference(folder: &Folder, place: &Path) -> Read {
    let path = file(folder, place, "reference.jsonl");
    Reference::read(&path, &seeds::run_of_reference(), 2).map_err(shown).map(|_| ())
}

fn tokenizer(folder: &Folder, place: &Path) -> Read {
    put(folder, place);
    let path = ["vocab.txt"].map(|name| place.join(name)).into_iter().find(|path| path.exists());
    use_tokenizer(&Tokenizer::read(&path.unwrap_or(place.into())).map_err(shown)?)?;
    match place.join("tokenizer.json") {
        whole if whole.exists() => use_tokenizer(&Tokenizer::read_marked(&whole).map_err(shown)?),
        _ => Ok(()),
    }
}

fn stored_tokenizer(folder: &Folder, _: &Path) -> Read {
    use_tokenizer(&serde_json::from_str(content(folder, "tokenizer.json")?).map_err(shown)?)
}

/// Reads a text by it, and writes it.
fn use_tokenizer(tokenizer: &Tokenizer) -> Read {
    let tokens =
        tokenizer.encode("Hello World, the cat is a caf\u{e9} \u{1F600}!\n\nno no no").map_err(shown)?;
    tokenizer.decode(&tokens).map_err(shown)?;
    let last = i32::try_from(tokenizer.vocabulary_size()).map_err(shown)? - 1;
    let strange = [-1, 0, last, last.saturating_add(1), i32::MAX].map(|token| tokenizer.decode(&[token]));
    tokenizer.end();
    tokenizer.decode(&[0, last.min(5), last.min(2)]).map_err(shown)?;
    assert!(strange[0].is_err() && strange[4].is_err(), "tokens outside of the vocabulary are refused");
    Ok(())
}

fn text(folder: &Folder, place: &Path) -> Read {
    let corpus = Corpus::read(&file(folder, place, "text")).map_err(shown)?;
    let kinds = [TokenizerKind::Char, TokenizerKind::Word, TokenizerKind::Bpe, TokenizerKind::WordPiece];
    for kind in kinds {
        let tokenizer = Tokenizer::train(kind, corpus.text(), 300).map_err(shown)?;
        let tokens = tokenizer.encode(corpus.text()).map_err(shown)?;
        tokenizer.decode(&tokens).map_err(shown)?;
        let _ = corpus.split(tokens, 8);
    }
    Ok(())
}
