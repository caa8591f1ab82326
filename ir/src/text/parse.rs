//! Reading the text form, in two steps: statements as they stand, then names and types.

use super::lex::{Fault, Lexer, Token};
use super::{DEEPEST, ParseError};
use crate::{
    Attribute, Attributes, Body, DType, Graph, Literal, Location, Node, Op, Origin, Place, TensorType,
    ValueId, VerifyError,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

type Parsed<T> = Result<T, Fault>;

impl Graph {
    /// Reads the text form. The graph is not verified: types stand as they are written, and operands may come
    /// after their users.
    ///
    /// # Errors
    /// What is wrong with the text, with line and column.
    pub fn parse(text: &str) -> Result<Graph, ParseError> {
        parse(text, false)
    }

    /// Reads the text form and verifies the graph, and all bodies of loops in it.
    ///
    /// # Errors
    /// What is wrong with the text or with the graph, with line and column: those of the op, the output or the update that breaks an
    /// invariant.
    pub fn parse_verified(text: &str) -> Result<Graph, ParseError> {
        parse(text, true)
    }
}

fn parse(text: &str, verifies: bool) -> Result<Graph, ParseError> {
    let read = || Parser { lexer: Lexer::new(text)?, depth: 0, verifies }.whole_file();
    read().map_err(|fault| fault.locate(text))
}

/// The name of a value and the offset where it stands.
type Mention<'a> = (&'a str, usize);

/// A node whose operands are still names.
struct Statement<'a> {
    result: Mention<'a>,
    op: Op,
    /// The offset of the op's name, where its type errors are reported.
    at: usize,
    operands: Vec<Mention<'a>>,
    ty: Option<TensorType>,
    origin: Origin,
}

/// A file whose names are not resolved.
struct File<'a> {
    name: String,
    statements: Vec<Statement<'a>>,
    outputs: Vec<Named<'a>>,
}

/// An output or an update.
struct Named<'a> {
    updates_state: bool,
    name: String,
    value: Mention<'a>,
    /// The offset of its keyword.
    at: usize,
}

/// The offsets of ops, outputs and updates.
struct Places {
    nodes: Vec<usize>,
    outputs: Vec<usize>,
}

impl Places {
    fn fault(&self, error: &VerifyError) -> Fault {
        let at = match error.place {
            Place::Node(id) => self.nodes[id.index()],
            Place::Output(number) => self.outputs[number],
        };
        Fault::new(at, error.to_string())
    }
}

impl File<'_> {
    fn places(&self) -> Places {
        Places {
            nodes: self.statements.iter().map(|statement| statement.at).collect(),
            outputs: self.outputs.iter().map(|output| output.at).collect(),
        }
    }

    fn resolve(self) -> Parsed<Graph> {
        let mut places = HashMap::with_capacity(self.statements.len());
        for (place, Statement { result: (name, at), .. }) in self.statements.iter().enumerate() {
            if places.insert(*name, ValueId::from_index(place)).is_some() {
                return Err(Fault::new(*at, format!("%{name} is defined twice")));
            }
        }
        let place = |(name, at): &Mention<'_>| {
            let known = places.get(name).copied();
            known.ok_or_else(|| Fault::new(*at, format!("%{name} is not defined")))
        };
        let mut types: Vec<_> = self.statements.iter().map(|statement| statement.ty.clone()).collect();
        let mut graph = Graph::new(self.name);
        for (index, statement) in self.statements.into_iter().enumerate() {
            let operands = statement.operands.iter().map(place).collect::<Parsed<Vec<_>>>()?;
            let ty = match statement.ty.clone() {
                Some(ty) => ty,
                None => infer(&statement, &operands, &types)?,
            };
            types[index] = Some(ty.clone());
            graph.add_unchecked(Node { op: statement.op, operands, ty, origin: statement.origin });
        }
        for Named { updates_state, name, value, .. } in self.outputs {
            let value = place(&value)?;
            if updates_state { graph.update(name, value) } else { graph.output(name, value) }
        }
        Ok(graph)
    }
}

