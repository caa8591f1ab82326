//! Pieces of words as tokens, by the crate `tokenizers`: byte-pair encoding (Sennrich et al., 2016; over bytes: Radford et al.,
//! 2019) and WordPiece (Schuster, Nakajima, 2012; as in BERT: Devlin et al., 2018).

use super::{TextError, bytes};
use kernfusion::input_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokenizers::decoders::bpe::BPEDecoder;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::{BertNormalizer, Lowercase, NFD, Precompiled, Sequence, StripAccents};
use tokenizers::pre_tokenizers::{
    bert::BertPreTokenizer, byte_level::ByteLevel, whitespace::WhitespaceSplit,
};
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, DecoderWrapper, Tokenizer as Inner};

/// The end of a text in GPT-2's vocabulary.
const END_OF_TEXT: &str = "<|endoftext|>";

/// The marks of BERT.
const MARKS: [&str; 5] = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"];

/// What ends a word in a vocabulary whose pieces know it.
const END_OF_WORD: &str = "</w>";

/// What errors call a vocabulary that was learnt.
const LEARNT: &str = "the learnt vocabulary";

/// A tokenizer whose tokens are pieces of words. In JSON it is what the crate `tokenizers` writes as `tokenizer.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct PieceTokenizer {
    inner: Arc<Inner>,
    /// All ids are below it.
    size: usize,
}

impl PieceTokenizer {
    /// A tokenizer whose ids are tokens: not below 0, and with one behind the last.
    fn new(inner: Inner, name: &str) -> Result<Self, TextError> {
        let last = inner.get_vocab(true).into_values().max();
        match last.filter(|&last| last >= i32::MAX as u32) {
            Some(last) => Err(reason(name, format!("the id {last} is above the largest possible"))),
            None => Ok(Self { inner: Arc::new(inner), size: last.map_or(0, |last| last as usize + 1) }),
        }
    }

    /// GPT-2's: a vocabulary (`vocab.json`) and the merges in their order (`merges.txt`), over bytes.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if a file cannot be read or does not belong to the other one.
    pub fn gpt2(vocabulary: &Path, merges: &Path) -> Result<Self, TextError> {
        let path = |path: &Path| path.display().to_string();
        let text = |path: &Path| {
            input_file::read_text(path)
                .map_err(|cause| reason(&path.display().to_string(), cause.to_string()))
        };
        let entries: Value = serde_json::from_str(&text(vocabulary)?)
            .map_err(|cause| reason(&path(vocabulary), cause.to_string()))?;
        let pairs = text(merges)?;
        check_merges(
            &entries,
            pairs
                .lines()
                .filter(|line| !line.starts_with("#version"))
                .filter_map(|line| line.split_once(' ')),
            "",
            &path(merges),
        )?;
        let model = BPE::from_file(&path(vocabulary), &path(merges)).build();
        let mut inner = over_bytes(model.map_err(|cause| failed(&path(vocabulary), cause))?);
        if inner.token_to_id(END_OF_TEXT).is_some() {
            add_marks(&mut inner, &[END_OF_TEXT])?;
        }
        Self::new(inner, &path(vocabulary))
    }

    /// BERT's: WordPiece with a vocabulary of one entry a line (`vocab.txt`), lower case, no accents.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the file cannot be read or has no `[UNK]`, `[CLS]` or `[SEP]`.
    pub fn bert(vocabulary: &Path) -> Result<Self, TextError> {
        let name = vocabulary.display().to_string();
        check_file(vocabulary)?;
        let model = WordPiece::from_file(&name).unk_token(MARKS[0].into()).build();
        let mut inner = like_bert(model.map_err(|cause| failed(&name, cause))?)?;
        let known: Vec<_> = MARKS.into_iter().filter(|mark| inner.token_to_id(mark).is_some()).collect();
        add_marks(&mut inner, &known)?;
        mark_sentences(&mut inner, &name)?;
        Self::new(inner, &name)
    }

    /// Any tokenizer in the format of the crate `tokenizers`, which Hugging Face's models bring as `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the file cannot be read or understood.
    pub fn read(file: &Path) -> Result<Self, TextError> {
        let name = file.display().to_string();
        let text = input_file::read_text(file).map_err(|cause| reason(&name, cause.to_string()))?;
        let stored = serde_json::from_str(&text).map_err(|cause| reason(&name, cause.to_string()))?;
        Self::new(understood(&stored, text, &name)?, &name)
    }

