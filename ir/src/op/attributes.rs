//! Attributes of ops as text form knows them.

use super::Body;
use crate::text::write_graph;
use crate::{DType, Literal};
use std::fmt;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A number: `0.5`, `-inf`.
    Number(Literal),
    /// A list of numbers of axes or extents: `[0, 2]`.
    List(Vec<usize>),
    /// A bare word: `sum`, `f32`.
    Word(String),
    /// A quoted string.
    Text(String),
    /// A graph in its text form.
    Body(Body),
}

/// Named attributes in the order in which they are written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attributes(pub Vec<(String, Attribute)>);

impl Attributes {
    /// Adds a number.
    pub fn number(self, name: &str, value: f64) -> Self {
        self.with(name, Attribute::Number(Literal::new(value)))
    }

    /// Adds a list.
    pub fn list(self, name: &str, values: &[usize]) -> Self {
        self.with(name, Attribute::List(values.to_vec()))
    }

    /// Adds a word.
    pub fn word(self, name: &str, value: &str) -> Self {
        self.with(name, Attribute::Word(value.into()))
    }

    /// Adds a string.
    pub fn text(self, name: &str, value: &str) -> Self {
        self.with(name, Attribute::Text(value.into()))
    }

    /// Adds an attribute.
    pub fn with(mut self, name: &str, value: Attribute) -> Self {
        self.0.push((name.into(), value));
        self
    }

    /// For a label: of graphs only how large they are.
    pub fn brief(mut self) -> Self {
        for (_, attribute) in &mut self.0 {
            if let Attribute::Body(body) = attribute {
                *attribute = Attribute::Word(format!("{} nodes", body.graph().len()));
            }
        }
        self
    }

    /// Whether an attribute of this name is there and was not taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    fn take(&mut self, name: &str) -> Result<Attribute, String> {
        let found = self.0.iter().position(|(other, _)| other == name);
        found.map(|at| self.0.remove(at).1).ok_or_else(|| format!("attribute `{name}` is missing"))
    }

    pub(crate) fn take_number(&mut self, name: &str) -> Result<f64, String> {
        match self.take(name)? {
            Attribute::Number(value) => Ok(value.value()),
            other => Err(format!("attribute `{name}` must be a number, not {other}")),
        }
    }

    pub(crate) fn take_count(&mut self, name: &str) -> Result<usize, String> {
        let value = self.take_number(name)?;
        if value >= 0.0 && value.fract() == 0.0 && value <= 9e15 {
            Ok(value as usize)
        } else {
            Err(format!("attribute `{name}` must be a whole number, not {value}"))
        }
    }

    pub(crate) fn take_list(&mut self, name: &str) -> Result<Vec<usize>, String> {
        match self.take(name)? {
            Attribute::List(values) => Ok(values),
            other => Err(format!("attribute `{name}` must be a list, not {other}")),
        }
    }

    pub(crate) fn take_word(&mut self, name: &str) -> Result<String, String> {
        match self.take(name)? {
            Attribute::Word(value) => Ok(value),
            other => Err(format!("attribute `{name}` must be a word, not {other}")),
        }
    }

    pub(crate) fn take_text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name)? {
            Attribute::Text(value) => Ok(value),
            other => Err(format!("attribute `{name}` must be a string, not {other}")),
        }
    }

    pub(crate) fn take_body(&mut self, name: &str) -> Result<Body, String> {
        match self.take(name)? {
            Attribute::Body(body) => Ok(body),
            other => Err(format!("attribute `{name}` must be a graph, not {other}")),
        }
    }

    pub(crate) fn take_dtype(&mut self, name: &str) -> Result<DType, String> {
        self.take_word(name)?.parse()
    }

    /// An error if an attribute was not taken.
    pub(crate) fn finish(self, op: &str) -> Result<(), String> {
        match self.0.first() {
            Some((name, _)) => Err(format!("op `{op}` has no attribute `{name}`")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Number(value) => write!(f, "{}", value.value()),
            Attribute::List(values) => write!(f, "{values:?}"),
            Attribute::Word(word) => f.write_str(word),
            Attribute::Text(text) => write!(f, "{text:?}"),
            Attribute::Body(body) => write_graph(f, body.graph(), 4),
        }
    }
}

impl fmt::Display for Attributes {
    /// ` {a = 1, b = sum}`, or nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 4)
    }
}

impl Attributes {
    /// As they are shown, bodies indented by this number of blanks.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name} = ", if i == 0 { " {" } else { ", " })?;
            match value {
                Attribute::Body(body) => write_graph(f, body.graph(), indent)?,
                value => write!(f, "{value}")?,
            }
        }
        f.write_str(if self.0.is_empty() { "" } else { "}" })
    }
}
