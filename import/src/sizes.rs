//! Extents that were left open when a model was exported (`dynamic_shapes`), and are chosen when it is read.
//!
//! The archive has them as expressions over symbols, in the spelling of SymPy's `srepr`:
//!
//! ```text
//! input_ids: [Symbol('s72', positive=True, integer=True), Mul(Integer(2), Symbol('s70', …))]
//! ```
//!
//! Numbers take their place, and nodes that only compute extents are left out: what follows sees an archive of fixed shapes.

use crate::schema::{Argument, ExportedProgram, Graph, InputSpec, Node, Range, Size, SymInt};
use std::collections::BTreeMap;

/// An extent that is chosen: the symbol's name, or `INPUT.AXIS`, and the number.
pub(crate) type Chosen<'a> = (&'a str, usize);

/// Puts numbers in place of all open extents.
///
/// # Errors
/// An extent is left open, chosen twice or out of its range; or there is none of a name.
pub(crate) fn choose(program: &mut ExportedProgram, chosen: &[Chosen<'_>]) -> Result<(), String> {
    let open = open_extents(program);
    let mut sizes = Sizes::default();
    for &(name, size) in chosen {
        let Some((symbol, _)) = open.iter().find(|(symbol, place)| symbol == name || place == name) else {
            return Err(format!("it has no open extent \"{name}\", but {}", listed(&open)));
        };
        let size = within(symbol, size, program.range_constraints.get(symbol))?;
        if sizes.0.insert(symbol.clone(), size).is_some_and(|other| other != size) {
            return Err(format!("the extent \"{symbol}\" is chosen twice"));
        }
    }
    let left: Vec<_> = open.iter().filter(|(symbol, _)| !sizes.0.contains_key(symbol)).cloned().collect();
    if !left.is_empty() {
        return Err(format!("extents of its inputs are open, {}: {CHOOSE_EACH}", listed(&left)));
    }
    let graph = &mut program.graph_module.graph;
    for (name, meta) in &mut graph.tensor_values {
        let all = meta.sizes.iter_mut().chain(&mut meta.strides).chain([&mut meta.storage_offset]);
        for size in all {
            *size = Size::Int(sizes.number(size).map_err(|reason| format!("\"{name}\": {reason}"))?);
        }
    }
    sizes.put_into_nodes(graph)
}

/// The symbols of inputs whose extent is one alone, each with its first place, `INPUT.AXIS`.
fn open_extents(program: &ExportedProgram) -> Vec<(String, String)> {
    let mut open: Vec<(String, String)> = vec![];
    for spec in &program.graph_module.signature.input_specs {
        let InputSpec::UserInput { arg: Argument::Tensor(input) } = spec else { continue };
        let Some(meta) = program.graph_module.graph.tensor_values.get(&input.name) else { continue };
        for (axis, size) in meta.sizes.iter().enumerate() {
            let Size::Expression(expression) = size else { continue };
            let Some(symbol) = lone_symbol(&expression.expr_str) else { continue };
            if open.iter().all(|(other, _)| other != symbol) {
                open.push((symbol.into(), format!("{}.{axis}", input.name)));
            }
        }
    }
    open
}

fn lone_symbol(expression: &str) -> Option<&str> {
    let quoted = expression.strip_prefix("Symbol('").and_then(|rest| rest.split_once('\''));
    let symbol = quoted.map_or(expression, |(symbol, _)| symbol);
    is_name(symbol).then_some(symbol)
}

fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !word.starts_with(|c: char| c.is_ascii_digit())
}

/// What to do about open extents.
pub(crate) const CHOOSE_EACH: &str =
    "choose each (`--dim NAME=N`, `Imported::open_sized`), or export it without dynamic_shapes";

/// Open extents, each with its first place.
pub(crate) fn listed(open: &[(String, String)]) -> String {
    match open {
        [] => "none".into(),
        open => {
            open.iter().map(|(symbol, place)| format!("{symbol} ({place})")).collect::<Vec<_>>().join(", ")
        }
    }
}

fn within(symbol: &str, size: usize, range: Option<&Range>) -> Result<i64, String> {
    let number = i64::try_from(size).ok().filter(|&number| number > 0);
    let (least, most) = range.map_or((None, None), |range| (range.min_val, range.max_val));
    let fits =
        |number: &i64| least.is_none_or(|least| *number >= least) && most.is_none_or(|most| *number <= most);
    number.filter(fits).ok_or_else(|| {
        let bound =
            |bound: Option<i64>, open: &str| bound.map_or(open.to_string(), |bound| bound.to_string());
        let (least, most) = (bound(least.map(|least| least.max(1)), "1"), bound(most, "any"));
        format!("the extent \"{symbol}\" is exported for {least} to {most}, not for {size}")
    })
}

/// Numbers by symbol.
#[derive(Default)]
struct Sizes(BTreeMap<String, i64>);

impl Sizes {
    fn number(&self, size: &Size) -> Result<i64, String> {
        match size {
            Size::Int(number) => Ok(*number),
            Size::Expression(expression) => self.value(&expression.expr_str),
        }
    }

    /// The value of an expression.
    fn value(&self, expression: &str) -> Result<i64, String> {
        let mut reader = Reader { text: expression, sizes: self, depth: 0 };
        let value = reader.expression();
        let value = value.filter(|_| reader.text.trim().is_empty());
        value.ok_or_else(|| format!("its extent {expression} is open, and not a formula that is read"))
    }