    /// Byte-pair encoding over bytes, learnt from a text: `size` entries at most, the 256 bytes and the end of a text among
    /// them. It encodes and gives back any text.
    ///
    /// # Errors
    /// [`TextError::SmallVocabulary`] if there is no place for all bytes.
    pub fn train_bytes(text: &str, size: usize) -> Result<Self, TextError> {
        const LEAST: usize = 257;
        if size < LEAST {
            return Err(TextError::SmallVocabulary { asked: size, least: LEAST });
        }
        let trainer = BpeTrainer::builder()
            .vocab_size(size)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(special(&[END_OF_TEXT]));
        Self::new(trained(over_bytes(BPE::default()), trainer.build(), text)?, LEARNT)
    }

    /// Byte-pair encoding over the characters of words: canonical decomposition (NFD), lower case, no accents, words split at
    /// blanks; `[UNK]`, `[CLS]`, `[SEP]`, `[PAD]` and `[MASK]` have the ids from 0 on. What a text loses by this does not come
    /// back.
    ///
    /// # Errors
    /// [`TextError::SmallVocabulary`] if there is only place for the marks.
    pub fn train_words(text: &str, size: usize) -> Result<Self, TextError> {
        check_marked(size)?;
        let model = BPE::builder().unk_token(MARKS[0].into()).end_of_word_suffix(END_OF_WORD.into()).build();
        let mut inner = Inner::new(model.map_err(|cause| failed("byte-pair encoding", cause))?);
        let steps = vec![NFD.into(), Lowercase.into(), StripAccents.into()];
        inner.with_normalizer(Some(Sequence::new(steps))).map_err(|cause| failed("the normalizer", cause))?;
        inner.with_pre_tokenizer(Some(WhitespaceSplit));
        inner.with_decoder(Some(BPEDecoder::new(END_OF_WORD.into())));
        let trainer = |size, first: &[String]| {
            let trainer = BpeTrainer::builder().vocab_size(size).show_progress(false);
            trainer.end_of_word_suffix(END_OF_WORD.into()).special_tokens(special(first)).build()
        };
        Self::new(trained_in_order(inner, trainer, text, size)?, LEARNT)
    }

    /// WordPiece as in BERT, learnt from a text: lower case, no accents, words and punctuation apart, pieces inside of a word
    /// begin with `##`; the five marks have the ids from 0 on.
    ///
    /// # Errors
    /// [`TextError::SmallVocabulary`] if there is only place for the marks.
    pub fn train_word_pieces(text: &str, size: usize) -> Result<Self, TextError> {
        check_marked(size)?;
        let model = WordPiece::builder().unk_token(MARKS[0].into()).build();
        let inner = like_bert(model.map_err(|cause| failed("WordPiece", cause))?)?;
        let trainer = |size, first: &[String]| {
            let trainer = WordPieceTrainer::builder().vocab_size(size).show_progress(false);
            trainer.special_tokens(special(first)).build()
        };
        let mut inner = trained_in_order(inner, trainer, text, size)?;
        mark_sentences(&mut inner, "WordPiece")?;
        Self::new(inner, LEARNT)
    }

    /// Number of different tokens; ids are `0..vocabulary_size()`.
    pub fn vocabulary_size(&self) -> usize {
        self.size
    }

    /// The id of a token as it is stored.
    pub fn id(&self, token: &str) -> Option<i32> {
        self.inner.token_to_id(token).map(|id| id as i32)
    }

