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
        let mut found = vec![];
        bind_all(r, patterns, term, [None; NAMES], &mut found);
        found
    }

    /// Appends the ways in which a value is of this form, of too many the first.
    fn bind(&self, r: &Rewriter<'_>, id: Id, mut bound: Bindings, found: &mut Vec<Bindings>) {
        let Pattern::Apply(op, patterns) = self else {
            found.extend(self.bind_atom(r, id, &mut bound).then_some(bound));
            return;
        };
        let most = found.len() + MOST_MATCHES;
        for term in r.named(id, op.name()) {
            bind_all(r, patterns, term, bound, found);
            if found.len() >= most {
                found.truncate(most);
                return;
            }
        }
    }

    /// Whether a value is of this form, which is no op, and so of it in one way.
    fn bind_atom(&self, r: &Rewriter<'_>, id: Id, bound: &mut Bindings) -> bool {
        match self {
            Pattern::AnyNumber(_) if r.constant(id).is_none() => false,
            Pattern::Any(name) | Pattern::AnyNumber(name) => r.same(*bound[*name].get_or_insert(id), id),
            Pattern::Number(number) => r.constant(id) == Some(*number),
            Pattern::Apply(..) => unreachable!("an op may be of a form in several ways"),
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

/// Appends the ways in which a term's operands are of these forms, in every order that leaves its value as it is.
fn bind_all(r: &Rewriter<'_>, patterns: &[Pattern], term: &Term, bound: Bindings, found: &mut Vec<Bindings>) {
    if let ([first, second], true) = (&term.operands[..], term.commutes())
        && first != second
    {
        bind_operands(r, patterns, &[*second, *first], bound, found);
    }
    bind_operands(r, patterns, &term.operands, bound, found);
}

/// Appends the ways in which operands are of these forms, of too many the first.
fn bind_operands(
    r: &Rewriter<'_>,
    patterns: &[Pattern],
    operands: &[Id],
    mut bound: Bindings,
    found: &mut Vec<Bindings>,
) {
    let mut pairs = patterns.iter().zip(operands);
    // Up to the first op there is one way.
    let op = loop {
        match pairs.next() {
            None => return found.push(bound),
            Some((pattern @ Pattern::Apply(..), &operand)) => break (pattern, operand),
            Some((atom, &operand)) if !atom.bind_atom(r, operand, &mut bound) => return,
            Some(_) => {}
        }
    };
    let mut so_far = vec![];
    op.0.bind(r, op.1, bound, &mut so_far);
    for (pattern, &operand) in pairs {
        let mut next = vec![];
        for bound in so_far {
            pattern.bind(r, operand, bound, &mut next);
            if next.len() >= MOST_MATCHES {
                next.truncate(MOST_MATCHES);
                break;
            }
        }
        so_far = next;
    }
    found.append(&mut so_far);
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
