//! A text while it is written, and where it ends.

use crate::Result;
use crate::sample::Sampler;
use crate::text::{Tokenizer, Unfolding};

/// Where texts end before they have the tokens that were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// Each of these tokens ends a text, of which it is no part.
    pub tokens: Vec<i32>,
    /// A text ends in front of the first of these; none is empty.
    pub texts: Vec<String>,
}

impl Ending {
    /// Where in a text one of the texts begins.
    fn place(&self, text: &str) -> Option<usize> {
        self.texts.iter().filter_map(|stop| text.find(stop.as_str())).min()
    }

    /// How many bytes at the end of a text may become one of the texts.
    fn held(&self, text: &str) -> usize {
        let begins = |stop: &String| {
            let lengths = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
            lengths.filter(|&length| text.ends_with(&stop[..length])).max().unwrap_or(0)
        };
        self.texts.iter().map(begins).max().unwrap_or(0)
    }
}

/// A prompt with what has been written after it.
pub(super) struct Writing {
    /// All tokens, those of the prompt included, and those that stand behind the end.
    tokens: Vec<i32>,
    prompt: usize,
    unfolding: Unfolding,
    text: String,
    /// Bytes of the text that were shown: what may become the beginning of an end is held back.
    shown: usize,
    end: Option<End>,
}

/// What a text ended with.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Token,
    Text,
}

impl Writing {
    pub(super) fn new(prompt: &[i32]) -> Self {
        Writing {
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            unfolding: Unfolding::new(prompt),
            text: String::new(),
            shown: 0,
            end: None,
        }
    }

    /// What the model reads.
    pub(super) fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Whether there can be more, if `tokens` tokens are asked for.
    pub(super) fn may_go_on(&self, tokens: usize) -> bool {
        self.end.is_none() && self.tokens.len() < self.prompt + tokens
    }

    /// Picks the next token and returns what can be shown now.
    pub(super) fn push(
        &mut self,
        sampler: &Sampler,
        logits: &[f32],
        tokenizer: &Tokenizer,
        ending: &Ending,
    ) -> Result<String> {
        let token = sampler.pick(logits, self.tokens.len() as u64)?;
        self.tokens.push(token);
        if ending.tokens.contains(&token) {
            self.end = Some(End::Token);
            return Ok(String::new());
        }
        let piece = self.unfolding.push(tokenizer, token)?;
        Ok(self.gain(&piece, ending))
    }

    /// A token that is not read: this text has ended, but others of its batch have not.
    pub(super) fn pass(&mut self) {
        self.tokens.push(0);
    }

    /// What was held back.
    pub(super) fn finish(&mut self, tokenizer: &Tokenizer, ending: &Ending) -> Result<String> {
        let mut shown = String::new();
        if self.end != Some(End::Text) {
            let piece = self.unfolding.finish(tokenizer)?;
            shown = self.gain(&piece, ending);
        }
        shown.push_str(&self.text[self.shown..]);
        self.shown = self.text.len();
        Ok(shown)
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn gain(&mut self, piece: &str, ending: &Ending) -> String {
        self.text.push_str(piece);
        let visible = match ending.place(&self.text) {
            Some(end) => {
                self.end = Some(End::Text);
                self.text.truncate(end);
                end
            }
            None => self.text.len() - ending.held(&self.text),
        };
        let shown = self.text[self.shown..visible].to_string();
        self.shown = visible;
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::CharTokenizer;

    /// What is shown token by token, and the whole text, if these tokens are the likeliest.
    fn written(tokens: &str, ending: &Ending) -> (Vec<String>, String) {
        let tokenizer = Tokenizer::Characters(CharTokenizer::from_text("abcde."));
        let sampler = Sampler::new(0.0, None, None, 0).unwrap();
        let mut writing = Writing::new(&[0]);
        let mut shown = vec![];
        for id in tokenizer.encode(tokens).unwrap() {
            assert!(writing.may_go_on(100));
            let mut logits = [0.0; 6];
            logits[id as usize] = 1.0;
            shown.push(writing.push(&sampler, &logits, &tokenizer, ending).unwrap());
        }
        shown.push(writing.finish(&tokenizer, ending).unwrap());
        assert_eq!(shown.concat(), writing.text);
        assert_eq!(writing.tokens().len(), 1 + tokens.len());
        (shown, writing.into_text())
    }

    #[test]
    fn texts_end_in_front_of_what_ends_them() {
        let texts = |texts: &[&str]| Ending {
            tokens: vec![],
            texts: texts.iter().map(|&text| text.into()).collect(),
        };
        assert_eq!(written("abcde", &texts(&[])).0, ["a", "b", "c", "d", "e", ""]);
        // What may be the beginning of an end is shown when it is known to be none.
        assert_eq!(written("abcabd", &texts(&["cabe"])).0, ["a", "b", "", "", "", "cabd", ""]);
        assert_eq!(written("abcabe", &texts(&["cabe"])).0, ["a", "b", "", "", "", "", ""]);
        assert_eq!(written("aab", &texts(&["ab", "."])).1, "a");
        assert_eq!(written("abc", &texts(&["cd"])).1, "abc");
        let tokenizer = CharTokenizer::from_text("abcde.");
        let stop = Ending { tokens: tokenizer.encode("d").unwrap(), ..texts(&["bce"]) };
        assert_eq!(
            written("abcd", &stop),
            (["a", "", "", "", "bc"].map(String::from).to_vec(), "abc".into())
        );
    }
}
