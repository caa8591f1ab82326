//! What a row says of an operator's inputs and attributes, in the names that its function reads.
//!
//! ```text
//! self size## ; dim=axis largest=largest? epsilon|1e-5 -stash_type !storage_order=0
//! ```
//!
//! Inputs stand in their order: `x` is a tensor, `x#` one number and `x##` several that are known when the file is read, `x^` a number where
//! it is known, else a tensor, `x_zero@` the zero point of the bytes x, a number where it is known and the same everywhere, else a tensor, `x~` a tensor of which only the type counts, and `x...` are all that follow. Attributes: `name=attribute`,
//! or one name for both; `?` for yes or no; `|number` where it is left out; `-attribute` changes nothing here; `!attribute=number` must
//! be that number.

/// How an input is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tensor,
    /// One number that is known.
    Number,
    /// Numbers that are known.
    Numbers,
    /// A number, where it is known.
    NumberOrTensor,
    /// A number, where it is known and the same everywhere.
    Zero,
    /// A tensor of which only the type counts.
    Type,
    /// All tensors that follow.
    All,
}

/// What becomes of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Attribute<'s> {
    /// Its name in the file.
    pub(crate) attribute: &'s str,
    pub(crate) use_: Use<'s>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use<'s> {
    /// An argument of this name.
    Argument { name: &'s str, is_flag: bool, default: Option<f64> },
    /// It changes nothing.
    None,
    /// It must be this number.
    Fixed(i64),
}

/// The inputs in their order.
pub(crate) fn inputs(takes: &str) -> impl Iterator<Item = (&str, Kind)> {
    let inputs = takes.split(';').next().unwrap_or_default();
    inputs.split_whitespace().map(|word| {
        const MARKS: [(&str, Kind); 6] = [
            ("...", Kind::All),
            ("##", Kind::Numbers),
            ("#", Kind::Number),
            ("^", Kind::NumberOrTensor),
            ("@", Kind::Zero),
            ("~", Kind::Type),
        ];
        let marked = MARKS.iter().find_map(|(mark, kind)| Some((word.strip_suffix(mark)?, *kind)));
        marked.unwrap_or((word, Kind::Tensor))
    })
}

/// The attributes that are known.
pub(crate) fn attributes(takes: &str) -> impl Iterator<Item = Attribute<'_>> {
    let attributes = takes.split_once(';').map_or("", |(_, attributes)| attributes);
    attributes.split_whitespace().map(attribute)
}

fn attribute(word: &str) -> Attribute<'_> {
    if let Some(attribute) = word.strip_prefix('-') {
        return Attribute { attribute, use_: Use::None };
    }
    if let Some((attribute, number)) = word.strip_prefix('!').and_then(|word| word.split_once('=')) {
        return Attribute { attribute, use_: Use::Fixed(number.parse().expect("a whole number")) };
    }
    let (word, default) = match word.split_once('|') {
        Some((word, number)) => (word, Some(number.parse().expect("a number"))),
        None => (word, None),
    };
    let (word, is_flag) = word.strip_suffix('?').map_or((word, false), |word| (word, true));
    let (name, attribute) = word.split_once('=').unwrap_or((word, word));
    Attribute { attribute, use_: Use::Argument { name, is_flag, default } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_say_how_inputs_and_attributes_are_read() {
        let takes = "self k# size## exponent^ y_zero@ like~ tensors...; dim=axis largest? eps=epsilon|0.5 -stash_type !order=1";
        let kinds = inputs(takes).collect::<Vec<_>>();
        let expected = [
            ("self", Kind::Tensor),
            ("k", Kind::Number),
            ("size", Kind::Numbers),
            ("exponent", Kind::NumberOrTensor),
            ("y_zero", Kind::Zero),
            ("like", Kind::Type),
            ("tensors", Kind::All),
        ];
        assert_eq!(kinds, expected);
        let argument = |name, is_flag, default| Use::Argument { name, is_flag, default };
        let expected = [
            ("axis", argument("dim", false, None)),
            ("largest", argument("largest", true, None)),
            ("epsilon", argument("eps", false, Some(0.5))),
            ("stash_type", Use::None),
            ("order", Use::Fixed(1)),
        ];
        assert!(attributes(takes).map(|found| (found.attribute, found.use_)).eq(expected));
        assert_eq!(attributes("self").count(), 0);
    }
}
