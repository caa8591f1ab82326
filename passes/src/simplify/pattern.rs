//! Patterns of elementwise ops, as text: `(add ?x (neg ?y))`.
//!
//! * `?x` is any value; the same name is the same value everywhere.
//! * `#c` is a value known to be one number everywhere.
//! * A number is a tensor of that number; on the right side it takes the type of its siblings.
//! * `(op ..)` is an op without attributes; commutative ops match either way round.

use super::language::Term;
use super::rewriter::Rewriter;
use egg::Id;
use kernfusion_ir::{Attributes, Op, TensorType};

/// One side of a rule.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// Any value, by the number of its name.
    Any(usize),
    /// Any value that is one number everywhere.
    AnyNumber(usize),
    /// This number, everywhere.
    Number(f64),
    /// An op over patterns.
    Apply(Op, Vec<Pattern>),
}

/// The most names that a rule has.
const NAMES: usize = 8;

/// The most ways in which one term is taken to be of a form: classes of many forms have them by the product of their numbers.
const MOST_MATCHES: usize = 1000;

/// What names stand for.
pub(super) type Bindings = [Option<Id>; NAMES];

impl Pattern {
    /// Reads a pattern; names are numbered by `names`, which grows.
    ///
    /// # Panics
    /// If the text is no pattern: rules are part of the program.
    pub(super) fn parse(text: &str, names: &mut Vec<String>) -> Pattern {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let words: Vec<_> = spaced.split_whitespace().collect();
        let mut at = 0;
        let pattern = parse(&words, &mut at, names);
        assert!(at == words.len(), "more than one pattern in {text}");
        pattern
    }

    /// The name of the op at its root.
    ///
    /// # Panics
    /// If it is no op.
    pub(super) fn root(&self) -> &'static str {
        let Pattern::Apply(op, _) = self else { panic!("a left side is an op") };
        op.name()
    }

    /// The ways in which a term is of this form, of too many the first.
    pub(super) fn matches(&self, r: &Rewriter<'_>, term: &Term) -> Vec<Bindings> {
        let Pattern::Apply(_, patterns) = self else { panic!("a left side is an op") };
        bind_all(r, patterns, term, [None; NAMES])
    }

    fn bind(&self, r: &Rewriter<'_>, id: Id, mut bound: Bindings) -> Vec<Bindings> {
        match self {
            Pattern::AnyNumber(_) if r.constant(id).is_none() => vec![],
            Pattern::Any(name) | Pattern::AnyNumber(name) => match bound[*name] {
                Some(known) if !r.same(known, id) => vec![],
                _ => {
                    bound[*name] = Some(id);
                    vec![bound]
                }
            },
            Pattern::Number(number) if r.constant(id) == Some(*number) => vec![bound],
            Pattern::Number(_) => vec![],
            Pattern::Apply(op, patterns) => {
                let forms = r.forms(id, op.name());
                forms.iter().flat_map(|term| bind_all(r, patterns, term, bound)).take(MOST_MATCHES).collect()
            }
        }
    }

    /// Builds the pattern; `ty` is the type of the whole.
    pub(super) fn build(&self, r: &mut Rewriter<'_>, bound: &Bindings, ty: &TensorType) -> Option<Id> {
        match self {
            Pattern::Any(name) | Pattern::AnyNumber(name) => bound[*name],
            Pattern::Number(number) => r.full(*number, ty),
            Pattern::Apply(op, patterns) => {
                let mut built = vec![None; patterns.len()];
                let mut sibling = None;
                // From the right, since a condition on the left has another type than its siblings.
                for (slot, pattern) in patterns.iter().enumerate().rev() {
                    if !matches!(pattern, Pattern::Number(_)) {
                        let id = pattern.build(r, bound, ty)?;
                        sibling.get_or_insert_with(|| r.ty(id).clone());
                        built[slot] = Some(id);
                    }
                }
                let sibling = sibling.filter(|_| !matches!(op, Op::Select(_))).unwrap_or(ty.clone());
                for (slot, pattern) in patterns.iter().enumerate() {
                    if let Pattern::Number(number) = pattern {
                        built[slot] = Some(r.full(*number, &sibling)?);
                    }
                }
                r.add(op.clone(), &built.into_iter().collect::<Option<Vec<_>>>()?)
            }
        }
    }
}

/// The ways in which a term's operands are of these forms, of too many the first.
fn bind_all(r: &Rewriter<'_>, patterns: &[Pattern], term: &Term, bound: Bindings) -> Vec<Bindings> {
    let mut found = Vec::new();
    for operands in orders(term) {
        let mut so_far = vec![bound];
        for (pattern, operand) in patterns.iter().zip(operands) {
            let bind = |bound| pattern.bind(r, operand, bound);
            so_far = so_far.into_iter().flat_map(bind).take(MOST_MATCHES).collect();
        }
        found.extend(so_far);
    }
    found
}

/// The operands of a term in every order that leaves its value as it is.
fn orders(term: &Term) -> Vec<Vec<Id>> {
    let given = term.operands.clone();
    let both = term.commutes() && given[0] != given[1];
    if both { vec![term.mirrored().operands, given] } else { vec![given] }
}

fn parse(words: &[&str], at: &mut usize, names: &mut Vec<String>) -> Pattern {
    let word = words[*at];
    *at += 1;
    if word != "(" {
        return atom(word, names);
    }
    let name = words[*at];
    let op = Op::parse(name, Attributes::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    *at += 1;
    let mut patterns = Vec::new();
    while words[*at] != ")" {
        patterns.push(parse(words, at, names));
    }
    *at += 1;
    Pattern::Apply(op, patterns)
}

fn atom(word: &str, names: &mut Vec<String>) -> Pattern {
    let mut number_of = |word: &str| {
        names.iter().position(|name| name == word).unwrap_or_else(|| {
            names.push(word.to_string());
            assert!(names.len() <= NAMES, "a rule has at most {NAMES} names");
            names.len() - 1
        })
    };
    match word.as_bytes()[0] {
        b'?' => Pattern::Any(number_of(word)),
        b'#' => Pattern::AnyNumber(number_of(word)),
        _ => Pattern::Number(word.parse().unwrap_or_else(|_| panic!("{word} is no number"))),
    }
}
