//! Tokenizers against Python's, what is stored of them, and texts that grow.

use super::*;
use proptest::prelude::*;
use serde_json::Value;
use std::sync::OnceLock;

/// What Python's `tokenizers` makes of texts; made by `benches/peers/tokenizers_fixture.py`.
fn fixture() -> &'static Value {
    static FIXTURE: OnceLock<Value> = OnceLock::new();
    let json = include_str!("../../../../tests/fixtures/tokenizers.json");
    FIXTURE.get_or_init(|| serde_json::from_str(json).unwrap())
}

fn trained(kind: TokenizerKind, size: usize) -> Tokenizer {
    Tokenizer::train(kind, fixture()["learnt_from"].as_str().unwrap(), size).unwrap()
}

fn ids(value: &Value) -> Vec<i32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[track_caller]
fn judge(name: &str, tokenizer: &Tokenizer) {
    let (texts, case) = (fixture()["texts"].as_array().unwrap(), &fixture()[name]);
    assert_eq!(tokenizer.vocabulary_size() as u64, case["vocabulary"].as_u64().unwrap(), "{name}");
    for (number, text) in texts.iter().enumerate() {
        let expected = ids(&case["ids"][number]);
        assert_eq!(tokenizer.encode(text.as_str().unwrap()).unwrap(), expected, "{name}: {text}");
        assert_eq!(tokenizer.decode(&expected).unwrap(), case["decoded"][number].as_str().unwrap(), "{name}");
    }
}

#[test]
fn a_published_tokenizer_puts_its_marks_around_a_text_and_takes_them_away() {
    let Tokenizer::Pieces(pieces) = trained(TokenizerKind::WordPiece, 120) else { panic!("pieces") };
    let (plain, marked) = (Tokenizer::Pieces(pieces.clone()), Tokenizer::Marked(pieces));
    let text = "the compiler";
    let tokens = marked.encode(text).unwrap();
    let [first, last] = ["[CLS]", "[SEP]"].map(|mark| marked.id(mark).unwrap());
    assert_eq!(tokens, [&[first], &plain.encode(text).unwrap()[..], &[last]].concat());
    assert_eq!(marked.decode(&tokens).unwrap(), text);
    assert!(plain.decode(&tokens).unwrap().starts_with("[CLS]"));
    assert_eq!(marked.token(first).as_deref(), Some("[CLS]"));
    let stored: Tokenizer = serde_json::from_str(&serde_json::to_string(&marked).unwrap()).unwrap();
    assert!(stored == marked && stored != plain);
}

#[test]
fn learnt_vocabularies_are_those_of_python() {
    judge("bytes", &trained(TokenizerKind::Bpe, 300));
    judge("words", &trained(TokenizerKind::BpeWords, 120));
    judge("word_pieces", &trained(TokenizerKind::WordPiece, 120));
}

#[test]
fn pairs_have_marks_and_numbers() {
    let Tokenizer::Pieces(pieces) = trained(TokenizerKind::WordPiece, 120) else { panic!("pieces") };
    let pair = &fixture()["pair"];
    let [first, second] = [0, 1].map(|number| pair["texts"][number].as_str().unwrap());
    let expected = [&pair["ids"], &pair["types"]].map(ids);
    assert_eq!(pieces.encode_marked(first, Some(second)).unwrap(), expected);
    let [alone, _] = pieces.encode_marked(first, None).unwrap();
    assert_eq!(alone[..alone.len()], expected[0][..alone.len()]);
    assert!(pieces.encode_bytes(b"a").unwrap_err().to_string().contains("over characters, not over bytes"));
}

/// GPT-2's files, for those who have them: `$KERNFUSION_GPT2`, or beside the repository.
fn gpt2() -> Option<Tokenizer> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/gpt2");
    let directory = std::env::var("KERNFUSION_GPT2").unwrap_or_else(|_| beside.into());
    Path::new(&directory).join("vocab.json").exists().then(|| Tokenizer::read(Path::new(&directory)).unwrap())
}