    /// A token as it is stored.
    pub fn token(&self, id: i32) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// The ids of a text, without marks around it.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, TextError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|cause| failed("the text", cause))?;
        Ok(ids(encoding.get_ids()))
    }

    /// The ids of a text, or of a pair, with the marks that the tokenizer puts around them (`[CLS] a [SEP] b [SEP]`), and for
    /// each one the number of its text, 0 or 1.
    ///
    /// # Errors
    /// As [`PieceTokenizer::encode`].
    pub fn encode_marked(&self, text: &str, second: Option<&str>) -> Result<[Vec<i32>; 2], TextError> {
        let encoding = match second {
            Some(second) => self.inner.encode_fast((text, second), true),
            None => self.inner.encode_fast(text, true),
        };
        let encoding = encoding.map_err(|cause| failed("the text", cause))?;
        Ok([ids(encoding.get_ids()), ids(encoding.get_type_ids())])
    }

    /// The ids of any bytes, if the tokenizer works over bytes. Those that are no UTF-8 have a token each.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if it does not work over bytes, or lacks the token of a byte.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<i32>, TextError> {
        self.expect_bytes()?;
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            tokens.extend(self.encode(chunk.valid())?);
            for &byte in chunk.invalid() {
                let character = bytes::characters()[usize::from(byte)];
                let missing = || reason("the tokenizer", format!("it has no token for the byte {byte}"));
                tokens.push(self.id(character.encode_utf8(&mut [0; 4])).ok_or_else(missing)?);
            }
        }
        Ok(tokens)
    }

    /// The text of some ids; of a tokenizer over bytes, � for what is no UTF-8, as at a cut inside of a character.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary.
    pub fn decode(&self, tokens: &[i32]) -> Result<String, TextError> {
        if self.is_over_bytes() {
            return Ok(String::from_utf8_lossy(&self.decode_bytes(tokens)?).into_owned());
        }
        self.check(tokens)?;
        // The crate's decoder of word ends does not expect it.
        if tokens.is_empty() {
            return Ok(String::new());
        }
        let ids: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
        self.inner.decode(&ids, false).map_err(|cause| failed("the tokens", cause))
    }

    /// The bytes of some ids, if the tokenizer works over bytes: the very ones that were encoded.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary; [`TextError::Tokenizer`] if it does not work over
    /// bytes.
    pub fn decode_bytes(&self, tokens: &[i32]) -> Result<Vec<u8>, TextError> {
        self.expect_bytes()?;
        self.check(tokens)?;
        let added = self.inner.get_added_tokens_decoder();
        let mut text = Vec::new();
        for &token in tokens {
            let piece = self.inner.id_to_token(token as u32).unwrap_or_default();
            match added.contains_key(&(token as u32)) {
                true => text.extend(piece.as_bytes()),
                false => text.extend(piece.chars().filter_map(bytes::byte)),
            }
        }
        Ok(text)
    }

    /// Whether the bytes of some ids end inside of a character; never, if the tokenizer does not work over bytes.
    ///
    /// # Errors
    /// [`TextError::UnknownToken`] for the first id outside the vocabulary.
    pub fn ends_inside_character(&self, tokens: &[i32]) -> Result<bool, TextError> {
        if !self.is_over_bytes() {
            return Ok(false);
        }
        let bytes = self.decode_bytes(tokens)?;
        let rest = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        Ok(std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none()))
    }

    /// These ids but for those of marks, which stand for nothing in a text.
    pub fn without_marks(&self, tokens: &[i32]) -> Vec<i32> {
        let added = self.inner.get_added_tokens_decoder();
        let is_mark = |token: i32| {
            u32::try_from(token).is_ok_and(|id| added.get(&id).is_some_and(|token| token.special))
        };
        tokens.iter().copied().filter(|&token| !is_mark(token)).collect()
    }

    fn is_over_bytes(&self) -> bool {
        matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
    }

    fn expect_bytes(&self) -> Result<(), TextError> {
        match self.is_over_bytes() {
            true => Ok(()),
            false => Err(reason("the tokenizer", "it works over characters, not over bytes".into())),
        }
    }

    fn check(&self, tokens: &[i32]) -> Result<(), TextError> {
        let known = |token: i32| usize::try_from(token).is_ok_and(|id| id < self.size);
        match tokens.iter().position(|&token| !known(token)) {
            Some(position) => {
                let (token, vocabulary_size) = (tokens[position], self.size);
                Err(TextError::UnknownToken { token, position, vocabulary_size })
            }
            None => Ok(()),
        }
    }
}

/// Two tokenizers are equal if they are stored alike.
impl PartialEq for PieceTokenizer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || Value::from(self.clone()) == Value::from(other.clone())
    }
}