    /// Gives nodes numbers, and leaves out those that only compute such.
    fn put_into_nodes(&self, graph: &mut Graph) -> Result<(), String> {
        let mut named = BTreeMap::new();
        for (name, size) in &graph.sym_int_values {
            named.insert(name.clone(), self.number(size).map_err(|reason| format!("\"{name}\": {reason}"))?);
        }
        let number = |size: &SymInt| match size {
            SymInt::Int(number) => Ok(*number),
            SymInt::Name(name) => {
                named.get(name).copied().ok_or_else(|| format!("the extent \"{name}\" is nowhere"))
            }
        };
        graph.nodes.retain(|node| !node.is_about_sizes());
        for argument in graph.nodes.iter_mut().flat_map(|node| &mut node.inputs) {
            match &argument.arg {
                Argument::SymInt(size) => argument.arg = Argument::Int(number(size)?),
                Argument::SymInts(sizes) => {
                    argument.arg = Argument::Ints(sizes.iter().map(number).collect::<Result<_, _>>()?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Node {
    /// Whether it gives extents alone, or only checks them.
    fn is_about_sizes(&self) -> bool {
        const CHECKS: [&str; 3] = [
            "torch.ops.aten._assert_scalar.default",
            "torch.ops.aten.sym_constrain_range.default",
            "torch.ops.aten.sym_constrain_range_for_size.default",
        ];
        let is_size = |output: &Argument| {
            matches!(output, Argument::SymInt(_) | Argument::SymBool(_) | Argument::SymFloat(_))
        };
        match self.outputs.as_slice() {
            [] => CHECKS.contains(&self.target.as_str()),
            outputs => outputs.iter().all(is_size),
        }
    }
}

/// Reads an expression from the front of a text.
struct Reader<'a> {
    text: &'a str,
    sizes: &'a Sizes,
    depth: usize,
}

/// The most calls in calls.
const DEEPEST: usize = 64;

impl<'a> Reader<'a> {
    fn expression(&mut self) -> Option<i64> {
        let word = self.word()?;
        if let Ok(number) = word.parse() {
            return Some(number);
        }
        if !self.skip('(') {
            return self.sizes.0.get(word).copied();
        }
        if word == "Symbol" {
            // What is said of it besides its name does not change its value.
            let (arguments, rest) = self.text.split_once(')')?;
            self.text = rest;
            let name = arguments.strip_prefix('\'')?.split_once('\'')?.0;
            return self.sizes.0.get(name).copied();
        }
        self.depth += 1;
        let mut operands = vec![];
        while self.depth <= DEEPEST && !self.skip(')') {
            operands.push(self.expression()?);
            self.skip(',');
        }
        self.depth -= 1;
        applied(word, &operands)
    }

    /// A name, or a number with its sign.
    fn word(&mut self) -> Option<&'a str> {
        let text = self.text.trim_start();
        let end =
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.text = rest;
        (end > 0).then_some(word)
    }

    fn skip(&mut self, expected: char) -> bool {
        let rest = self.text.trim_start().strip_prefix(expected);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }
}

/// A function of whole numbers.
fn applied(function: &str, operands: &[i64]) -> Option<i64> {
    let fold = |f: fn(i64, i64) -> Option<i64>| {
        let (first, rest) = operands.split_first()?;
        rest.iter().try_fold(*first, |sum, &next| f(sum, next))
    };
    match (function, operands) {
        ("Integer", [number]) => Some(*number),
        ("Add", _) => fold(i64::checked_add),
        ("Mul", _) => fold(i64::checked_mul),
        ("Max", _) => fold(|a, b| Some(a.max(b))),
        ("Min", _) => fold(|a, b| Some(a.min(b))),
        ("Pow", [base, exponent]) => base.checked_pow(u32::try_from(*exponent).ok()?),
        ("FloorDiv" | "CleanDiv" | "IntTrueDiv", [a, b]) if *b > 0 => Some(a.div_euclid(*b)),
        ("Mod" | "PythonMod", [a, b]) if *b > 0 => Some(a.rem_euclid(*b)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_those_of_sympy() {
        let sizes = Sizes([("s70".to_string(), 6), ("b".to_string(), 5)].into());
        let symbol = "Symbol('s70', positive=True, integer=True)";
        for (expression, value) in [
            (symbol.to_string(), 6),
            ("b".into(), 5),
            (format!("Mul(Integer(2), Pow({symbol}, Integer(2)))"), 72),
            (format!("Add({symbol}, Mul(Integer(-1), Symbol('b')), Integer(3))"), 4),
            (format!("FloorDiv(Add({symbol}, Integer(1)), Integer(2))"), 3),
            (format!("Mod({symbol}, Integer(4))"), 2),
            (format!("Max(Integer(7), Min({symbol}, Integer(2)))"), 7),
        ] {
            assert_eq!(sizes.value(&expression), Ok(value), "{expression}");
        }
        let deep = format!("{}b{}", "Add(".repeat(100_000), ")".repeat(100_000));
        for expression in [
            "",
            "c",
            "Symbol('c')",
            "Symbol('b",
            "Mul(b",
            "Sin(b)",
            "b b",
            "FloorDiv(b, Integer(0))",
            "Pow(b, b, b)",
            &deep,
        ] {
            assert!(sizes.value(expression).is_err(), "{expression}");
        }
        assert!(sizes.value("Mul(Integer(9223372036854775807), b)").is_err());
    }
}