/// The type of a statement that declares none.
fn infer(
    statement: &Statement<'_>,
    operands: &[ValueId],
    types: &[Option<TensorType>],
) -> Parsed<TensorType> {
    let known = |(operand, (name, at)): (&ValueId, &Mention<'_>)| {
        let reason = || format!("%{name} comes later, so its type must be written");
        types[operand.index()].as_ref().ok_or_else(|| Fault::new(*at, reason()))
    };
    let types = operands.iter().zip(&statement.operands).map(known).collect::<Parsed<Vec<_>>>()?;
    let name = statement.op.name();
    statement.op.infer(&types).map_err(|reason| Fault::new(statement.at, format!("{name}: {reason}")))
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The number of graphs around what is read.
    depth: usize,
    /// Whether graphs are verified as soon as they are read.
    verifies: bool,
}

impl<'a> Parser<'a> {
    fn whole_file(mut self) -> Parsed<Graph> {
        self.keyword("graph")?;
        let file = self.graph()?;
        if *self.lexer.peek() != Token::End {
            return Err(self.expected("the end of the file"));
        }
        let places = file.places();
        let graph = file.resolve()?;
        if self.verifies {
            graph.verify().map_err(|error| places.fault(&error))?;
        }
        Ok(graph)
    }

    /// What follows the word `graph` of an attribute.
    fn body(&mut self) -> Parsed<Body> {
        self.depth += 1;
        if self.depth >= DEEPEST {
            let reason = format!("more than {DEEPEST} graphs stand in each other");
            return Err(Fault::new(self.lexer.at(), reason));
        }
        let file = self.graph()?;
        self.depth -= 1;
        let places = file.places();
        let body = Body::from(file.resolve()?);
        if self.verifies {
            body.verify().map_err(|error| places.fault(&error))?;
        }
        Ok(body)
    }