impl From<PieceTokenizer> for Value {
    fn from(tokenizer: PieceTokenizer) -> Self {
        serde_json::to_value(&*tokenizer.inner).expect("a tokenizer is plain data")
    }
}

impl TryFrom<Value> for PieceTokenizer {
    type Error = TextError;

    fn try_from(stored: Value) -> Result<Self, TextError> {
        let name = "the stored tokenizer";
        Self::new(understood(&stored, stored.to_string(), name)?, name)
    }
}

/// GPT-2's rules: its pattern cuts a text into words with the blank before each, and their bytes become characters.
fn over_bytes(model: BPE) -> Inner {
    let mut inner = Inner::new(model);
    let bytes = ByteLevel::default().add_prefix_space(false);
    inner.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
    inner
}

fn like_bert(model: WordPiece) -> Result<Inner, TextError> {
    let mut inner = Inner::new(model);
    let normalizer = BertNormalizer::new(true, true, None, true);
    inner.with_normalizer(Some(normalizer)).map_err(|cause| failed("the normalizer", cause))?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer)).with_decoder(Some(WordPieceDecoder::default()));
    Ok(inner)
}

/// Puts `[CLS]` before a text and `[SEP]` after it where marks are asked for.
fn mark_sentences(inner: &mut Inner, name: &str) -> Result<(), TextError> {
    let mark = |mark: &str| {
        let id = inner.token_to_id(mark).ok_or_else(|| reason(name, format!("there is no {mark}")))?;
        Ok((mark.to_string(), id))
    };
    let processing = BertProcessing::new(mark("[SEP]")?, mark("[CLS]")?);
    inner.with_post_processor(Some(processing));
    Ok(())
}

fn trained(mut inner: Inner, trainer: impl Into<TrainerWrapper>, text: &str) -> Result<Inner, TextError> {
    let trained = inner.train(&mut trainer.into(), blocks(text).into_iter());
    trained.map_err(|cause| failed("learning a vocabulary", cause))?;
    Ok(inner)
}

/// As [`trained`], for vocabularies in which a character inside of a word, or at its end, is an entry of its own. The crate
/// numbers these in the order of a hash map, another one in each process, and which of two equally frequent pairs is merged
/// depends on the numbers. So they are found first, and then have numbers before anything is learnt.
fn trained_in_order<T: Into<TrainerWrapper>>(
    inner: Inner,
    trainer: impl Fn(usize, &[String]) -> T,
    text: &str,
    size: usize,
) -> Result<Inner, TextError> {
    let marks = MARKS.map(String::from);
    let letters = trained(inner.clone(), trainer(MARKS.len(), &marks), text)?.get_vocab(false);
    let mut letters: Vec<_> = letters.into_keys().filter(|letter| !marks.contains(letter)).collect();
    letters.sort_unstable_by_key(|letter| (letter.chars().count(), letter.clone()));
    let inner = trained(inner, trainer(size, &[&marks[..], &letters].concat()), text)?;
    // What was numbered ahead is no mark: in a text it is an ordinary character.
    let mut stored = serde_json::to_value(&inner).expect("a tokenizer is plain data");
    if let Some(added) = stored["added_tokens"].as_array_mut() {
        added.retain(|token| token["content"].as_str().is_some_and(|content| MARKS.contains(&content)));
    }
    Inner::from_bytes(stored.to_string()).map_err(|cause| failed("the learnt vocabulary", cause))
}

/// The text in parts that begin with lines: what is learnt at once takes many times its own memory.
fn blocks(text: &str) -> Vec<&str> {
    const LEAST: usize = 1 << 20;
    let (mut blocks, mut rest) = (Vec::new(), text);
    while let Some(cut) =
        rest.get(LEAST..).and_then(|_| rest.as_bytes()[LEAST..].iter().position(|&b| b == b'\n'))
    {
        let (block, after) = rest.split_at(LEAST + cut + 1);
        blocks.push(block);
        rest = after;
    }
    blocks.push(rest);
    blocks
}

fn special<T: AsRef<str>>(marks: &[T]) -> Vec<AddedToken> {
    marks.iter().map(|mark| AddedToken::from(mark.as_ref(), true)).collect()
}