#[test]
fn gpt2_is_gpt2() {
    let Some(tokenizer) = gpt2() else {
        eprintln!("skipped: there is no vocabulary of GPT-2; KERNFUSION_GPT2 names its directory");
        return;
    };
    judge("gpt2", &tokenizer);
    assert_eq!(tokenizer.encode("Hello world<|endoftext|>").unwrap(), [15496, 995, 50256]);
    assert_eq!((tokenizer.vocabulary_size(), tokenizer.end()), (50257, Some(50256)));
}

#[test]
fn what_is_stored_is_read_back() {
    let kinds = [
        TokenizerKind::Char,
        TokenizerKind::Word,
        TokenizerKind::Bpe,
        TokenizerKind::BpeWords,
        TokenizerKind::WordPiece,
    ];
    for kind in kinds {
        let tokenizer = trained(kind, 270);
        let stored = serde_json::to_value(&tokenizer).unwrap();
        assert_eq!(stored.as_object().unwrap().len(), 1, "{kind:?}");
        let read: Tokenizer = serde_json::from_value(stored).unwrap();
        assert_eq!(read, tokenizer, "{kind:?}");
        let text = "The compiler writes a graph.";
        assert_eq!(read.encode(text).unwrap(), tokenizer.encode(text).unwrap(), "{kind:?}");
    }
    // As checkpoints have had it before there were other kinds.
    let read: Tokenizer = serde_json::from_str(r#"{"characters":"abn"}"#).unwrap();
    assert_eq!(read, Tokenizer::Characters(CharTokenizer::from_text("banana")));
    let error = serde_json::from_str::<Tokenizer>(r#"{"pieces":{"version":"9"}}"#).unwrap_err().to_string();
    assert!(error.contains("tokenizer: the stored tokenizer: "), "{error}");
}

#[test]
fn tokenizers_that_are_none_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let error = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("the directory has no tokenizer.json, and not both vocab.json and merges.txt"),
        "{error}"
    );
    let file = directory.path().join("tokenizer.json");
    std::fs::write(&file, "{\n\"model\": 3\n}").unwrap();
    let error = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: ") && !error.contains('\n'), "{error}");
    let file = directory.path().join("vocab.txt");
    std::fs::write(&file, "[UNK]\nword\n").unwrap();
    let error = Tokenizer::read(&file).unwrap_err().to_string();
    assert!(error.ends_with("vocab.txt: there is no [SEP]"), "{error}");
    std::fs::write(&file, "[UNK]\n[CLS]\n[SEP]\nword\n##s\n").unwrap();
    assert_eq!(Tokenizer::read(&file).unwrap().encode("Words word wörd x").unwrap(), [3, 4, 3, 3, 0]);
    for kind in [TokenizerKind::Word, TokenizerKind::Bpe, TokenizerKind::BpeWords, TokenizerKind::WordPiece] {
        let error = Tokenizer::train(kind, "text", 3).unwrap_err().to_string();
        assert!(error.starts_with("a vocabulary of 3 is too small"), "{error}");
    }
}