    /// What follows the word `graph`.
    fn graph(&mut self) -> Parsed<File<'a>> {
        let mut file = File { name: self.string("the graph's name")?, statements: vec![], outputs: vec![] };
        self.mark('{')?;
        loop {
            let at = self.lexer.at();
            match *self.lexer.peek() {
                Token::Value(name) => file.statements.push(self.statement(name)?),
                Token::Word(word @ ("output" | "update")) => {
                    self.lexer.take()?;
                    let name = self.string("a name")?;
                    self.mark('=')?;
                    let (updates_state, value) = (word == "update", self.value()?);
                    file.outputs.push(Named { updates_state, name, value, at });
                }
                Token::Mark('}') => break,
                _ => return Err(self.expected("a statement or `}`")),
            }
        }
        self.lexer.take()?;
        Ok(file)
    }

    fn statement(&mut self, name: &'a str) -> Parsed<Statement<'a>> {
        let result = (name, self.lexer.at());
        self.lexer.take()?;
        self.mark('=')?;
        let at = self.lexer.at();
        let op = self.word("an op")?;
        let operands = match self.lexer.peek() {
            Token::Value(_) => self.separated(Self::value)?,
            _ => vec![],
        };
        let attributes = self.attributes()?;
        let op = Op::parse(op, attributes).map_err(|reason| Fault::new(at, reason))?;
        let ty = if self.takes_mark(':')? { Some(self.ty()?) } else { None };
        Ok(Statement { result, op, at, operands, ty, origin: self.origin()? })
    }

    fn attributes(&mut self) -> Parsed<Attributes> {
        let mut attributes = Attributes::default();
        if !self.takes_mark('{')? || self.takes_mark('}')? {
            return Ok(attributes);
        }
        let mut names = HashSet::new();
        let pairs = self.separated(|parser| {
            let at = parser.lexer.at();
            let name = parser.word("an attribute's name")?;
            if !names.insert(name) {
                return Err(Fault::new(at, format!("attribute `{name}` is given twice")));
            }
            parser.mark('=')?;
            Ok((name.to_string(), parser.attribute()?))
        })?;
        attributes.0 = pairs;
        self.mark('}')?;
        Ok(attributes)
    }

    fn attribute(&mut self) -> Parsed<Attribute> {
        let at = self.lexer.at();
        match self.lexer.peek() {
            Token::Mark('[') => Ok(Attribute::List(self.list()?)),
            Token::Text(_) => Ok(Attribute::Text(self.string("a string")?)),
            Token::Word(word) if is_number(word) => {
                let parsed = word.parse().map_err(|_| Fault::new(at, format!("`{word}` is no number")));
                self.lexer.take()?;
                Ok(Attribute::Number(Literal::new(parsed?)))
            }
            Token::Word("graph") => {
                self.lexer.take()?;
                Ok(Attribute::Body(self.body()?))
            }
            Token::Word(_) => Ok(Attribute::Word(self.word("a word")?.into())),
            _ => Err(self.expected("a number, a list, a word, a string or a graph")),
        }
    }

    /// `in "scope" at "file":line:column`, of which either part may be missing.
    fn origin(&mut self) -> Parsed<Origin> {
        let mut origin = Origin::default();
        if self.takes_word("in")? {
            origin.scope = self.string("a scope")?.into();
        }
        if self.takes_word("at")? {
            let file: Arc<str> = self.string("a file's path")?.into();
            self.mark(':')?;
            let line = self.whole("a line")?;
            self.mark(':')?;
            origin.location = Some(Location { file, line, column: self.whole("a column")? });
        }
        Ok(origin)
    }

    fn ty(&mut self) -> Parsed<TensorType> {
        let at = self.lexer.at();
        let dtype: DType = self.word("a dtype")?.parse().map_err(|reason: String| Fault::new(at, reason))?;
        let ty = TensorType { dtype, shape: self.list()? };
        ty.fault().map_or(Ok(ty), |reason| Err(Fault::new(at, reason)))
    }

    fn list(&mut self) -> Parsed<Vec<usize>> {
        self.mark('[')?;
        if self.takes_mark(']')? {
            return Ok(vec![]);
        }
        let values = self.separated(|parser| parser.whole("a whole number"))?;
        self.mark(']')?;
        Ok(values)
    }

    /// One or more items with commas between them.
    fn separated<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.takes_mark(',')? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn value(&mut self) -> Parsed<Mention<'a>> {
        let at = self.lexer.at();
        match *self.lexer.peek() {
            Token::Value(name) => {
                self.lexer.take()?;
                Ok((name, at))
            }
            _ => Err(self.expected("a value")),
        }
    }

    fn string(&mut self, what: &str) -> Parsed<String> {
        match self.lexer.peek() {
            Token::Text(_) => match self.lexer.take()? {
                Token::Text(text) => Ok(text),
                other => unreachable!("the token after a look at a string is {}", other.describe()),
            },
            _ => Err(self.expected(&format!("{what} in quotes"))),
        }
    }

    fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match *self.lexer.peek() {
            Token::Word(word) => {
                self.lexer.take()?;
                Ok(word)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn whole<T: std::str::FromStr>(&mut self, what: &str) -> Parsed<T> {
        let at = self.lexer.at();
        let word = self.word(what)?;
        word.parse().map_err(|_| Fault::new(at, format!("expected {what}, found `{word}`")))
    }

    fn keyword(&mut self, keyword: &str) -> Parsed<()> {
        if self.takes_word(keyword)? { Ok(()) } else { Err(self.expected(&format!("`{keyword}`"))) }
    }

    fn mark(&mut self, mark: char) -> Parsed<()> {
        if self.takes_mark(mark)? { Ok(()) } else { Err(self.expected(&format!("`{mark}`"))) }
    }

    fn takes_word(&mut self, word: &str) -> Parsed<bool> {
        self.takes(&Token::Word(word))
    }

    fn takes_mark(&mut self, mark: char) -> Parsed<bool> {
        self.takes(&Token::Mark(mark))
    }

    /// Takes this token if it comes next.
    fn takes(&mut self, token: &Token<'_>) -> Parsed<bool> {
        let next = self.lexer.peek() == token;
        if next {
            self.lexer.take()?;
        }
        Ok(next)
    }

    fn expected(&self, what: &str) -> Fault {
        let found = self.lexer.peek().describe();
        Fault::new(self.lexer.at(), format!("expected {what}, found {found}"))
    }
}

/// Whether a word is meant as a number; no word of an attribute starts like one.
fn is_number(word: &str) -> bool {
    matches!(word, "inf" | "NaN") || word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
}