fn add_marks(inner: &mut Inner, marks: &[&str]) -> Result<(), TextError> {
    inner.add_special_tokens(special(marks)).map_err(|cause| failed("the marks", cause))?;
    Ok(())
}

/// The tokenizer that a document describes, which is this text. The crate panics on what is no JSON, on a table of characters
/// that it cannot read, on merges that give no entry of the vocabulary, and on templates with tokens or texts that are not there.
fn understood(document: &Value, text: String, name: &str) -> Result<Inner, TextError> {
    check_normalizer(&document["normalizer"], name)?;
    check_template(&document["post_processor"], name)?;
    let model = &document["model"];
    let pair = |merge: &'_ Value| match merge {
        Value::String(pair) => pair.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
        Value::Array(pair) => Some((pair.first()?.as_str()?.into(), pair.get(1)?.as_str()?.into())),
        _ => None,
    };
    let pairs: Vec<_> = model["merges"].as_array().into_iter().flatten().filter_map(pair).collect();
    let pairs = pairs.iter().map(|(a, b)| (a.as_str(), b.as_str()));
    check_merges(&model["vocab"], pairs, model["continuing_subword_prefix"].as_str().unwrap_or(""), name)?;
    Inner::from_bytes(text).map_err(|cause| failed(name, cause))
}

fn check_normalizer(normalizer: &Value, name: &str) -> Result<(), TextError> {
    if normalizer["type"] == "Precompiled" {
        let table = Precompiled::deserialize(normalizer);
        table.map_err(|cause| reason(name, format!("its normalizer: {cause}")))?;
    }
    let mut parts = normalizer["normalizers"].as_array().into_iter().flatten();
    parts.try_for_each(|part| check_normalizer(part, name))
}

/// Whether a template has the special tokens that it puts around texts, and puts none around a second text where there is one.
fn check_template(processor: &Value, name: &str) -> Result<(), TextError> {
    for (template, texts) in [("single", "A"), ("pair", "AB")] {
        for piece in processor[template].as_array().into_iter().flatten() {
            let token =
                piece["SpecialToken"]["id"].as_str().filter(|id| processor["special_tokens"][id].is_null());
            if let Some(token) = token {
                return Err(reason(
                    name,
                    format!("its template has the token {token:?}, but not what that is"),
                ));
            }
            if piece["Sequence"]["id"].as_str().is_some_and(|id| !texts.contains(id)) {
                return Err(reason(name, "its template for one text has two".into()));
            }
        }
    }
    let mut parts = processor["processors"].as_array().into_iter().flatten();
    parts.try_for_each(|part| check_template(part, name))
}

/// Whether each merge of two entries gives a text that is no longer than the longest entry, for which the crate has room.
fn check_merges<'a>(
    vocabulary: &Value,
    mut merges: impl Iterator<Item = (&'a str, &'a str)>,
    prefix: &str,
    name: &str,
) -> Result<(), TextError> {
    let Some(entries) = vocabulary.as_object() else { return Ok(()) };
    let longest = entries.keys().map(String::len).max().unwrap_or(0);
    let fits = |(a, b): &(&str, &str)| {
        b.is_char_boundary(prefix.len()) && a.len() + b.len() - prefix.len() <= longest
    };
    match merges.find(|merge| !fits(merge)) {
        Some((a, b)) => {
            Err(reason(name, format!("the merge of {a:?} and {b:?} gives no entry of the vocabulary")))
        }
        None => Ok(()),
    }
}

/// Whether it is a file that can be read to its end.
fn check_file(path: &Path) -> Result<(), TextError> {
    let refused = |cause: std::io::Error| reason(&path.display().to_string(), cause.to_string());
    input_file::open(path).map(drop).map_err(refused)
}

fn check_marked(size: usize) -> Result<(), TextError> {
    match size > MARKS.len() {
        true => Ok(()),
        false => Err(TextError::SmallVocabulary { asked: size, least: MARKS.len() + 1 }),
    }
}

fn ids(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|&id| id as i32).collect()
}

fn failed(name: &str, cause: tokenizers::Error) -> TextError {
    reason(name, cause.to_string())
}

fn reason(name: &str, reason: String) -> TextError {
    // One line, whatever the cause says.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    TextError::Tokenizer { name: name.into(), reason }
}