/// The crate writes what a merge gives into a buffer for the longest entry, and cuts the prefix off without a look.
#[test]
fn merges_that_give_no_entry_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokenizer.json");
    let document = |merges: &str, prefix: &str| {
        format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": {prefix},
            "end_of_word_suffix": null, "fuse_unk": false, "vocab": {{"a": 0, "b": 1, "ab": 2}}, "merges": {merges}}}}}"#
        )
    };
    std::fs::write(&file, document(r#"[["a", "b"]]"#, "null")).unwrap();
    assert_eq!(Tokenizer::read(&file).unwrap().encode("abba").unwrap(), [2, 1, 0]);
    for (merges, prefix) in
        [(r#"[["ab", "b"]]"#, "null"), (r#"["ab ab"]"#, "null"), (r#"[["a", "b"]]"#, "\"##\"")]
    {
        std::fs::write(&file, document(merges, prefix)).unwrap();
        let error = Tokenizer::read(&file).unwrap_err().to_string();
        assert!(error.contains("gives no entry of the vocabulary"), "{error}");
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::write(directory.path().join("vocab.json"), r#"{"a": 0, "b": 1, "ab": 2}"#).unwrap();
    std::fs::write(directory.path().join("merges.txt"), "#version: 0.2\na b\nab ab\n").unwrap();
    let error = Tokenizer::read(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with(r#"the merge of "ab" and "ab" gives no entry of the vocabulary"#), "{error}");
}

/// The crate looks special tokens and texts of a template up without a look whether they are there.
#[test]
fn templates_of_what_is_not_there_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokenizer.json");
    let write = |processor: String| {
        let document = format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": {processor},
            "decoder": null, "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "vocab": {{"a": 0, "b": 1}}, "merges": []}}}}"#
        );
        std::fs::write(&file, document).unwrap();
    };
    let template = |text: &str, tokens: &str| {
        let pieces = format!(
            r#"[{{"SpecialToken": {{"id": "b", "type_id": 0}}}}, {{"Sequence": {{"id": "{text}", "type_id": 0}}}}]"#
        );
        format!(
            r#"{{"type": "TemplateProcessing", "single": {pieces}, "pair": {pieces}, "special_tokens": {{{tokens}}}}}"#
        )
    };
    let tokens = r#""b": {"id": "b", "ids": [1], "tokens": ["b"]}"#;
    write(template("A", tokens));
    let Tokenizer::Pieces(pieces) = Tokenizer::read(&file).unwrap() else { panic!("it has pieces") };
    assert_eq!(pieces.encode_marked("a", None).unwrap()[0], [1, 0]);
    let sequence = format!(r#"{{"type": "Sequence", "processors": [{}]}}"#, template("A", ""));
    for (processor, expected) in [
        (template("A", ""), "its template has the token \"b\", but not what that is"),
        (sequence, "its template has the token \"b\", but not what that is"),
        (template("B", tokens), "its template for one text has two"),
    ] {
        write(processor);
        let error = Tokenizer::read(&file).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn vocabularies_are_aligned() {
    assert_eq!(
        [(50257, 64), (64, 64), (65, 1), (5, 0)].map(|(size, to)| aligned_vocabulary(size, to)),
        [50304, 64, 65, 5]
    );
}

/// The text in the pieces in which it would be shown.
fn unfolded(tokenizer: &Tokenizer, prompt: &[i32], tokens: &[i32]) -> Vec<String> {
    let mut unfolding = Unfolding::new(prompt);
    let mut pieces: Vec<_> = tokens.iter().map(|&token| unfolding.push(tokenizer, token).unwrap()).collect();
    pieces.push(unfolding.finish(tokenizer).unwrap());
    pieces
}

#[test]
fn characters_and_marks_are_shown_when_they_are_complete() {
    let bytes = trained(TokenizerKind::Bpe, 257);
    let pieces = unfolded(&bytes, &bytes.encode("a").unwrap(), &bytes.encode("é!").unwrap());
    assert_eq!(pieces, ["", "é", "!", ""]);
    let cut = &bytes.encode("é").unwrap()[..1];
    assert_eq!(unfolded(&bytes, &[], cut), ["", "\u{fffd}"]);
    let words = trained(TokenizerKind::Word, 100);
    let pieces =
        unfolded(&words, &words.encode("A compiler").unwrap(), &words.encode("Reads, twice").unwrap());
    assert_eq!(pieces, ["", " Reads", ",", " twice", ""]);
}

#[test]
fn broken_tokenizers_are_refused() {
    let cases = [
        ("tokenizer_cut.json", "EOF while parsing"),
        ("tokenizer_table.json", "its normalizer: "),
        ("tokenizer_large_id.json", "the id 4294967295 is above the largest possible"),
    ];
    for (name, expected) in cases {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/bad_input")).join(name);
        let message = Tokenizer::read(&path).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(expected), "{message}");
    }
}

proptest! {
    #[test]
    fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let Tokenizer::Pieces(pieces) = trained(TokenizerKind::Bpe, 280) else { panic!("pieces") };
        let tokens = pieces.encode_bytes(&bytes).unwrap();
        prop_assert_eq!(pieces.decode_bytes(&tokens).unwrap(), bytes);
    }

    #[test]
    fn any_text_comes_back_also_token_by_token(text in any::<String>()) {
        let tokenizer = trained(TokenizerKind::Bpe, 280);
        let tokens = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(&tokenizer.decode(&tokens).unwrap(), &text);
        prop_assert_eq!(unfolded(&tokenizer, &[], &tokens).concat(), text);
    }
}
