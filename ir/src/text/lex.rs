//! Tokens of the text form. The lexer reads each byte once and never goes back; a [`Fault`] is a byte offset with a
//! message, and becomes a line and a column only when it is reported.

use super::ParseError;

/// What the grammar is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'a> {
    /// A run of letters, digits and `_ . + -`: an op, an attribute's name, a dtype, a number.
    Word(&'a str),
    /// The word behind a `%`.
    Value(&'a str),
    /// A string, its escapes resolved.
    Text(String),
    /// One of `{ } [ ] = , :`.
    Mark(char),
    /// The end of the file.
    End,
}

impl Token<'_> {
    /// How an error message calls it.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Word(word) => format!("`{word}`"),
            Token::Value(name) => format!("`%{name}`"),
            Token::Text(text) => format!("the string {text:?}"),
            Token::Mark(mark) => format!("`{mark}`"),
            Token::End => "the end of the file".into(),
        }
    }
}

/// What is wrong, and at which byte.
#[derive(Debug)]
pub(super) struct Fault {
    at: usize,
    message: String,
}

impl Fault {
    pub(super) fn new(at: usize, message: impl Into<String>) -> Self {
        Fault { at, message: message.into() }
    }

    /// The error with the line and the column, in characters, of the offset.
    pub(super) fn locate(self, text: &str) -> ParseError {
        let before = &text[..self.at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        ParseError { line, column, message: self.message }
    }
}

/// Reads tokens one by one, with one token of lookahead.
pub(super) struct Lexer<'a> {
    text: &'a str,
    end: usize,
    /// The next token and where it starts.
    next: (Token<'a>, usize),
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, Fault> {
        let mut lexer = Lexer { text, end: 0, next: (Token::End, 0) };
        lexer.advance()?;
        Ok(lexer)
    }

    /// The token that [`Lexer::take`] gives next.
    pub(super) fn peek(&self) -> &Token<'a> {
        &self.next.0
    }

    /// The offset of that token.
    pub(super) fn at(&self) -> usize {
        self.next.1
    }

    /// Takes the next token.
    pub(super) fn take(&mut self) -> Result<Token<'a>, Fault> {
        self.advance()
    }

    fn advance(&mut self) -> Result<Token<'a>, Fault> {
        self.skip_blanks();
        let start = self.end;
        let token = match self.rest().chars().next() {
            None => Token::End,
            Some('"') => self.string()?,
            Some('%') => {
                self.end += 1;
                match self.word() {
                    "" => return Err(Fault::new(start, "a value needs a name behind its `%`")),
                    name => Token::Value(name),
                }
            }
            Some(mark) if "{}[]=,:".contains(mark) => {
                self.end += mark.len_utf8();
                Token::Mark(mark)
            }
            Some(first) => match self.word() {
                "" => return Err(Fault::new(start, format!("unexpected character {first:?}"))),
                word => Token::Word(word),
            },
        };
        Ok(std::mem::replace(&mut self.next, (token, start)).0)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.end..]
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.end += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.end += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let inside = |c: char| c.is_alphanumeric() || "_.+-".contains(c);
        let length = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        self.end += length;
        &rest[..length]
    }

    /// A string in Rust's notation, which is what `{:?}` writes.
    fn string(&mut self) -> Result<Token<'a>, Fault> {
        let start = self.end;
        let mut content = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.end = start + offset + 1;
                    return Ok(Token::Text(content));
                }
                '\\' => {
                    let resolved = escape(&mut chars);
                    content.push(resolved.ok_or_else(|| Fault::new(start + offset, "unknown escape"))?);
                }
                c => content.push(c),
            }
        }
        Err(Fault::new(start, "the string has no closing `\"`"))
    }
}

/// The character that an escape stands for; `chars` are those behind the backslash.
fn escape(chars: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    match chars.next()?.1 {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        '0' => Some('\0'),
        c @ ('\\' | '"' | '\'') => Some(c),
        'u' => {
            chars.next().filter(|(_, c)| *c == '{')?;
            let mut code = 0u32;
            loop {
                match chars.next()?.1 {
                    '}' => return char::from_u32(code),
                    digit => code = code.checked_mul(16)?.checked_add(digit.to_digit(16)?)?,
                }
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
        let read = || {
            let mut lexer = Lexer::new(text)?;
            let mut tokens = vec![];
            while *lexer.peek() != Token::End {
                tokens.push(lexer.take()?);
            }
            Ok(tokens)
        };
        read().map_err(|fault: Fault| fault.locate(text).to_string())
    }

    #[test]
    fn marks_need_no_blanks_and_comments_end_with_the_line() {
        let expected = vec![
            Token::Value("a.1"),
            Token::Mark('='),
            Token::Word("-1.5e-3"),
            Token::Mark('}'),
            Token::Word("f"),
        ];
        assert_eq!(tokens("%a.1=-1.5e-3} # x = \"\n  f"), Ok(expected));
    }

    #[test]
    fn strings_read_what_debug_writes() {
        let text = "quote \" backslash \\ newline \n tab \t nul \0 bell \u{7} accent e\u{301} 'é'";
        assert_eq!(tokens(&format!("{text:?}")), Ok(vec![Token::Text(text.into())]));
    }

    #[test]
    fn faults_count_characters_from_one() {
        assert_eq!(tokens("é é\n é ;"), Err("line 2, column 4: unexpected character ';'".into()));
        assert_eq!(tokens("\"\\q\""), Err("line 1, column 2: unknown escape".into()));
        assert_eq!(tokens("a \"b"), Err("line 1, column 3: the string has no closing `\"`".into()));
    }
}
